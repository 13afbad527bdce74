"""Samplers by themselves and in chains: against their definitions, against each other, and with bad arguments."""

from __future__ import annotations

import gc
import math
import os
import threading

import numpy as np
import pytest

from pyspec._llama import Context, Model, Sampler, SamplerChain
from pyspec.errors import Closed, DecodeError, GrammarError, InvalidRequest, UnsupportedModel

N = 64


@pytest.fixture(scope="module")
def vocab(tiny):
    with Model(tiny("llama-spm")) as model:
        yield model.vocab


@pytest.fixture(scope="module")
def spm(tiny):
    with Model(tiny("llama-spm")) as model:
        yield model


@pytest.fixture
def row():
    return np.random.default_rng(5).normal(0, 3, N).astype(np.float32)


def apply(sampler: Sampler, row: np.ndarray):
    """What is left of a row: ids in ascending order with their logits, and the id that was picked."""
    ids, logits, _, picked = sampler.apply(np.arange(len(row)), row)
    order = np.argsort(ids)
    kept = logits[order] > -np.inf
    return ids[order][kept], logits[order][kept], None if picked is None else int(ids[picked])


def softmax(row):
    p = np.exp(row - row.max())
    return p / p.sum()


# -- each sampler against its definition -------------------------------------------------------------------


def test_greedy(row):
    ids, _, picked = apply(Sampler.greedy(), row)
    assert (len(ids), picked) == (N, row.argmax())


@pytest.mark.parametrize("k", [-5, 0, 1, 7, N, 1000])
def test_top_k(row, k):
    ids, logits, picked = apply(Sampler.top_k(k), row)
    expected = np.sort(np.argsort(-row)[: k if k > 0 else N])
    assert (ids == expected).all()
    assert (logits == row[expected]).all()
    assert picked is None


