"""Who keeps what alive: closing in any order, cycles, results without copies, memory given back."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import numpy as np
import pytest
from heap import in_use

from pyspec._llama import Batch, Context, Model, Sampler, SamplerChain
from pyspec.errors import BufferInUse, Closed


@pytest.fixture(scope="module")
def llama(tiny):
    with Model(tiny("llama")) as model:
        yield model


# -- closing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["model", "context", "batch", "chain", "vocab"])), ids="-".join
)
def test_any_order(tiny, order):
    model = Model(tiny("llama"))
    context = Context(model, n_ctx=256, n_threads=1)
    batch = Batch(context)
    batch.add(1, 0, 0, True)
    chain = SamplerChain(Sampler.penalties(model.vocab, 8, 1.1), Sampler.greedy())
    context.set_sampler(0, chain)
    context.process(batch)
    things = {"model": model, "context": context, "batch": batch, "chain": chain, "vocab": model.vocab}
    del model, context, batch, chain
    for name in order:
        thing = things.pop(name)
        if hasattr(thing, "close"):
            thing.close()
        del thing
        gc.collect()


def test_a_context_outlives_its_model(tiny):
    model = Model(tiny("llama"))
    context = Context(model, n_ctx=256, n_threads=1)
    model.close()
    context.decode([1, 2, 3])
    assert context.model is model
    with pytest.raises(Closed):
        Context(model)
    context.close()


def test_closed_contexts(llama):
    context = Context(llama, n_ctx=256)
    batch = Batch(context)
    memory = context.memory
    batch.add(1, 0, 0)
    context.close()
    context.close()
    assert context.closed
    assert "closed" in repr(context)
    for use in (
        lambda: context.decode([1]), lambda: context.process(batch), lambda: context.encode(batch), context.synchronize,
        lambda: context.logits(), lambda: context.embeddings(), lambda: context.embeddings_seq(0),
        lambda: context.embeddings_nextn(0), lambda: context.sampled_token(), lambda: context.memory.clear(),
        lambda: memory.pos_max(0), lambda: context.state_get(), lambda: context.state_seq_get(0),
        lambda: context.set_sampler(0, None), lambda: context.n_threads, lambda: context.set_n_threads(1),
        lambda: context.set_embeddings(True), lambda: context.set_causal_attn(True), lambda: context.perf(),
        context.memory_breakdown, context.reset_perf, context.__enter__, lambda: Batch(context),
        lambda: context.set_nextn_layer_offset(0), lambda: context.set_embeddings_layer_inp(0, True),
        lambda: SamplerChain(Sampler.greedy()).sample(context),
    ):  # fmt: skip
        with pytest.raises(Closed):
            use()
    context.abort()
    context.clear_abort()


def test_init_twice(llama):
    context = Context(llama, n_ctx=256)
    with pytest.raises(RuntimeError, match="twice"):
        context.__init__(llama)
    batch = Batch(context)
    with pytest.raises(RuntimeError, match="twice"):
        batch.__init__(context)
    chain = SamplerChain()
    with pytest.raises(RuntimeError, match="twice"):
        chain.__init__()


# -- results without copies --------------------------------------------------------------------------------


def test_rows_are_not_copied_and_read_only(llama):
    with Context(llama, n_ctx=256, n_threads=1) as context:
        context.decode([1, 2, 3], outputs=True)
        row, same = context.logits(0), context.logits(0)
        assert row.dtype == np.float32
        assert np.shares_memory(row, same)
        assert not row.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            row[0] = 1
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            row.flags.writeable = True
        del row, same


def test_rows_in_use_are_not_overwritten(llama):
    with Context(llama, n_ctx=256, n_threads=1) as context:
        context.decode([1, 2, 3])
        batch = Batch(context)
        batch.add(1, 3, 0)
        row = context.logits()
        part = row[5:10].reshape(5, 1)
        del row
        expected = part.copy()
        for use in (lambda: context.decode([1]), lambda: context.process(batch), lambda: context.set_sampler(0, None)):
            with pytest.raises(BufferInUse, match=r"1 array.*copy\(\)"):
                use()
        assert (part == expected).all()
        assert context.memory.pos_max(0) == 2
        del part
        context.decode([1])
        assert context.memory.pos_max(0) == 3


def test_rows_outlive_their_context(tiny):
    model = Model(tiny("llama"))
    context = Context(model, n_ctx=256, n_threads=1)
    context.decode([1, 2, 3])
    row = context.logits()
    expected = row.copy()
    context.close()
    model.close()
    del model
    gc.collect()
    assert context.closed
    assert (row == expected).all()
    del context
    gc.collect()
    assert (row == expected).all()


def test_a_lent_context_outlives_its_closing(tiny):
    """The target of a draft head is closed first."""
    target_model, model = Model(tiny("llama")), Model(tiny("dflash"))
    target = Context(target_model, n_ctx=256, n_threads=1)
    context = Context(model, n_ctx=256, n_threads=1, ctx_other=target)
    target.close()
    target_model.close()
    with pytest.raises(Closed):
        target.decode([1])
    context.decode([1, 2], outputs=True)
    assert np.isfinite(context.logits()).all()
    context.close()


# -- cycles ------------------------------------------------------------------------------------------------


def test_cycles_are_freed(tiny):
    class Owner:
        pass

    owner = Owner()
    owner.model = Model(tiny("llama"))
    owner.model.owner = owner
    owner.context = Context(owner.model, n_ctx=256, n_threads=1)
    owner.context.decode([1])
    owner.batch = Batch(owner.context)
    owner.chain = SamplerChain(Sampler.greedy())
    owner.context.set_sampler(0, owner.chain)
    owner.rows = [owner.context.embeddings, owner.context.memory]
    alive = [weakref.ref(each) for each in (owner, owner.context, owner.chain)]
    del owner
    gc.collect()
    assert [each() for each in alive] == [None] * 3


def test_subclasses_in_cycles(tiny):
    class Own(Context):
        pass

    with Model(tiny("llama")) as model:
        context = Own(model, n_ctx=256, n_threads=1)
        context.decode([1])
        context.itself = context
        alive = weakref.ref(context)
        del context
        gc.collect()
        assert alive() is None


# -- memory ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_memory_is_given_back(tiny):
    """Opening, using and closing everything again and again takes no more memory."""

    def cycle() -> None:
        with Model(tiny("gemma3"), load_mode="none") as model, Context(model, n_ctx=4096, n_threads=1) as context:
            chain = SamplerChain(Sampler.top_k(5), Sampler.dist(1))
            context.set_sampler(0, chain)
            batch = Batch(context)
            for i in range(64):
                batch.add(i, i, 0, i == 63)
            context.process(batch)
            context.logits()
            state = context.state_seq_get(0)
            context.state_seq_set(state, 0)
            context.state_seq_get(0, on_device=True)
            model.vocab.tokenize("hello")

    for _ in range(10):
        cycle()
    gc.collect()
    before = in_use()
    for _ in range(40):
        cycle()
    gc.collect()
    assert in_use() - before < 1 << 20


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_a_refilled_batch_takes_no_memory(llama):
    with Context(llama, n_ctx=256, n_batch=64, n_threads=1) as context:
        batch = Batch(context)

        def refill(times: int) -> None:
            for _ in range(times):
                batch.clear()
                for i in range(64):
                    batch.add(i, i, 0, i == 63)

        refill(200)
        before = in_use()
        refill(3000)
        assert in_use() - before < 1 << 18


def test_contexts_are_freed_with_the_real_model(smollm2):
    """20 open-generate-close cycles, in a process of its own so that nothing else counts."""
    script = """
        import gc, sys
        from heap import in_use
        from pyspec._llama import *
        sizes = []
        for _ in range(20):
            with Model(sys.argv[1]) as model, Context(model, n_ctx=1024, n_outputs_max=8) as context:
                chain = SamplerChain(Sampler.top_k(40), Sampler.dist(1))
                context.decode(model.vocab.tokenize("Once upon a time"))
                for _ in range(5):
                    context.decode([chain.sample(context)])
            gc.collect()
            trim_memory()
            sizes.append(in_use())
        print((max(sizes[3:]) - sizes[2]) >> 10)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(smollm2)],
        capture_output=True, text=True, timeout=300, check=True, cwd=Path(__file__).parent,
    )  # fmt: skip
    assert int(result.stdout) < 1 << 10
