"""Computing batches: both kinds of batch, what is refused, how a computation is stopped."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest
from interrupting import interrupt_after

from pyspec._llama import Batch, Context, Model
from pyspec.errors import (
    Busy,
    Closed,
    DecodeError,
    InvalidRequest,
    PyspecError,
)

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@pytest.fixture(scope="module")
def llama(tiny):
    with Model(tiny("llama")) as model:
        yield model


@pytest.fixture
def context(llama):
    with Context(llama, n_ctx=256, n_batch=32, n_ubatch=16, n_seq_max=3, n_outputs_max=20, n_threads=1) as context:
        yield context


@pytest.fixture(scope="module")
def expected(llama):
    """The rows of TOKENS."""
    with Context(llama, n_ctx=256, n_threads=1) as context:
        context.decode(TOKENS, outputs=True)
        return np.array([context.logits(i) for i in range(len(TOKENS))])


def close(a, b):
    return np.allclose(a, b, atol=2e-3)


# -- the classic batch -------------------------------------------------------------------------------------


def test_only_the_last_row_by_default(context, expected):
    context.decode(TOKENS)
    assert close(context.logits(), expected[-1])
    assert close(context.logits(-1), expected[-1])
    assert close(context.logits(len(TOKENS) - 1), expected[-1])
    for i in (0, len(TOKENS) - 2, len(TOKENS), -2):
        with pytest.raises(InvalidRequest, match="no logits"):
            context.logits(i)


def test_chosen_rows(context, expected):
    context.decode(TOKENS, outputs=[i % 3 == 0 for i in range(len(TOKENS))])
    assert close(context.logits(3), expected[3])
    assert close(context.logits(-1), expected[9])
    assert close(context.logits(-4), expected[0])


def test_no_rows(context):
    context.decode(TOKENS, outputs=False)
    with pytest.raises(InvalidRequest, match="no logits"):
        context.logits()
    assert context.memory.pos_max(0) == len(TOKENS) - 1


def test_continuing(context, expected):
    for start in range(0, len(TOKENS), 5):
        context.decode(TOKENS[start : start + 5])
    assert close(context.logits(), expected[-1])


def test_sequences_in_one_batch(context, expected):
    tokens = [t for t in TOKENS[:4] for _ in range(3)]
    context.decode(tokens, pos=[i // 3 for i in range(12)], seq_ids=[i % 3 for i in range(12)], outputs=True)
    for i in range(12):
        assert close(context.logits(i), expected[i // 3])


def test_tokens_shared_by_sequences(llama, expected):
    with Context(llama, n_ctx=256, n_seq_max=2, kv_unified=True, n_threads=1) as context:
        context.decode(TOKENS[:5], seq_ids=[(0, 1)] * 5, outputs=False)
        context.decode(TOKENS[5:7] * 2, seq_ids=[0, 0, 1, 1], pos=[5, 6, 5, 6], outputs=True)
        assert close(context.logits(1), expected[6])
        assert close(context.logits(3), expected[6])


def test_positions_continue_where_pos_is_a_number(context, expected):
    context.decode(TOKENS[:6], pos=0)
    context.decode(np.array(TOKENS[6:]), pos=np.int64(6), seq_ids=np.int32(0))
    assert close(context.logits(), expected[-1])


@pytest.mark.parametrize(
    "arguments",
    [
        {"tokens": []}, {"tokens": [256]}, {"tokens": [-1]}, {"tokens": None}, {"tokens": [1] * 33},
        {"tokens": [1], "pos": -1}, {"tokens": [1], "pos": [0, 1]}, {"tokens": [1], "pos": ["a"]},
        {"tokens": [1], "pos": 1 << 31}, {"tokens": [1], "pos": [1 << 30]}, {"tokens": [1], "seq_ids": 3},
        {"tokens": [1], "seq_ids": -1}, {"tokens": [1], "seq_ids": [0, 1]}, {"tokens": [1], "seq_ids": [[]]},
        {"tokens": [1], "seq_ids": [[0, 0]]}, {"tokens": [1], "outputs": [True, False]},
        {"tokens": [1] * 21, "outputs": True}, {"tokens": [1] * 22, "outputs": [True] * 21 + [False]},
    ],
    ids=str,
)  # fmt: skip
def test_batches_that_cannot_be(context, expected, arguments):
    with pytest.raises(InvalidRequest):
        context.decode(**arguments)
    context.decode(TOKENS)
    assert close(context.logits(), expected[-1])


@pytest.mark.parametrize(
    "arguments",
    [
        {"tokens": [1], "pos": 5},
        {"tokens": [1, 2], "pos": [13, 12]},
        {"tokens": [1, 2], "pos": [12, 14]},
        {"tokens": [1], "pos": 0},
    ],
)
def test_positions_with_holes(context, expected, arguments):
    """libllama says no, and nothing has changed."""
    context.decode(TOKENS[:-1])
    with pytest.raises(DecodeError, match=r"invalid.*consecutive|invalid.*continuous|invalid.*decreasing") as caught:
        context.decode(**arguments)
    assert caught.value.code == -1
    context.decode(TOKENS[-1:])
    assert close(context.logits(), expected[-1])


def test_a_full_memory(llama):
    with Context(llama, n_ctx=256, n_threads=1) as context:
        context.decode([1] * 250)
        with pytest.raises(DecodeError, match="no room in the memory") as caught:
            context.decode([1] * 10)
        assert caught.value.code == 1
        assert context.memory.pos_max(0) == 249
        context.decode([1] * 6)


# -- the extended batch ------------------------------------------------------------------------------------


def test_batch(context, expected):
    batch = Batch(context)
    for i, token in enumerate(TOKENS):
        assert batch.add(token, i, 0, output=i > 5) == i
    assert (len(batch), batch.n_outputs) == (len(TOKENS), 6)
    context.process(batch)
    assert close(context.logits(7), expected[7])
    batch.clear()
    assert (len(batch), batch.n_outputs) == (0, 0)
    assert "0 entries" in repr(batch)


def test_batch_is_refilled(context, expected):
    batch = Batch(context)
    for i, token in enumerate(TOKENS):
        batch.clear()
        batch.add(token, i, 0, True)
        context.process(batch)
        assert close(context.logits(0), expected[i])


def test_outputs_change_their_mind(context, expected):
    batch = Batch(context)
    for i, token in enumerate(TOKENS):
        batch.add(token, i, 0, True)
    batch.set_output(0, False)
    batch.set_output(0, False)
    batch.set_output(2, True)
    assert batch.n_outputs == len(TOKENS) - 1
    context.process(batch)
    with pytest.raises(InvalidRequest):
        context.logits(0)
    assert close(context.logits(2), expected[2])


def test_batch_of_shared_tokens(llama, expected):
    with Context(llama, n_ctx=256, n_seq_max=3, kv_unified=True, n_threads=1) as context:
        batch = Batch(context)
        for i in range(4):
            batch.add(TOKENS[i], i, [2, 0])
        context.process(batch)
        assert [context.memory.pos_max(seq) for seq in range(3)] == [3, -1, 3]


@pytest.mark.parametrize(
    "entry",
    [(256, 0, 0), (-1, 0, 0), (1, -1, 0), (1, 1 << 30, 0), (1, 0, 3), (1, 0, -1), (1, 0, []), (1, 0, [1, 1]),
     ("a", 0, 0),
     (1, None, 0), (1, 0, None)],
)  # fmt: skip
def test_a_refused_entry_leaves_nothing(context, expected, entry):
    batch = Batch(context)
    batch.add(TOKENS[0], 0, 0, True)
    with pytest.raises((InvalidRequest, TypeError)):
        batch.add(*entry)
    assert len(batch) == 1
    batch.add(TOKENS[1], 1, 0, True)
    context.process(batch)
    assert close(context.logits(1), expected[1])


def test_a_full_batch(context):
    batch = Batch(context)
    for i in range(32):
        batch.add(1, i, 0)
    with pytest.raises(InvalidRequest, match="the batch is full: n_batch is 32"):
        batch.add(1, 32, 0)
    context.process(batch)
    assert context.memory.pos_max(0) == 31


def test_too_many_outputs(context, expected):
    batch = Batch(context)
    for i in range(21):
        batch.add(1, i, 0, True)
    with pytest.raises(InvalidRequest, match="21 output rows, n_outputs_max is 20"):
        context.process(batch)
    batch.set_output(0, False)
    context.process(batch)


def test_embeddings_make_every_token_an_output(context):
    context.set_embeddings(True)
    with pytest.raises(InvalidRequest, match="21 output rows"):
        context.decode([1] * 21)
    context.decode([1] * 20)
    assert context.embeddings(7).shape == (64,)
    context.set_embeddings(False)
    context.decode([1] * 21)
    with pytest.raises(InvalidRequest, match="embeddings are off"):
        context.embeddings()


def test_empty_and_foreign_batches(context, llama):
    batch = Batch(context)
    with pytest.raises(InvalidRequest, match="empty"):
        context.process(batch)
    batch.add(1, 0, 0)
    with Context(llama, n_ctx=256) as other, pytest.raises(InvalidRequest, match="another context"):
        other.process(batch)
    with pytest.raises(TypeError):
        context.process(None)


def test_embeddings_as_input(context, llama, expected):
    """A row of the embedding matrix computes as the token does."""
    batch = Batch(context)
    rows = token_embeddings(llama.path)
    for i, token in enumerate(TOKENS):
        batch.add_embd(rows[token], i, 0, True)
    context.process(batch)
    for i in range(len(TOKENS)):
        assert close(context.logits(i), expected[i])


def token_embeddings(path: str) -> np.ndarray:
    import gguf

    (tensor,) = [t for t in gguf.GGUFReader(path).tensors if t.name == "token_embd.weight"]
    return np.array(tensor.data).reshape(256, 64)


@pytest.mark.parametrize("embd", [np.zeros(63), np.zeros(65), np.zeros((2, 64)), [], None, "row", [1.0, None]])
def test_embeddings_of_other_widths(context, expected, embd):
    batch = Batch(context)
    with pytest.raises(InvalidRequest, match="one row of 64 numbers"):
        batch.add_embd(embd, 0, 0)
    assert len(batch) == 0
    batch.add(1, 0, 0)
    with pytest.raises(InvalidRequest, match="one row of 64 numbers"):
        batch.set_embd_token(0, embd)


def test_mixed_batches(context):
    batch = Batch(context)
    batch.add(1, 0, 0)
    batch.add_embd(np.zeros(64), 1, 0)
    with pytest.raises(InvalidRequest, match="all be tokens"):
        context.process(batch)
    batch.clear()
    batch.add(1, 0, 0)
    batch.add(1, 1, 0)
    batch.set_embd_token(0, np.zeros(64))
    with pytest.raises(InvalidRequest, match="has an embedding already"):
        batch.set_embd_token(0, np.zeros(64))
    with pytest.raises(InvalidRequest, match="all be tokens"):
        context.process(batch)
    with pytest.raises(InvalidRequest):
        batch.set_embd_token(2, np.zeros(64))


def test_multi_dimensional_positions(tiny):
    with Model(tiny("qwen35")) as model, Context(model, n_ctx=256, n_threads=1) as context:
        batch = Batch(context)
        batch.add_embd(np.ones(64), [0, 0, 0, 0], 0, True)
        batch.add_embd(np.ones(64), 1, 0, True)
        with pytest.raises(InvalidRequest, match=r"4 position\(s\)"):
            batch.add_embd(np.ones(64), [0, 1], 0)
        context.process(batch)
        assert np.isfinite(context.logits(1)).all()


# -- stopping ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slow(smollm2):
    """A computation that takes a while."""
    with Model(smollm2) as model, Context(model, n_ctx=4096, n_batch=4096, n_ubatch=64, n_outputs_max=1) as context:
        yield context


LONG = [100] * 4000


def test_abort_from_another_thread(slow):
    slow.memory.clear()
    timer = threading.Timer(0.3, slow.abort)
    timer.start()
    started = time.process_time()
    with pytest.raises(DecodeError, match="aborted") as caught:
        slow.decode(LONG)
    assert caught.value.code == 2
    assert time.process_time() - started < 5
    timer.join()
    with pytest.raises(DecodeError):  # until it is cleared
        slow.decode([1])
    slow.clear_abort()
    slow.memory.clear()
    slow.decode([1, 2, 3])
    first = slow.logits().copy()
    slow.memory.clear()
    slow.decode([1, 2, 3])
    assert (slow.logits() == first).all()


def test_interrupt(slow):
    """Ctrl-C stops a computation at once, and the context works afterwards."""
    slow.memory.clear()
    started = time.process_time()
    with pytest.raises(KeyboardInterrupt), interrupt_after(0.3):
        slow.decode(LONG)
    assert time.process_time() - started < 5
    slow.memory.clear()
    slow.decode([1, 2, 3])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupt_handler_of_the_user(slow):
    """A handler that does not raise is called, and the computation still ends."""
    seen = []
    previous = signal.signal(signal.SIGINT, lambda *_: seen.append(True))
    try:
        slow.memory.clear()
        with pytest.raises(DecodeError, match="aborted"), interrupt_after(0.3):
            slow.decode(LONG)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert seen == [True]
    slow.memory.clear()
    slow.decode([1])


def test_two_threads(slow):
    """The second one is told; the first one is not disturbed."""
    slow.memory.clear()
    results: list[object] = []

    def first() -> None:
        try:
            slow.decode(LONG)
            results.append("done")
        except PyspecError as error:
            results.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    time.sleep(0.2)
    for use in (lambda: slow.decode([1]), lambda: slow.logits(), lambda: slow.memory.clear(), lambda: slow.n_threads,
                lambda: slow.memory.pos_max(0), lambda: slow.state_seq_get(0),
                lambda: slow.set_n_threads(1)):  # fmt: skip
        with pytest.raises(Busy, match="another thread"):
            use()
    slow.abort()
    thread.join()
    slow.clear_abort()
    assert isinstance(results[0], DecodeError)
    slow.memory.clear()
    slow.decode([1])


def test_close_while_another_thread_computes(smollm2):
    with Model(smollm2) as model:
        context = Context(model, n_ctx=4096, n_batch=4096, n_ubatch=64)
        done = []

        def compute() -> None:
            with pytest.raises(DecodeError, match="aborted"):
                context.decode(LONG)
            done.append(True)

        thread = threading.Thread(target=compute)
        thread.start()
        time.sleep(0.2)
        context.close()
        assert context.closed
        with pytest.raises(Closed):
            context.decode([1])
        context.abort()
        thread.join()
        assert done


def test_counters(llama):
    with Context(llama, n_ctx=256, n_threads=1, no_perf=False) as context:
        context.decode(TOKENS)
        context.synchronize()
        context.decode([1])
        context.synchronize()
        perf = context.perf()
        assert (perf["n_p_eval"], perf["n_eval"]) == (len(TOKENS), 1)
        assert perf["t_p_eval_ms"] > 0
        context.reset_perf()
        assert context.perf()["t_eval_ms"] == 0
