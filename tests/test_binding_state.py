"""Saving and restoring what a context remembers; nothing damaged or foreign gets in."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pyspec._llama import Context, Model
from pyspec.errors import BufferInUse, InvalidRequest, StateError, UnsupportedModel

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8] * 4
KINDS = ["llama", "gemma3", "mamba", "qwen35"]


@pytest.fixture(scope="module")
def models(tiny):
    loaded = {name: Model(tiny(name)) for name in [*KINDS, "llama-tied", "bert"]}
    yield loaded.__getitem__
    for model in loaded.values():
        model.close()


def context_of(model: Model, **parameters) -> Context:
    return Context(model, **({"n_ctx": 768, "n_seq_max": 3, "n_threads": 1} | parameters))


def next_row(context: Context, seq: int = 0) -> np.ndarray:
    context.decode([7], seq_ids=seq)
    return context.logits().copy()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("destination", [0, 2])
def test_a_sequence_and_back(models, name, on_device, destination):
    with context_of(models(name)) as context:
        context.decode(TOKENS, outputs=False)
        state = context.state_seq_get(0, on_device=on_device)
        assert len(state) == context.state_seq_size(0, on_device=on_device)
        expected = next_row(context)
        context.decode([9] * 10)
        context.state_seq_set(state, destination, on_device=on_device)
        assert context.memory.pos_max(destination) == len(TOKENS) - 1
        assert np.allclose(next_row(context, destination), expected, atol=2e-3)


@pytest.mark.parametrize("name", KINDS)
def test_into_another_context(models, name):
    with context_of(models(name)) as first, context_of(models(name), n_ctx=1536) as second:
        first.decode(TOKENS, outputs=False)
        state = first.state_seq_get(0)
        second.decode([1, 2, 3], seq_ids=1)
        second.state_seq_set(bytearray(state), 1)
        assert np.allclose(next_row(second, 1), next_row(first), atol=2e-3)


def test_the_part_that_cannot_be_cut(models):
    """Of a sliding-window model the window, of a hybrid one the recurrent state."""
    for name in ("gemma3", "qwen35"):
        with context_of(models(name)) as context:
            context.decode(TOKENS, outputs=False)
            part, whole = context.state_seq_get(0, partial_only=True), context.state_seq_get(0)
            assert len(part) < len(whole)
            expected = next_row(context)
            context.decode([9] * 3)
            context.state_seq_set(part, 0, partial_only=True)
            assert context.memory.seq_rm(0, len(TOKENS))
            assert np.allclose(next_row(context), expected, atol=2e-3)


@pytest.mark.parametrize("name", KINDS)
def test_everything_and_back(models, name):
    with context_of(models(name)) as context:
        context.decode(TOKENS, outputs=False)
        context.decode(TOKENS[:5], seq_ids=1, outputs=False)
        state = context.state_get()
        assert len(state) == context.state_size()
        expected = next_row(context), next_row(context, 1)
        context.memory.clear()
        context.state_set(memoryview(state))
        assert [context.memory.pos_max(seq) for seq in range(3)] == [len(TOKENS) - 1, 4, -1]
        assert np.allclose(next_row(context), expected[0], atol=2e-3)
        assert np.allclose(next_row(context, 1), expected[1], atol=2e-3)


def test_an_empty_sequence(models):
    for name in KINDS:
        with context_of(models(name)) as context:
            state = context.state_seq_get(1)
            context.decode(TOKENS, outputs=False)
            context.state_seq_set(state, 0)
            assert context.memory.pos_max(0) == -1


def test_files(models, tmp_path):
    path = tmp_path / "état.bin"
    with context_of(models("llama")) as context:
        context.decode(TOKENS, outputs=False)
        size = context.state_seq_save(path, 0, TOKENS)
        assert path.stat().st_size == size
        assert list(tmp_path.iterdir()) == [path]
        expected = next_row(context)
        assert context.state_seq_load(path, 2) == TOKENS
        assert np.allclose(next_row(context, 2), expected, atol=2e-3)
        context.state_seq_save(path, 2)
        assert context.state_seq_load(path, 0) == []
        with pytest.raises(FileNotFoundError):
            context.state_seq_load(tmp_path / "none", 0)
        with pytest.raises(OSError, match="none"):
            context.state_seq_save(tmp_path / "none" / "file", 0)
        with pytest.raises(InvalidRequest):
            context.state_seq_save(path, 0, [256])
        path.write_bytes(b"something else")
        with pytest.raises(StateError, match="truncated"):
            context.state_seq_load(path, 0)


# -- what must not get in ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("on_device", [False, True])
def test_damaged_states(models, name, on_device):
    """Cut anywhere, or with any byte changed: refused, and the sequence is as it was."""
    source = random.Random(3)
    with context_of(models(name)) as context:
        context.decode(TOKENS, outputs=False)
        state = context.state_seq_get(0, on_device=on_device)
        context.decode([5], outputs=False)
        for _ in range(150):
            damaged = bytearray(state)
            if source.random() < 0.3:
                del damaged[source.randrange(len(damaged)) :]
            elif source.random() < 0.2:
                damaged += source.randbytes(source.randrange(1, 100))
            else:
                # Sizes and positions are at the front: most of the damage goes there.
                end = len(damaged) if source.random() < 0.3 else min(len(damaged), 200)
                damaged[source.randrange(end)] ^= 1 << source.randrange(8)
            with pytest.raises(StateError):
                context.state_seq_set(damaged, 0, on_device=on_device)
            assert context.memory.pos_max(0) == len(TOKENS)
        assert np.isfinite(next_row(context)).all()


@pytest.mark.parametrize("data", [b"", b"PSTA", bytes(56), bytes(1000)])
def test_what_is_no_state(models, data):
    with context_of(models("llama")) as context:
        for restore in (context.state_set, lambda data: context.state_seq_set(data, 0)):
            with pytest.raises(StateError):
                restore(data)
        for wrong in (None, "text", 3):
            with pytest.raises(InvalidRequest):
                context.state_seq_set(wrong, 0)


def test_states_of_another_kind(models):
    with context_of(models("llama")) as context, context_of(models("llama-tied")) as other:
        context.decode(TOKENS, outputs=False)
        state, everything = context.state_seq_get(0), context.state_get()
        with pytest.raises(StateError, match="another model"):
            other.state_seq_set(state, 0)
        with pytest.raises(StateError, match="of one sequence"):
            context.state_set(state)
        with pytest.raises(StateError, match="of all sequences"):
            context.state_seq_set(everything, 0)
        with pytest.raises(StateError, match="other flags"):
            context.state_seq_set(state, 0, partial_only=True)
        with pytest.raises(InvalidRequest):
            context.state_seq_set(state, 3)


def test_another_layout(models):
    """Same model, but the memory is organised differently: libllama says no."""
    with context_of(models("llama")) as context, context_of(models("llama"), n_seq_max=2, type_k="f32") as other:
        context.decode(TOKENS, outputs=False)
        other.decode([1, 2, 3], outputs=False)
        with pytest.raises(StateError, match="does not fit this context"):
            other.state_seq_set(context.state_seq_get(0), 0)
        assert other.memory.pos_max(0) == -1
        with pytest.raises(StateError, match="does not fit this context"):
            other.state_set(context.state_get())
        other.decode([1, 2, 3])


def test_more_than_fits(models):
    with (
        context_of(models("llama"), n_seq_max=1) as large,
        context_of(models("llama"), n_seq_max=1, n_ctx=256) as small,
    ):
        large.decode([1] * 500, outputs=False)
        with pytest.raises(StateError, match="does not fit"):
            small.state_seq_set(large.state_seq_get(0), 0)
        small.decode([1] * 256, outputs=False)


def test_on_device_states_go_out_of_date(models):
    with context_of(models("qwen35")) as context, context_of(models("qwen35")) as other:
        context.decode(TOKENS, outputs=False)
        other.decode(TOKENS, outputs=False)
        old = context.state_seq_get(0, on_device=True)
        with pytest.raises(StateError, match="outdated"):
            other.state_seq_set(old, 0, on_device=True)
        other.state_seq_get(1, on_device=True)
        with pytest.raises(StateError, match="outdated"):
            other.state_seq_set(old, 0, on_device=True)
        context.decode([1])
        new = context.state_seq_get(0, on_device=True)
        with pytest.raises(StateError, match="outdated"):
            context.state_seq_set(old, 0, on_device=True)
        context.state_seq_set(new, 0, on_device=True)
        context.state_seq_set(new, 1, on_device=True)
        assert context.memory.pos_max(1) == len(TOKENS)


def test_states_of_rolled_back_sequences(models):
    with context_of(models("qwen35"), n_rs_seq=4) as context:
        with pytest.raises(UnsupportedModel, match="one by one"):
            context.state_get()
        context.decode(TOKENS, outputs=False)
        assert context.memory.seq_rm(0, len(TOKENS) - 2)
        state = context.state_seq_get(0)
        expected = next_row(context)
        context.state_seq_set(state, 1)
        assert context.memory.pos_max(1) == len(TOKENS) - 3
        assert np.allclose(next_row(context, 1), expected, atol=2e-3)


def test_restoring_does_not_overwrite_results_in_use(models):
    with context_of(models("llama")) as context:
        context.decode(TOKENS)
        state = context.state_seq_get(0)
        row = context.logits()
        with pytest.raises(BufferInUse):
            context.state_seq_set(state, 0)
        del row
        context.state_seq_set(state, 0)


def test_no_memory(models):
    with context_of(models("bert")) as context:
        for save in (lambda: context.state_seq_get(0), context.state_get):
            try:
                state = save()
            except StateError:
                continue
            assert len(state) < 200
