"""Sampler chains inside the compute graph, and whose they are."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from pyspec._llama import Batch, Context, Model, Sampler, SamplerChain
from pyspec.errors import BufferInUse, DecodeError, InvalidRequest

TOKENS = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def llama(tiny):
    with Model(tiny("llama")) as model:
        yield model


@pytest.fixture
def context(llama):
    with Context(llama, n_ctx=512, n_seq_max=2, n_threads=1, n_outputs_max_per_seq=4) as context:
        yield context


@pytest.fixture(scope="module")
def expected(llama):
    with Context(llama, n_ctx=256, n_threads=1) as context:
        context.decode(TOKENS, outputs=True)
        return np.array([context.logits(i) for i in range(len(TOKENS))])


def test_greedy(context, expected):
    chain = SamplerChain(Sampler.greedy())
    assert context.set_sampler(0, chain) is True
    context.decode(TOKENS)
    assert context.sampled_token() == expected[-1].argmax()
    assert context.sampled_probs() is None
    assert context.sampled_candidates() is None
    assert chain.sample(context) == expected[-1].argmax()


def test_top_k_leaves_candidates(context, expected):
    context.set_sampler(0, SamplerChain(Sampler.top_k(5)))
    context.decode(TOKENS)
    ids, logits = context.sampled_candidates(), context.sampled_logits()
    assert ids.dtype == np.int32
    assert set(ids) == set(np.argsort(-expected[-1])[:5])
    assert np.allclose(logits, expected[-1][ids], atol=2e-3)
    assert (context.logits() == logits).all()
    assert context.sampled_token() is None


def test_dist_gives_probabilities(context, expected):
    chain = SamplerChain(Sampler.top_k(8), Sampler.temp(0.7), Sampler.dist(5))
    context.set_sampler(0, chain)
    context.decode(TOKENS)
    ids, probs = context.sampled_candidates(), context.sampled_probs()
    row = expected[-1][ids] / 0.7
    assert np.allclose(probs, np.exp(row - row.max()) / np.exp(row - row.max()).sum(), atol=1e-3)
    assert context.sampled_token() in ids


def test_the_rest_of_the_chain_runs_afterwards(context, expected):
    """top_n_sigma does not run on the backend: the chain's own sample() does what is left."""
    chain = SamplerChain(Sampler.top_k(5), Sampler.top_n_sigma(2.0), Sampler.greedy())
    context.set_sampler(0, chain)
    context.decode(TOKENS)
    assert context.sampled_token() is None
    assert chain.sample(context) == expected[-1].argmax()


def test_several_rows_of_a_sequence(context, expected):
    context.set_sampler(0, SamplerChain(Sampler.greedy()))
    context.decode(TOKENS[:4], outputs=True)
    assert [context.sampled_token(i) for i in range(4)] == [row.argmax() for row in expected[:4]]
    with pytest.raises(DecodeError, match="at most 4 outputs per sequence") as caught:
        context.decode(TOKENS, outputs=True)
    assert caught.value.code == -1


def test_rows_without_a_sampler(context, expected):
    """Sequences with and without a sampler in one batch."""
    context.set_sampler(1, SamplerChain(Sampler.greedy()))
    context.decode([3, 3], pos=[0, 0], seq_ids=[0, 1], outputs=True)
    assert context.sampled_token(0) is None
    assert context.sampled_logits(0) is None
    assert context.sampled_token(1) == expected[0].argmax()
    assert np.allclose(context.logits(0), expected[0], atol=2e-3)


def test_without_samplers(context):
    context.decode(TOKENS)
    assert (context.sampled_token(), context.sampled_probs(), context.sampled_logits()) == (None, None, None)
    assert context.sampled_candidates() is None


def test_attach_once(context):
    chain = SamplerChain(Sampler.greedy())
    context.set_sampler(0, chain)
    for seq in (0, 1):
        with pytest.raises(InvalidRequest, match=r"clone\(\)"):
            context.set_sampler(seq, chain)
    context.set_sampler(0, None)
    for use in (lambda: context.set_sampler(0, chain), lambda: chain.apply([1], [1.0]), lambda: chain.sample(context),
                chain.reset):  # fmt: skip
        with pytest.raises(InvalidRequest, match=r"clone\(\)"):
            use()
    copy = chain.clone()
    context.decode(TOKENS)
    first = copy.sample(context)
    context.set_sampler(0, copy)
    context.memory.clear()
    context.decode(TOKENS)
    assert context.sampled_token() == first


def test_replacing(context):
    first, second = SamplerChain(Sampler.greedy()), SamplerChain(Sampler.greedy())
    context.set_sampler(0, first)
    context.set_sampler(0, second)
    with pytest.raises(InvalidRequest, match=r"clone\(\)"):
        first.apply([1], [1.0])
    context.decode(TOKENS)
    assert context.sampled_token() is not None
    context.set_sampler(1, None)
    context.set_sampler(0, None)
    context.memory.clear()
    context.decode(TOKENS)
    assert context.sampled_token() is None


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ((), "1 to 32 members"),
        ((40, 50), r"top_k\(50\) in a graph needs 50 candidates; there are 40 left"),
        ((257,), "there are 256 left"),
        ((3,) * 33, "1 to 32 members"),
    ],
)
def test_chains_the_graph_cannot_take(context, members, message):
    """ggml ends the process for each."""
    chain = SamplerChain(*(Sampler.top_k(k) for k in members))
    with pytest.raises(InvalidRequest, match=message):
        context.set_sampler(0, chain)
    context.decode(TOKENS)
    if members:
        chain.apply([1], [1.0])  # it was not used up


