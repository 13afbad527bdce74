"""For tests of drafts that read hidden states: contexts, decoders, and what such a draft has to be, worked out anew.

Weights and memories are F32, without flash attention: a row computed in another batch then differs by 1e-5 at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tiny_heads import N_EXACT, next_token

from pyspec._decoder import Decoder
from pyspec._draft_head import DraftHead
from pyspec._llama import Batch, Context, Model
from pyspec._pair_drafting import PairRunner
from pyspec._speculator import CompiledSpeculator
from pyspec.sampling import SamplerPlan, SamplingParams, build_chain

N_CTX = 256  # of one sequence
N_MAX = 4
LENGTH = 32  # tokens every sequence writes

# Sampling that often does not take the best token.
SURPRISING = {"temperature": 20.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

Rows = npt.NDArray[np.float32]


def prompt(n: int, start: int = 3, n_vocab: int = N_EXACT) -> tuple[int, ...]:
    """Some tokens."""
    return tuple((start + 11 * i) % n_vocab for i in range(n))


class HeadStage:
    """A target and a draft for it; without a file of its own the draft is the target's NextN layers."""

    def __init__(self, target: Path, draft: Path | None = None) -> None:
        self.target = Model(str(target), load_mtp=True)
        self.draft = self.target if draft is None else Model(str(draft), load_mtp=True)
        self.plain = cache(self._plain)

    @property
    def eagle3(self) -> bool:
        return self.draft.arch == "eagle3"

    def context(self, model: Model, n_seq: int = 1, **changes: Any) -> Context:
        sizes = {
            "n_ctx": N_CTX * n_seq, "n_seq_max": n_seq, "n_batch": 64, "n_ubatch": 64, "n_threads": 1,
            "n_outputs_max": n_seq * (1 + N_MAX), "type_k": "f32", "type_v": "f32", "flash_attn": "off",
        }  # fmt: skip
        return Context(model, **{**sizes, **changes})

    def draft_contexts(self, target: Context, n_seq: int = 1, **changes: Any) -> list[Context]:
        if self.eagle3:
            return [self.context(self.draft, n_seq, **{"ctx_other": target, "n_outputs_max": 0, **changes})]
        return [
            self.context(self.draft, n_seq, **{"ctx_type": "mtp", "n_outputs_max": 0, **changes})
            for _ in range(self.draft.n_mtp_heads)
        ]

    def decoder(
        self,
        n_seq: int = 1,
        *,
        target: dict[str, Any] | None = None,
        draft: dict[str, Any] | None = None,
        vocab: Sequence[int] | None = None,
        n_rows_that_follow: int = 0,
        max_miss: float = 1.0,
        **options: Any,
    ) -> Decoder:
        """A decoder of the target whose first speculator is the draft; with `vocab` that has a reduced output head."""
        context = self.context(self.target, n_seq, **(target or {}))
        head = None
        if vocab is not None:
            draft = {"n_outputs_max_per_seq": N_MAX + 2, **(draft or {})}
        contexts = self.draft_contexts(context, n_seq, **(draft or {}))
        if vocab is not None:
            head = DraftHead(contexts, vocab, n_slots=n_rows_that_follow, max_miss=max_miss)
        runner = PairRunner(contexts, context.n_vocab, head=head, **{"n_max": N_MAX, **options})
        return Decoder(context, [runner])

    def plan(self, **params: Any) -> SamplerPlan:
        return build_chain(SamplingParams(**{"temperature": 0.0, "seed": 1, **params}), self.target.vocab, n_ctx=N_CTX)

    def _plain(self, tokens: tuple[int, ...], n: int = LENGTH, surprising: bool = False) -> tuple[int, ...]:
        """What the target writes, one token at a time."""
        with self.context(self.target) as context:
            decoder = Decoder(context)
            decoder.begin(0, tokens, self.plan(**(SURPRISING if surprising else {})))
            return tuple(write(decoder, 0, n, n_max=0))

    # -- worked out anew -----------------------------------------------------------------------------------------

    def hidden(self, tokens: Sequence[int]) -> Rows:
        """The target's hidden states of a text, as the draft reads them: the encoder's rows for EAGLE-3."""
        layers = self.draft.target_layer_ids
        with self.context(self.target) as target:
            if not self.eagle3:
                target.set_embeddings_nextn(True)
            for layer in layers:
                if layer == self.target.n_layer:
                    target.set_embeddings_nextn(True)
                else:
                    target.set_embeddings_layer_inp(layer, True)
            pieces = []
            for at in range(0, len(tokens), target.n_batch):
                piece = tokens[at : at + target.n_batch]
                target.decode(piece)
                if self.eagle3:
                    pieces.append(np.hstack([target.embeddings_layer_inp(i)[: len(piece)] for i in layers]))
                else:
                    pieces.append(np.array([target.embeddings_nextn(i) for i in range(len(piece))]))
            rows = np.vstack(pieces)
            if not self.eagle3:
                return rows
            with self.draft_contexts(target)[0] as context:
                context.set_embeddings_nextn(True)
                encoded = []
                for row in rows:
                    batch = Batch(context)
                    batch.add_embd(row, 0, 0)
                    context.encode(batch)
                    encoded.append(context.embeddings_nextn(0).copy())
                return np.array(encoded)

    def fresh_draft(self, tokens: Sequence[int], n: int, among: Sequence[int] | None = None) -> list[int]:
        """n proposals behind a text and its seed, from empty memories; with `among` the best of those tokens only."""
        hidden = self.hidden(tokens[:-1])
        skipped = 1 if self.eagle3 else 0
        before = hidden if self.eagle3 else np.vstack((np.zeros_like(hidden[:1]), hidden))
        pairs = list(zip(tokens[skipped:], before, strict=True))
        with self.context(self.target) as target:
            contexts = self.draft_contexts(target)
            for i, context in enumerate(contexts):
                context.set_embeddings_nextn(True)
                if not self.eagle3:
                    context.set_nextn_layer_offset(i)
            draft: list[int] = []
            n_read = 0
            for i in range(n if len(contexts) == 1 else min(n, len(contexts))):
                context = contexts[i] if len(contexts) > 1 else contexts[0]
                n_read = 0 if len(contexts) > 1 else n_read
                while n_read < len(pairs):
                    batch = Batch(context)
                    for token, row in pairs[n_read : n_read + context.n_batch]:
                        batch.set_embd_token(batch.add(token, n_read + len(batch), 0, True), row)
                    context.process(batch)
                    n_read += len(batch)
                allowed = list(range(context.n_vocab) if among is None else among)
                draft.append(allowed[int(np.argmax(context.logits(len(batch) - 1)[allowed]))])
                pairs.append((draft[-1], context.embeddings_nextn(len(batch) - 1).copy()))
            for context in contexts:
                context.close()
            return draft


def exact_draft(tokens: Sequence[int], n: int, *follows: Sequence[int]) -> list[int]:
    """What an exact draft proposes behind a text and its seed: it only knows what the target made of the text."""
    token, draft = next_token(tokens[-2]), []
    for i in range(n):
        token = follows[min(i, len(follows) - 1)][token]
        draft.append(token)
    return draft


def write(decoder: Decoder, seq: int, n: int, *, n_max: int = N_MAX, rows: int = 64) -> list[int]:
    """n tokens of a sequence that has begun, the draft asked first in every round."""
    written: list[int] = []
    while len(written) < n:
        decoder.plan(seq, prompt_rows=rows, budget=min(n_max, n - len(written) - 1))
        if n_max:
            decoder.propose(0)
        decoder.verify()
        written += decoder.result(seq)[0]
    return written[:n]


def runner_of(decoder: Decoder) -> PairRunner:
    runner: CompiledSpeculator = decoder.speculators[0]
    assert isinstance(runner, PairRunner)
    return runner