@pytest.mark.parametrize("p", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("min_keep", [0, 1, 5])
def test_top_p(row, p, min_keep):
    order = np.argsort(-row)
    total = np.cumsum(softmax(row)[order])
    n = N if p >= 1 else max(1, min_keep, int((total < p).sum()) + 1)
    assert (apply(Sampler.top_p(p, min_keep), row)[0] == np.sort(order[:n])).all()


@pytest.mark.parametrize("p", [0.0, 0.05, 0.5, 1.0])
def test_min_p(row, p):
    expected = np.flatnonzero(softmax(row) >= p * softmax(row).max() * (1 - 1e-6))
    assert (apply(Sampler.min_p(p), row)[0] == expected).all()
    assert len(apply(Sampler.min_p(p, min_keep=9), row)[0]) == max(9, len(expected))


def test_typical(row):
    p = softmax(row)
    surprise = -np.log(p)
    order = np.argsort(np.abs(surprise - (p * surprise).sum()))
    n = int((np.cumsum(p[order]) <= 0.5).sum()) + 1
    assert (apply(Sampler.typical(0.5), row)[0] == np.sort(order[:n])).all()


@pytest.mark.parametrize("t", [-1.0, 0.0, 0.5, 2.0])
def test_temp(row, t):
    ids, logits, _ = apply(Sampler.temp(t), row)
    if t <= 0:
        assert (list(ids), list(logits)) == ([row.argmax()], [row.max()])
    else:
        assert np.allclose(logits, row / t)
    assert np.allclose(apply(Sampler.temp_ext(t, 0.0, 1.0), row)[1], logits)


def test_dynamic_temperature(row):
    p = softmax(row)
    entropy = -(p * np.log(p)).sum() / math.log(N)
    _, logits, _ = apply(Sampler.temp_ext(1.0, 0.5, 2.0), row)
    assert np.allclose(logits, row / (0.5 + entropy**2), rtol=1e-4)


def test_xtc(row):
    above = np.flatnonzero(softmax(row) >= 0.02)
    assert len(above) > 1
    ids = apply(Sampler.xtc(1.0, 0.02, 1, 1), row)[0]
    removed = set(range(N)) - set(ids)
    assert removed == set(above) - {above[np.argmin(row[above])]}
    assert len(apply(Sampler.xtc(0.0, 0.1, 1, 1), row)[0]) == N


def test_top_n_sigma(row):
    ids = apply(Sampler.top_n_sigma(1.0), row)[0]
    assert (ids == np.flatnonzero(row >= row.max() - row.std())).all()
    assert len(apply(Sampler.top_n_sigma(0.0), row)[0]) == N


def test_dist_draws_by_probability():
    row = np.log(np.array([0.5, 0.3, 0.2, 1e-9], np.float32))
    sampler = Sampler.dist(7)
    drawn = np.bincount([apply(sampler, row)[2] for _ in range(4000)], minlength=4) / 4000
    assert np.allclose(drawn, [0.5, 0.3, 0.2, 0], atol=0.03)


def test_seeds():
    row = np.zeros(N, np.float32)

    def draws(sampler: Sampler, n: int = 20) -> list[int | None]:
        return [apply(sampler, row)[2] for _ in range(n)]

    assert draws(Sampler.dist(1)) == draws(Sampler.dist(1)) != draws(Sampler.dist(2))
    sampler = Sampler.dist(3)
    first = draws(sampler)
    assert draws(sampler) != first
    sampler.reset()
    assert draws(sampler) == first
    assert sampler.seed == 3
    assert Sampler.top_k(3).seed is None
    assert SamplerChain(Sampler.top_k(2), Sampler.dist(9)).seed == 9
    random = Sampler.dist(0xFFFFFFFF)
    assert draws(random) != draws(Sampler.dist(0xFFFFFFFF))


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat(vocab, row, version):
    sampler = Sampler.mirostat(vocab, 1, 5.0, 0.1) if version == 1 else Sampler.mirostat_v2(1, 5.0, 0.1)
    assert all(apply(sampler, row)[2] is not None for _ in range(50))


def test_adaptive_p(row):
    sampler = Sampler.adaptive_p(0.3, 0.9, 1)
    for _ in range(50):
        picked = apply(sampler, row)[2]
        sampler.accept(picked)
    assert apply(Sampler.adaptive_p(-1.0, 0.9, 1), row)[2] is not None


def test_penalties(vocab, row):
    sampler = Sampler.penalties(vocab, 3, repeat=1.5, freq=0.25, present=0.5)
    for token in (9, 5, 6, 5):  # the 9 falls out of the window
        sampler.accept(token)
    _, logits, _ = apply(sampler, row)
    expected = row.copy()
    for token, count in ((5, 2), (6, 1)):
        expected[token] = row[token] * 1.5 if row[token] <= 0 else row[token] / 1.5
        expected[token] -= 0.25 * count + 0.5
    assert np.allclose(logits, expected)
    sampler.reset()
    assert (apply(sampler, row)[1] == row).all()
    assert Sampler.penalties(vocab, 0, 1.5).name == "?penalties"


def test_dry(vocab, row):
    sampler = Sampler.dry(vocab, 1.0, 2.0, 2, 20, ["\n"])
    for token in (300, 301, 302, 40, 300, 301):
        sampler.accept(token)
    padded = np.zeros(vocab.n_tokens, np.float32)
    _, logits, _ = apply(sampler, padded)
    assert logits[302] == -1.0
    assert np.count_nonzero(logits) == 1
    assert Sampler.dry(vocab, 0.0, 2.0, 2, 20).name == "?dry"


def test_logit_bias(vocab, row):
    ids, logits, _ = apply(Sampler.logit_bias(vocab, {3: 5.0, 4: -math.inf}), row)
    assert 4 not in ids
    assert logits[3] == row[3] + 5.0
    assert len(apply(Sampler.logit_bias(vocab, [(3, 1.0)]), row)[0]) == N
    assert (apply(Sampler.logit_bias(vocab, {}), row)[1] == row).all()


def test_infill(spm):
    sampler = Sampler.infill(spm.vocab)
    ids, _, _, picked = sampler.apply([300, 301, 2], [1.0, 0.5, -3.0])
    assert len(ids) >= 1
    assert picked is None


# -- arguments ---------------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        ("dist", (-1,)), ("dist", (1 << 32,)), ("dist", ("a",)), ("dist", (1.5,)), ("dist", (None,)),
        ("top_k", (1 << 40,)), ("top_k", (1.5,)), ("top_p", (NAN,)), ("top_p", (1.1,)), ("top_p", (-0.1,)),
        ("top_p", (0.5, -1)), ("min_p", (NAN,)), ("min_p", (2,)), ("typical", (NAN,)), ("typical", (-1,)),
        ("temp", (NAN,)), ("temp", (INF,)), ("temp", (1e39,)), ("temp", ("hot",)), ("temp_ext", (1.0, NAN, 1.0)),
        ("temp_ext", (1.0, -1.0, 1.0)), ("temp_ext", (1.0, 1.0, INF)), ("xtc", (2.0, 0.1, 1, 1)),
        ("xtc", (0.5, NAN, 1, 1)), ("xtc", (0.5, 0.1, -1, 1)), ("xtc", (0.5, 0.1, 1, -1)), ("top_n_sigma", (NAN,)),
        ("top_n_sigma", (INF,)), ("mirostat_v2", (1, NAN, 0.1)), ("mirostat_v2", (1, 5.0, -0.1)),
        ("mirostat_v2", (1, -5.0, 0.1)), ("adaptive_p", (1.5, 0.9, 1)), ("adaptive_p", (0.5, 1.0, 1)),
        ("adaptive_p", (NAN, 0.9, 1)),
    ],
    ids=str,
)  # fmt: skip
def test_arguments_out_of_range(make, arguments):
    with pytest.raises(InvalidRequest):
        getattr(Sampler, make)(*arguments)


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        ("penalties", (-1, 1.0)), ("penalties", (1 << 30, 1.1)), ("penalties", (64, 0.0)), ("penalties", (64, -1.0)),
        ("penalties", (64, NAN)), ("penalties", (64, 1.0, INF)), ("penalties", (64, 1.0, 0.0, NAN)),
        ("dry", (NAN, 1.75, 2, 64)), ("dry", (-1.0, 1.75, 2, 64)), ("dry", (0.8, INF, 2, 64)),
        ("dry", (0.8, 1.75, -1, 64)), ("dry", (0.8, 1.75, 2, -1)), ("dry", (0.8, 1.75, 2, 64, "\n")),
        ("dry", (0.8, 1.75, 2, 64, [""])), ("dry", (0.8, 1.75, 2, 64, ["a\0b"])), ("dry", (0.8, 1.75, 2, 64, [3])),
        ("mirostat", (1, NAN, 0.1)), ("mirostat", (1, 5.0, 0.1, 1)), ("logit_bias", ({-1: 1.0},)),
        ("logit_bias", ({1 << 20: 1.0},)), ("logit_bias", ({1: NAN},)), ("logit_bias", ({1: INF},)),
        ("logit_bias", ({"a": 1.0},)), ("logit_bias", (3,)), ("logit_bias", ([1, 2],)),
    ],
    ids=str,
)  # fmt: skip
def test_arguments_with_a_vocabulary(vocab, make, arguments):
    with pytest.raises(InvalidRequest):
        getattr(Sampler, make)(vocab, *arguments)