def test_a_long_chain(context):
    assert context.set_sampler(0, SamplerChain(*(Sampler.temp_ext(1.0, 0.5, 1.0) for _ in range(31)), Sampler.dist(1)))
    context.decode(TOKENS)
    assert context.sampled_token() is not None


def test_every_sampler_of_the_backend(context, llama):
    vocab = llama.vocab
    chain = SamplerChain(
        Sampler.logit_bias(vocab, {5: 3.0, 6: -np.inf}), Sampler.top_k(100), Sampler.top_p(0.95), Sampler.min_p(0.01),
        Sampler.temp_ext(0.9, 0.2, 1.0), Sampler.temp(1.1), Sampler.dist(3),
    )  # fmt: skip
    context.set_sampler(0, chain)
    for token in TOKENS:
        context.decode([token])
        picked = chain.sample(context)
        assert picked == context.sampled_token()
        assert picked != 6


def test_penalties_on_the_backend(llama):
    chain = SamplerChain(Sampler.penalties(llama.vocab, 16, 2.0, 0.5, 5.0), Sampler.greedy())
    same = chain.clone()
    with (
        Context(llama, n_ctx=256, n_threads=1, samplers={0: chain}) as context,
        Context(llama, n_ctx=256, n_threads=1) as plain,
    ):
        token = 3
        for _ in range(12):
            context.decode([token])
            plain.decode([token])
            picked = chain.sample(context)
            assert picked == same.sample(plain)
            token = picked


def test_a_chain_for_another_vocabulary(context, tiny):
    with Model(tiny("llama-spm")) as other:
        chain = SamplerChain(Sampler.penalties(other.vocab, 8, 1.5), Sampler.greedy())
        with pytest.raises(InvalidRequest, match="vocabulary of 323 tokens"):
            context.set_sampler(0, chain)


@pytest.mark.parametrize("seq", [-1, 2, "a"])
def test_sequences_out_of_range(context, seq):
    with pytest.raises(InvalidRequest):
        context.set_sampler(seq, SamplerChain(Sampler.greedy()))


def test_what_is_no_chain(context):
    with pytest.raises(TypeError):
        context.set_sampler(0, Sampler.greedy())


def test_attached_chains_do_not_change(context):
    chain = SamplerChain(Sampler.top_k(5), Sampler.greedy())
    context.set_sampler(0, chain)
    for change in (lambda: chain.add(Sampler.greedy()), lambda: chain.remove(0)):
        with pytest.raises(InvalidRequest, match="detach it"):
            change()


def test_another_context_with_an_attached_chain(context, llama):
    chain = SamplerChain(Sampler.greedy())
    context.set_sampler(0, chain)
    with Context(llama, n_ctx=256, n_threads=1) as other:
        other.decode(TOKENS)
        with pytest.raises(InvalidRequest, match="another context"):
            chain.sample(other)


def test_attaching_after_a_computation(tiny):
    """Rows that libllama has not sorted yet: it would sort the new sampler's results with them, which are not there."""
    with (
        Model(tiny("qwen35")) as model,
        Context(model, n_ctx=768, n_seq_max=3, kv_unified=True, n_threads=1) as context,
    ):
        batch = Batch(context)
        for i in range(4):
            for seq in (1, 2):
                batch.add(3 + seq, i, seq, True)
        context.process(batch)
        context.set_sampler(0, SamplerChain(Sampler.greedy()))
        rows = [context.logits(i).copy() for i in range(8)]
        with Context(model, n_ctx=256, n_threads=1) as plain:
            plain.decode([4] * 4, outputs=True)
            assert all(np.allclose(rows[2 * i], plain.logits(i), atol=2e-2) for i in range(4))


def test_results_in_use(context):
    context.decode(TOKENS)
    row = context.logits()
    with pytest.raises(BufferInUse):
        context.set_sampler(0, SamplerChain(Sampler.greedy()))
    del row


# -- who frees what ----------------------------------------------------------------------------------------


def test_closing_an_attached_chain_detaches_it(context):
    chain = SamplerChain(Sampler.greedy())
    context.set_sampler(0, chain)
    context.decode(TOKENS)
    chain.close()
    assert chain.closed
    context.memory.clear()
    context.decode(TOKENS)
    assert context.sampled_token() is None


def test_closing_the_context_lets_the_chain_go(llama):
    chain = SamplerChain(Sampler.greedy())
    context = Context(llama, n_ctx=256, n_threads=1, samplers={0: chain})
    context.close()
    with pytest.raises(InvalidRequest, match=r"clone\(\)"):
        chain.apply([1], [1.0])
    assert chain.clone().apply([1, 2], [1.0, 2.0])[3] == 1
    chain.close()


def test_a_context_keeps_its_chains(context):
    context.set_sampler(0, SamplerChain(Sampler.greedy()))
    gc.collect()
    context.decode(TOKENS)
    assert context.sampled_token() is not None


def test_dropped_together(llama):
    chain = SamplerChain(Sampler.greedy())
    context = Context(llama, n_ctx=256, n_threads=1, samplers={0: chain})
    alive = weakref.ref(context), weakref.ref(chain)
    del context, chain
    gc.collect()
    assert [each() for each in alive] == [None, None]
