"""What a context remembers, and making it forget: each kind of memory."""

from __future__ import annotations

import numpy as np
import pytest

from pyspec._llama import Context, Memory, Model
from pyspec.errors import InvalidRequest, UnsupportedModel

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@pytest.fixture(scope="module")
def models(tiny):
    """Models by name, loaded once."""
    loaded: dict[str, Model] = {}

    def get(name: str) -> Model:
        if name not in loaded:
            loaded[name] = Model(tiny(name))
        return loaded[name]

    yield get
    for model in loaded.values():
        model.close()


def context_of(model: Model, **parameters) -> Context:
    return Context(model, **({"n_ctx": 1024, "n_seq_max": 4, "n_threads": 1} | parameters))


def last_row(context: Context, tokens, seq=0) -> np.ndarray:
    context.decode(tokens, seq_ids=seq)
    return context.logits().copy()


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_forgetting_the_end(models, name):
    with context_of(models(name)) as context:
        expected = last_row(context, TOKENS)
        memory = context.memory
        assert (memory.pos_min(0), memory.pos_max(0)) == (0, 11)
        context.decode([7, 7, 7])
        assert memory.seq_rm(0, 8)
        assert memory.pos_max(0) == 7
        assert np.allclose(last_row(context, TOKENS[8:]), expected, atol=2e-3)
        assert memory.seq_rm(0)
        assert (memory.pos_min(0), memory.pos_max(0)) == (-1, -1)


def test_forgetting_of_recurrent_states(models):
    with context_of(models("mamba")) as context:
        context.decode(TOKENS)
        memory = context.memory
        assert (memory.pos_min(0), memory.pos_max(0)) == (11, 11)
        assert not memory.seq_rm(0, 8)
        assert memory.pos_max(0) == 11
        assert memory.seq_rm(0)
        assert memory.pos_max(0) == -1
        assert not memory.seq_rm(-1, 3, 4)
        assert memory.can_shift


def test_rolling_back(models):
    """A hybrid model with snapshots forgets a few tokens of the last decode, once."""
    with context_of(models("qwen35"), n_rs_seq=4, n_seq_max=1, n_outputs_max=1) as context:
        memory = context.memory
        expected = last_row(context, TOKENS)
        assert memory.seq_rm(0, 9)
        assert not memory.seq_rm(0, 8)
        assert np.allclose(last_row(context, TOKENS[9:]), expected, atol=2e-2)
        assert not memory.seq_rm(0, 3)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "qwen35"])
@pytest.mark.parametrize("unified", [False, True])
def test_copying_a_sequence(models, name, unified):
    with context_of(models(name), kv_unified=unified) as context:
        expected = last_row(context, TOKENS)
        context.memory.clear()
        context.decode(TOKENS[:-1], outputs=False)
        context.memory.seq_cp(0, 2)
        assert context.memory.pos_max(2) == 10
        assert np.allclose(last_row(context, TOKENS[-1:], 2), expected, atol=2e-2)
        assert context.memory.pos_max(0) == 10
        context.memory.seq_cp(0, 3, 0, 100)
        assert context.memory.pos_max(3) == 10


def test_copying_a_part(models):
    with context_of(models("llama"), kv_unified=True) as context:
        context.decode(TOKENS)
        context.memory.seq_cp(0, 1, 0, 5)
        assert (context.memory.pos_min(1), context.memory.pos_max(1)) == (0, 4)
    for name, unified in (("llama", False), ("gemma3", False), ("mamba", True), ("qwen35", True)):
        with context_of(models(name), kv_unified=unified) as context:
            context.decode(TOKENS)
            for part in ((0, 5), (3, -1), (3, 100)):
                with pytest.raises(InvalidRequest, match="whole sequences only"):
                    context.memory.seq_cp(0, 1, *part)
            assert context.memory.pos_max(1) == -1
            context.memory.seq_cp(1, 0)  # of an empty one
            context.memory.seq_cp(2, 2, 3, 5)
            context.decode([1], seq_ids=3)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "qwen35"])