@pytest.mark.parametrize("make", ["mirostat", "grammar", "penalties", "dry", "logit_bias", "infill", "grammar_lazy"])
def test_a_vocabulary_is_needed(make):
    with pytest.raises(TypeError):
        getattr(Sampler, make)(None, 1, 1, 1)


@pytest.mark.parametrize(
    ("ids", "logits"),
    [
        ([], []), ([1, 2], [1.0]), ([[1]], [[1.0]]), ([1], [NAN]), ([1], [INF]), ([-1], [1.0]), (["a"], [1.0]),
        ([1 << 40], [1.0]), (None, None),
    ],
    ids=str,
)  # fmt: skip
def test_candidates_that_cannot_be(ids, logits):
    with pytest.raises(InvalidRequest):
        Sampler.top_k(3).apply(ids, logits)


def test_infill_needs_an_end(tiny):
    with Model(tiny("llama"), kv_overrides={"tokenizer.ggml.eos_token_id": -1}) as model:
        if model.vocab.eos is None and model.vocab.eot is None:
            with pytest.raises(UnsupportedModel, match="end-of"):
                Sampler.infill(model.vocab)


def test_made_by_hand():
    with pytest.raises(TypeError, match="class methods"):
        Sampler()


@pytest.mark.parametrize("token", [-1, 1 << 31, "a", None])
def test_accepting_what_is_no_token(vocab, token):
    for sampler in (Sampler.greedy(), Sampler.adaptive_p(0.5, 0.9, 1), Sampler.penalties(vocab, 9, 1.1)):
        with pytest.raises(InvalidRequest):
            sampler.accept(token)
    with pytest.raises(InvalidRequest):
        Sampler.penalties(vocab, 9, 1.1).accept(vocab.n_tokens)


# -- grammars ----------------------------------------------------------------------------------------------

YES_NO = 'root ::= "yes" | "no"'


def ids_of(vocab, text: str) -> list[int]:
    """Byte tokens that spell a text."""
    return [3 + byte for byte in text.encode()]


