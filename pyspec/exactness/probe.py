"""Finding out in how wide a batch a model's rows are, to the bit, what they are alone: by computing them both ways.

Where the answer changes it is because a kernel is chosen by the number of rows: another matrix product from two rows
on, or from four; another flash attention for a row that is alone, or from 64 on. Which ones a backend has, and from
where on, nobody promises. So positions of a text are decoded one at a time, then two, three, ... at a time from the
same state of the memory, and the logits compared bit for bit. A difference anywhere in the network reaches the logits
of its row; a few batches of each width at each depth are enough to see it.

Depth matters: libllama computes attention over multiples of 256 cells, and ggml's CPU backend splits the work on a
single row differently from 512 cells on. So it is done at the beginning of a text, across the 256th token, across the
512th, and behind a sliding window, as far as the context goes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspec._llama import Context, Model
from pyspec.errors import InvalidRequest, UnsupportedModel
from pyspec.exactness.invariance import Comparison, RowInvariance, proven_width

# Decodes wider than this are not tried: beyond it even a backend that is not exact gains little.
MOST_ROWS = 64

# Up to here every width is tried; above it multiples of this and their neighbours.
EVERY_WIDTH = 17
STEP = 8

# Rows compared of each width and at each depth, at least.
ROWS_COMPARED = 6

LEAST_POSITIONS = 8

# Rows of a prompt that rides along with a row, where that is tried.
RIDING_ROWS = 40

Logits = npt.NDArray[np.float32]
Progress = Callable[[str, float], None]


def widths_to_try(limit: int) -> list[int]:
    """Numbers of rows from 2 to `limit`: all of them as long as they are small, then those around round numbers."""
    near = {n + d for n in range(STEP, limit + STEP, STEP) for d in (-1, 0, 1)}
    return [n for n in range(2, limit + 1) if n <= EVERY_WIDTH or n in near or n == limit]


def shapes_to_try(n_slots: int, limit: int) -> list[tuple[int, ...]]:
    """Rows of each of several sequences in one decode: equally many, and not."""
    shapes: list[tuple[int, ...]] = []
    for n in range(2, n_slots + 1):
        shapes += [(rows,) * n for rows in (1, 2, 3, 4, 8, 16) if rows * n <= limit]
        uneven = tuple(1 + i % 3 for i in range(n))
        shapes += [uneven, uneven[::-1], (limit - n + 1,) + (1,) * (n - 1)]
    return sorted({shape for shape in shapes if sum(shape) <= limit}, key=lambda shape: (sum(shape), shape))


def depths_to_try(n_ctx: int, n_swa: int, n_positions: int) -> list[int]:
    """Where in a text to compare, as far as that many positions fit behind it."""
    wanted = [8, 255, 511]
    if n_swa:
        wanted.append(n_swa + n_positions // 2)
    fitting = [depth for depth in wanted if depth >= 0 and depth + n_positions < n_ctx]
    return sorted(set(fitting)) or [0]


def row_invariance(
    model: Model,
    *,
    n_rows: int = MOST_ROWS,
    n_slots: int = 1,
    n_ctx: int = 1024,
    prompt_rows: int = 0,
    all_widths: bool = True,
    only_together: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> RowInvariance:
    """Measures in how wide a decode a model's rows are, to the bit, what they are alone.

    Args:
        model: the model, with its weights.
        n_rows: the widest decode to try, 2 to 64.
        n_slots: also with rows of so many sequences in a decode.
        n_ctx: tokens a sequence may have: deeper than this is not looked.
        prompt_rows: also whether so many tokens of a prompt may be read at once; 0: not asked.
        all_widths: go on where the first difference is found; else that is the end of it.
        only_together: leave out decodes of more than two rows of one sequence alone.
        progress: called with what is done and the share that is.
        **settings: parameters of the `Context`: n_ubatch, n_threads, flash_attn, type_k, ...

    Raises:
        InvalidRequest: a parameter is out of range, or the context too short for a single comparison.
        UnsupportedModel: the model can't be decoded row by row.
        ContextError, DecodeError: libllama can't create the context, or can't decode.
    """
    if not 2 <= n_rows <= MOST_ROWS:
        raise InvalidRequest(f"n_rows must be 2 to {MOST_ROWS}, not {n_rows}", name="n_rows", value=n_rows)
    if n_slots < 1:
        raise InvalidRequest(f"n_slots must be at least 1, not {n_slots}", name="n_slots", value=n_slots)
    probe = _Probe(model, n_rows, n_slots, n_ctx, prompt_rows, progress, settings)
    with probe.context:
        return probe.run(all_widths=all_widths, only_together=only_together)


class _Probe:
    """One context, a text, and what was found so far."""

    def __init__(
        self,
        model: Model,
        n_rows: int,
        n_slots: int,
        n_ctx: int,
        prompt_rows: int,
        progress: Progress | None,
        settings: dict[str, Any],
    ) -> None:
        sees_all = model.metadata.get(f"{model.arch}.attention.causal") == "false"
        if not model.has_decoder or model.has_encoder or model.is_diffusion or sees_all:
            raise UnsupportedModel(f"{model.path} ({model.arch}) does not write from left to right, row by row")
        n_ctx = min(n_ctx, model.n_ctx_train or n_ctx)
        self._n_positions = min(max(n_rows, LEAST_POSITIONS), n_ctx - 2)
        if self._n_positions < LEAST_POSITIONS:
            raise InvalidRequest(
                f"a context of {n_ctx} tokens is too short to compare anything in; {LEAST_POSITIONS + 2} are needed",
                name="n_ctx",
                value=n_ctx,
            )
        self._limit = min(n_rows, self._n_positions)
        self._prompt_rows = min(prompt_rows, n_ctx - 2)
        longest = max(self._n_positions, self._prompt_rows)
        self._depths = depths_to_try(n_ctx, model.n_swa, longest)
        self._tokens = _sample(model, self._depths[-1] + longest + 1)
        self._n_slots = n_slots
        self._settings = settings
        self._progress = progress
        self._n_done = 0
        self._comparisons: list[Comparison] = []
        self._ms: dict[int, float] = {}
        room = -(-(len(self._tokens) + RIDING_ROWS) // 256) * 256
        self.context = Context(
            model,
            n_ctx=room * n_slots,
            n_seq_max=n_slots,
            n_batch=max(512, settings.get("n_ubatch", 0), self._prompt_rows),
            n_outputs_max=max(self._limit, self._prompt_rows, n_slots),
            **settings,
        )
        # Cells behind a sliding window are used again, so that going back is not always possible.
        slides = 0 < model.n_swa < self._depths[-1] + longest
        self._can_cut = not (model.is_recurrent or model.is_hybrid or slides)

    def run(self, *, all_widths: bool, only_together: bool) -> RowInvariance:
        widths, shapes = widths_to_try(self._limit), shapes_to_try(self._n_slots, self._limit)
        if only_together:
            widths = widths[:1]
        n_steps = len(self._depths) * (len(widths) + len(shapes) + 4)
        with_prompt: bool | None = None
        prompt_width = self._prompt_rows or 1
        # The deepest first: that is where most settings differ, and where a quick search may end.
        for depth in reversed(self._depths):
            start = self._start(depth)
            single = self._rows(start, depth, [1] * self._n_positions)
            self._step("rows alone", n_steps)
            paired: list[Logits] | None = None
            for rows in widths:
                got = self._batches(start, depth, rows)
                self._compare(depth, (rows,), 1, single, got)
                if paired is None:  # rows is 2
                    paired = self._rows(start, depth, [2] * (self._n_positions // 2))
                else:
                    self._compare(depth, (rows,), 2, paired, got)
                self._step(f"{rows} rows", n_steps)
                if not all_widths and rows >= self._settled():
                    break
            for shape in shapes:
                if not all_widths and sum(shape) > self._settled():
                    continue
                got = self._together(start, depth, shape)
                self._compare(depth, shape, 1, single, got)
                if min(shape) == max(shape) > 1 and paired is not None:
                    self._compare(depth, shape, 2, paired, got)
                self._step(f"{len(shape)} sequences", n_steps)
            if self._n_slots > 1:
                alone = self._beside_a_prompt(start, depth, single[0])
                with_prompt = alone if with_prompt is None else with_prompt and alone
            if prompt_width > 1:
                exact = self._width(1) >= min(self._limit, prompt_width)
                prompt_width = self._prompt_width(start, depth) if exact else 1
            self._step("prompts", n_steps)
        width, paired_width = self._width(1), self._width(2)
        return RowInvariance(
            width=width,
            paired_width=paired_width if self._limit > 2 else 1,
            limit=self._limit,
            n_slots=self._n_slots,
            prompt_width=prompt_width,
            with_prompt=with_prompt,
            comparisons=tuple(self._comparisons),
            ms=dict(sorted(self._ms.items())),
            settings=dict(self._settings),
        )

    def _width(self, reference: int) -> int:
        return proven_width(self._comparisons, reference, self._limit)

    def _settled(self) -> float:
        """Rows of a decode beyond which nothing can be exact any more, neither beside one row nor beside two."""
        wrong = [
            min((sum(c.rows) for c in self._comparisons if c.reference == reference and not c.exact), default=math.inf)
            for reference in (1, 2)
        ]
        return max(wrong)

    def _step(self, what: str, n_steps: int) -> None:
        self._n_done += 1
        if self._progress is not None:
            self._progress(what, min(1.0, self._n_done / n_steps))

    # -- states of the memory ------------------------------------------------------------------------------------

    def _start(self, depth: int) -> bytes:
        """The state of a sequence that has read so many tokens."""
        self.context.memory.clear()
        for at in range(0, depth, 128):
            chunk = self._tokens[at : min(at + 128, depth)]
            self.context.decode(chunk, pos=at, outputs=False)
        return self.context.state_seq_get(0) if depth else b""

    def _go_to(self, start: bytes, depth: int, n_sequences: int = 1) -> None:
        """Puts sequences back to where a comparison begins."""
        memory = self.context.memory
        for seq in range(n_sequences):
            if self._can_cut and memory.pos_max(seq) >= depth - 1 >= memory.pos_min(seq) >= 0:
                memory.seq_rm(seq, depth, -1)
                continue
            memory.seq_rm(seq, -1, -1)
            if start:
                self.context.state_seq_set(start, seq)
        for seq in range(n_sequences, self._n_slots):
            memory.seq_rm(seq, -1, -1)

    # -- computing -----------------------------------------------------------------------------------------------

    def _rows(self, start: bytes, depth: int, counts: Iterable[int]) -> list[Logits]:
        """Logits of the positions from `depth` on, decoded in batches of so many rows."""
        self._go_to(start, depth)
        found: list[Logits] = []
        for n in counts:
            at = depth + len(found)
            t0 = time.perf_counter()
            self.context.decode(self._tokens[at : at + n], pos=at, outputs=True)
            self.context.synchronize()
            ms = 1000.0 * (time.perf_counter() - t0)
            self._ms[n] = min(ms, self._ms.get(n, math.inf))
            found += [self.context.logits(i).copy() for i in range(n)]
        return found

    def _batches(self, start: bytes, depth: int, rows: int) -> list[Logits]:
        """As `_rows`, in as many batches of this width as are worth comparing."""
        n = min(-(-ROWS_COMPARED // rows), max(1, self._n_positions // rows))
        return self._rows(start, depth, [rows] * n)

    def _together(self, start: bytes, depth: int, shape: Sequence[int]) -> list[Logits]:
        """Logits of the first positions from `depth` on of several sequences, so many rows of each, in one decode."""
        self._go_to(start, depth, len(shape))
        tokens: list[int] = []
        positions: list[int] = []
        sequences: list[int] = []
        for seq, n in enumerate(shape):
            tokens += self._tokens[depth : depth + n]
            positions += range(depth, depth + n)
            sequences += [seq] * n
        self.context.decode(tokens, pos=positions, seq_ids=sequences, outputs=True)
        return [self.context.logits(i).copy() for i in range(len(tokens))]

    def _beside_a_prompt(self, start: bytes, depth: int, expected: Logits) -> bool:
        """Whether a row is what it is alone while another sequence reads."""
        self._go_to(start, depth)
        riding = self._tokens[:RIDING_ROWS]
        self.context.decode(
            [self._tokens[depth], *riding],
            pos=[depth, *range(len(riding))],
            seq_ids=[0] + [1] * len(riding),
            outputs=[True] + [False] * len(riding),
        )
        return _same(self.context.logits(0).copy(), expected)

    def _prompt_width(self, start: bytes, depth: int) -> int:
        """How many of `prompt_rows` tokens may be read at once: all, or 1. Narrower decodes are known to be exact."""
        pieces = [self._limit] * (self._prompt_rows // self._limit) + [self._prompt_rows % self._limit]
        single = self._rows(start, depth, filter(None, pieces))
        widths = [n for n in (self._prompt_rows, self._prompt_rows - 1, 3 * self._prompt_rows // 4) if n > 1]
        for n in widths:
            if not all(map(_same, self._rows(start, depth, [n]), single)):
                return 1
        return self._prompt_rows

    def _compare(
        self, depth: int, rows: tuple[int, ...], reference: int, expected: Sequence[Logits], got: Sequence[Logits]
    ) -> None:
        """Takes in rows, sequence by sequence where there are several, beside those of the reference."""
        positions = [i for n in rows for i in range(n)] if len(rows) > 1 else range(len(got))
        pairs = [(got[i], expected[at]) for i, at in enumerate(positions) if at < len(expected)]
        self._comparisons.append(
            Comparison(
                depth=depth,
                rows=rows,
                reference=reference,
                compared=len(pairs),
                equal=sum(_same(a, b) for a, b in pairs),
                largest=max((float(np.max(np.abs(a - b))) for a, b in pairs), default=0.0),
                flips=sum(int(np.argmax(a)) != int(np.argmax(b)) for a, b in pairs),
            )
        )


def _same(a: Logits, b: Logits) -> bool:
    """Whether two rows are the same to the bit."""
    return bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))


def _sample(model: Model, n_tokens: int) -> list[int]:
    """So many tokens of sample.txt (prose, code, a list, a table), which begins again where it is too short.

    Raises:
        UnsupportedModel: its tokenizer makes nothing of it.
    """
    text = (files("pyspec.exactness") / "sample.txt").read_text(encoding="utf-8")
    tokens = model.vocab.tokenize(text)
    if len(tokens) < 2:
        raise UnsupportedModel(f"{model.path}: its vocabulary has no tokens for English text to compare rows with")
    while len(tokens) < n_tokens:
        tokens += model.vocab.tokenize(text, add_special=False)
    return tokens[:n_tokens]