@pytest.mark.parametrize("unified", [False, True])
def test_keeping_one_sequence(models, name, unified):
    with context_of(models(name), kv_unified=unified) as context:
        for seq in range(4):
            context.decode(TOKENS[: 5 + seq], seq_ids=seq)
        context.memory.seq_keep(2)
        assert [context.memory.pos_max(seq) for seq in range(4)] == [-1, -1, 6, -1]


def test_shifting(models):
    with context_of(models("llama")) as context:
        memory = context.memory
        assert memory.can_shift
        context.decode(TOKENS)
        memory.seq_rm(0, 2, 5)
        memory.seq_add(0, 5, -1, -3)
        assert memory.pos_max(0) == 8
        context.decode([1])
        memory.seq_add(0, 0, 3, -100)
        assert memory.pos_min(0) == 3
        memory.seq_div(0, 0, -1, 2)
        assert memory.pos_max(0) == 4
        with pytest.raises(InvalidRequest, match="delta"):
            memory.seq_add(0, 0, -1, (1 << 30) - 1)
        with pytest.raises(InvalidRequest):
            memory.seq_div(0, 0, -1, 0)


@pytest.mark.parametrize("name", ["qwen35", "step35", "bert"])
def test_memories_that_cannot_shift(models, name):
    with context_of(models(name)) as context:
        assert not context.memory.can_shift
        context.decode(TOKENS)
        for shift in (lambda: context.memory.seq_add(0, 0, -1, 1), lambda: context.memory.seq_div(0, 0, -1, 2)):
            with pytest.raises(UnsupportedModel, match="can_shift"):
                shift()
        context.decode(TOKENS)


def test_bfloat16_keys_cannot_shift(models):
    """libllama says they can, and ggml ends the process."""
    with context_of(models("llama"), type_k="bf16") as context:
        assert not context.can_shift
        assert not context.memory.can_shift
        context.decode(TOKENS)
        with pytest.raises(UnsupportedModel):
            context.memory.seq_add(0, 0, -1, 1)
        context.decode(TOKENS)


def test_no_memory(models):
    with context_of(models("bert")) as context:
        memory = context.memory
        context.decode(TOKENS)
        assert (memory.pos_min(0), memory.pos_max(0)) == (-1, -1)
        assert memory.seq_rm(0, 3)
        memory.seq_keep(0)
        memory.seq_cp(0, 1)
        memory.clear()


def test_forgetting_everything(models):
    with context_of(models("llama")) as context:
        for seq in range(3):
            context.decode(TOKENS, seq_ids=seq)
        assert context.memory.seq_rm(-1)
        assert [context.memory.pos_max(seq) for seq in range(3)] == [-1, -1, -1]
        context.decode(TOKENS)
        context.memory.clear(data=False)
        assert context.memory.pos_max(0) == -1


@pytest.mark.parametrize("seq", [-1, 4, 1 << 40, "a", None])
def test_sequences_out_of_range(models, seq):
    with context_of(models("llama")) as context:
        memory = context.memory
        for use in (
            lambda: memory.pos_max(seq), lambda: memory.pos_min(seq), lambda: memory.seq_keep(seq),
            lambda: memory.seq_add(seq, 0, -1, 1), lambda: memory.seq_div(seq, 0, -1, 2),
            lambda: memory.seq_cp(seq, 0), lambda: memory.seq_cp(0, seq),
        ):  # fmt: skip
            with pytest.raises(InvalidRequest):
                use()
        if seq != -1:
            with pytest.raises(InvalidRequest):
                memory.seq_rm(seq)


@pytest.mark.parametrize("position", [-2, 1 << 31, None])
def test_positions_out_of_range(models, position):
    with context_of(models("llama")) as context, pytest.raises(InvalidRequest):
        context.memory.seq_rm(0, position)


def test_a_memory_outlives_its_context_harmlessly(models):
    from pyspec.errors import Closed

    context = context_of(models("llama"))
    memory = context.memory
    context.close()
    with pytest.raises(Closed):
        memory.pos_max(0)
    with pytest.raises(TypeError, match=r"Context\.memory"):
        Memory()