def allowed(sampler: Sampler, vocab) -> set[str]:
    ids, logits, _, _ = sampler.apply(np.arange(vocab.n_tokens), np.zeros(vocab.n_tokens))
    return {vocab.piece(int(i)).decode("latin-1") for i, logit in zip(ids, logits, strict=True) if logit == 0}


def test_grammar(vocab):
    sampler = Sampler.grammar(vocab, YES_NO)
    assert allowed(sampler, vocab) == {"y", "n"}
    for token in ids_of(vocab, "ye"):
        sampler.accept(token)
    assert allowed(sampler, vocab) == {"s"}
    sampler.accept(ids_of(vocab, "s")[0])
    assert allowed(sampler, vocab) == {"</s>", "<|im_end|>"}
    sampler.accept(vocab.eos)
    sampler.reset()
    assert allowed(sampler, vocab) == {"y", "n"}


def test_accepting_what_does_not_fit(vocab):
    """In libllama one ends the process, the other breaks the grammar; here the grammar is as before."""
    sampler = Sampler.grammar(vocab, YES_NO)
    for token in (vocab.eos, *ids_of(vocab, "x"), vocab.bos, 3):
        with pytest.raises(GrammarError, match="does not fit"):
            sampler.accept(token)
    for token in ids_of(vocab, "no"):
        sampler.accept(token)
    with pytest.raises(GrammarError):
        sampler.accept(ids_of(vocab, "o")[0])
    sampler.accept(vocab.eos)


def test_multi_byte_characters(vocab):
    sampler = Sampler.grammar(vocab, 'root ::= [äöü] "🙂"')
    for token in ids_of(vocab, "ö🙂"):
        sampler.accept(token)
    with pytest.raises(GrammarError):
        Sampler.grammar(vocab, "root ::= [äöü]").accept(3 + 0xE4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"), ("  \n", "empty"), ("root", "expecting ::="), ('root ::= "a', "end"),
        ("root ::= (", "expecting"),
        ("root ::= [a", "end"), ("root ::= x", "Undefined rule identifier 'x'"), ("root ::= root", "left recursion"),
        ('root ::= a\na ::= a "b" | "c"', "left recursion"), ('start ::= "a"', "'root' symbol"),
        ("root ::= )", ""), ("root ::= *", ""), ("root ::= \\", ""), ("root ::= [\\", ""), ("::= 1", "name"),
        ('root ::= "a"{99999}', "repetitions"), ("root ::= <[99999999999]>", ""), ("root ::= <|no such token|>", ""),
        ("root ::= " + "(" * 300 + '"a"' + ")" * 300, "parentheses"),
        ('root ::= "a"\n' + "".join(f'r{i} ::= "a"\n' for i in range(8000)), "rules"),
    ],
    ids=lambda x: x[:20],
)  # fmt: skip
def test_grammars_that_cannot_be_parsed(vocab, capfd, text, message):
    with pytest.raises(GrammarError, match=message or None):
        Sampler.grammar(vocab, text)
    assert capfd.readouterr().err == ""
    assert allowed(Sampler.grammar(vocab, YES_NO), vocab) == {"y", "n"}


def test_grammar_arguments(vocab):
    for text, root in ((None, "root"), (3, "root"), (YES_NO, None), ("a\0b", "root"), (YES_NO, "ro\0ot")):
        with pytest.raises(InvalidRequest):
            Sampler.grammar(vocab, text, root)
    with pytest.raises(GrammarError, match="'other' symbol"):
        Sampler.grammar(vocab, YES_NO, "other")
    assert allowed(Sampler.grammar(vocab, 'a ::= "x"\n' + YES_NO, "a"), vocab) == {"x"}


def rules_in_a_row(n):
    return "root ::= r1\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(1, n - 1)) + f'r{n - 1} ::= "z"\n'


def test_deep_but_allowed_grammar(vocab):
    text = "root ::= " + "(" * 200 + '"a"' + ")" * 200
    assert allowed(Sampler.grammar(vocab, text), vocab) == {"a"}
    assert allowed(Sampler.grammar(vocab, rules_in_a_row(8000)), vocab) == {"z"}
    with pytest.raises(GrammarError, match="more than 8000 rules"):
        Sampler.grammar(vocab, rules_in_a_row(8001))


def test_deep_grammar_in_a_thread_with_little_stack(vocab):
    done = []
    before = threading.stack_size(1024 * 1024)
    try:
        thread = threading.Thread(target=lambda: done.append(Sampler.grammar(vocab, rules_in_a_row(8000)).name))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert done == ["grammar"]


def test_other_output_on_stderr_is_kept(vocab, capfd):
    os.write(2, b"before ")
    with pytest.raises(GrammarError):
        Sampler.grammar(vocab, "root ::= (")
    os.write(2, b"after")
    assert capfd.readouterr().err == "before after"


def test_lazy_grammar(vocab):
    sampler = Sampler.grammar_lazy(vocab, YES_NO, trigger_patterns=["[^:]*:(.+)"])
    everything = len(allowed(sampler, vocab))
    assert everything > 100
    for token in ids_of(vocab, "ok:y"):
        assert len(allowed(sampler, vocab)) == everything
        sampler.accept(token)
    assert allowed(sampler, vocab) == {"e"}
    sampler.reset()
    assert len(allowed(sampler, vocab)) == everything
    by_token = Sampler.grammar_lazy(vocab, 'root ::= "!" "a"', trigger_tokens=ids_of(vocab, "!"))
    by_token.accept(300)
    by_token.accept(ids_of(vocab, "!")[0])
    assert allowed(by_token, vocab) == {"a"}


def test_a_trigger_that_contradicts_the_grammar(vocab):
    """Accepting the trigger breaks the grammar: it says so until it is reset."""
    sampler = Sampler.grammar_lazy(vocab, YES_NO, trigger_tokens=ids_of(vocab, "!"))
    with pytest.raises(GrammarError, match="does not fit"):
        sampler.accept(ids_of(vocab, "!")[0])
    for use in (lambda: allowed(sampler, vocab), lambda: sampler.accept(5)):
        with pytest.raises(InvalidRequest, match="reset"):
            use()
    sampler.reset()
    assert len(allowed(sampler, vocab)) > 100


def test_lazy_grammar_arguments(vocab):
    with pytest.raises(InvalidRequest, match="needs trigger"):
        Sampler.grammar_lazy(vocab, YES_NO)
    with pytest.raises(GrammarError, match="trigger pattern"):
        Sampler.grammar_lazy(vocab, YES_NO, trigger_patterns=["(unclosed"])
    with pytest.raises(InvalidRequest):
        Sampler.grammar_lazy(vocab, YES_NO, trigger_tokens=[vocab.n_tokens])


# -- chains ------------------------------------------------------------------------------------------------


def test_a_chain_owns_its_members(row):
    top = Sampler.top_k(5)
    chain = SamplerChain(top)
    assert chain.add(Sampler.greedy()) is chain
    assert len(chain) == 2
    assert [chain.get(0), chain.get(1)] == ["top-k", "greedy"]
    assert chain.has_selector
    for use in (lambda: top.apply([1], [1.0]), lambda: chain.add(top), lambda: top.clone(), lambda: top.accept(1)):
        with pytest.raises(Closed):
            use()
    assert apply(chain, row)[2] == row.argmax()
    taken = chain.remove(1)
    assert not chain.has_selector
    assert taken.name == "greedy"
    assert apply(taken, row)[2] == row.argmax()
    with pytest.raises(InvalidRequest):
        chain.remove(1)
    with pytest.raises(InvalidRequest):
        chain.get(-1)
    with pytest.raises(InvalidRequest, match="member of a chain"):
        chain.add(SamplerChain())
    with pytest.raises(TypeError):
        chain.add(None)


def test_clones_are_independent(vocab, row):
    chain = SamplerChain(Sampler.penalties(vocab, 8, 1.5), Sampler.dist(1))
    chain.accept(3)
    copy = chain.clone()
    copy.accept(5)
    a, b = apply(chain, row)[1], apply(copy, row)[1]
    assert (a[5], a[3]) == (row[5], b[3])
    assert b[5] != row[5]
    chain.close()
    assert apply(copy, row)[2] is not None


def test_state_is_copied_back(vocab, row):
    chain = SamplerChain(Sampler.grammar(vocab, YES_NO), Sampler.penalties(vocab, 8, 1.5), Sampler.dist(1))
    saved = chain.clone()
    for token in ids_of(vocab, "ye"):
        chain.accept(token)
    chain.copy_from(saved)
    for token in ids_of(vocab, "no"):
        chain.accept(token)
    with pytest.raises(InvalidRequest, match="members differ"):
        chain.copy_from(SamplerChain(Sampler.greedy()))
    with pytest.raises(InvalidRequest, match="not a chain"):
        chain.copy_from(Sampler.greedy())
    with pytest.raises(InvalidRequest, match="cannot copy"):
        Sampler.greedy().copy_from(Sampler.dist(1))


def test_adaptive_p_between_pick_and_accept(row):
    """A clone made in between must not look up a probability it does not have."""
    chain = SamplerChain(Sampler.adaptive_p(0.3, 0.9, 1))
    picked = apply(chain, row)[2]
    copy = chain.clone()
    copy.accept(picked)
    chain.accept(picked)
    fresh = SamplerChain(Sampler.adaptive_p(0.3, 0.9, 2))
    apply(fresh, row)
    fresh.copy_from(chain)
    fresh.accept(picked)


def test_sampling_from_a_context(spm):
    with Context(spm, n_ctx=256, n_threads=1) as context:
        context.decode([1, 300, 301], outputs=True)
        chain = SamplerChain(Sampler.top_k(40), Sampler.greedy())
        for i in (0, 1, 2, -1):
            assert chain.sample(context, i) == context.logits(i).argmax()
        with pytest.raises(InvalidRequest, match="no last member that picks"):
            SamplerChain(Sampler.top_k(40)).sample(context)
        with pytest.raises(InvalidRequest, match="no last member that picks"):
            SamplerChain().sample(context)
        with pytest.raises(InvalidRequest, match="no logits"):
            chain.sample(context, 5)
        nothing = SamplerChain(
            Sampler.logit_bias(spm.vocab, dict.fromkeys(range(spm.vocab.n_tokens), -INF)), Sampler.dist(1)
        )
        with pytest.raises(InvalidRequest, match="removes every candidate"):
            nothing.sample(context)


def test_sampling_with_a_grammar(spm):
    with Context(spm, n_ctx=256, n_threads=1) as context:
        chain = SamplerChain(Sampler.grammar(spm.vocab, 'root ::= [a-z]{3} "!"'), Sampler.dist(1))
        context.decode([1])
        tokens = []
        while not spm.vocab.is_eog(token := chain.sample(context)):
            tokens.append(token)
            context.decode([token])
        text = spm.vocab.detokenize(tokens).decode()
        assert len(text) == 4
        assert text[:3].islower()
        assert text[3] == "!"


def test_a_chain_for_another_vocabulary(spm, tiny):
    with Model(tiny("llama")) as model, Context(model, n_ctx=256, n_threads=1) as context:
        context.decode([1])
        chain = SamplerChain(Sampler.penalties(spm.vocab, 8, 1.5), Sampler.greedy())
        with pytest.raises(InvalidRequest, match="vocabulary of 323 tokens"):
            chain.sample(context)


def test_nan_in_the_logits(tmp_path):
    """A broken model: sorting NaN is undefined behaviour in C++."""
    import tiny_models

    path = tmp_path / "nan.gguf"
    w = tiny_models.Writer(path, "llama", 1)
    w.sizes(1)
    w.test_vocab()
    w.data("token_embd.weight", np.full((256, 64), np.nan, np.float32))
    w.norm("output_norm.weight")
    w.dense_layer(0)
    w.close()
    with Model(path) as model, Context(model, n_ctx=256, n_threads=1) as context:
        context.decode([1])
        with pytest.raises(DecodeError, match="NaN"):
            SamplerChain(Sampler.top_k(200), Sampler.dist(1)).sample(context)


# -- life --------------------------------------------------------------------------------------------------


def test_closed_samplers(row):
    sampler = Sampler.greedy()
    assert not sampler.closed
    with sampler:
        pass
    sampler.close()
    assert sampler.closed
    assert "closed" in repr(sampler)
    for use in (lambda: apply(sampler, row), sampler.reset, sampler.clone, lambda: sampler.accept(1),
                lambda: sampler.seed, sampler.__enter__):  # fmt: skip
        with pytest.raises(Closed):
            use()
    chain = SamplerChain(Sampler.greedy())
    chain.close()
    for use in (lambda: chain.add(Sampler.greedy()), lambda: chain.remove(0), chain.clone, lambda: apply(chain, row)):
        with pytest.raises(Closed):
            use()


def test_samplers_keep_the_vocabulary(tiny, row):
    model = Model(tiny("llama-spm"))
    vocab = model.vocab
    sampler = Sampler.grammar(vocab, YES_NO)
    chain = SamplerChain(sampler.clone(), Sampler.infill(vocab))
    model.close()
    del model, vocab
    gc.collect()
    ids, _, _, _ = sampler.apply(np.arange(100), np.zeros(100))
    assert len(ids) == 100
    taken = chain.remove(0)
    del chain, sampler
    gc.collect()
    taken.apply(np.arange(100), np.zeros(100))
