"""Sampling with drafts draws from the target's own distribution: a test of 4,000 draws with fixed seeds.

One position is drawn again and again through a round of speculation. The round's seed token is made certain by a large
bias, which a penalty on the last token takes back at the position that is looked at; nothing else shapes the logits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from chi_square import p_value
from decoder_stage import N_VOCAB, Stage
from decoder_stage import dense as dense

from pyspec._decoder import Decoder
from pyspec._drafting import DraftRunner
from pyspec.sampling import SamplingParams, build_chain

N_DRAWS = 4000
PROMPT = (5, 6, 7)
CERTAIN = 9
LIFT = 64.0  # a power of two, so that adding and subtracting it costs few bits of a logit

PARAMS = SamplingParams(
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    logit_bias={CERTAIN: LIFT},
    penalty_present=LIFT,
    penalty_last_n=1,
)


@pytest.fixture(scope="module")
def probabilities(dense: Stage) -> np.ndarray:
    """The softmax of the target's logits after the prompt and the certain token, by plain decoding."""
    with dense.context(n_seq=1) as context:
        context.decode([*PROMPT, CERTAIN])
        logits = np.array(context.logits(-1), np.float64)
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def draw(decoder: Decoder, dense: Stage, seed: int, draft: Sequence[int] | None) -> list[int]:
    """What a round emits after the certain token. `draft`: None lets the draft model propose."""
    decoder.begin(0, PROMPT, build_chain(PARAMS.replace(seed=seed), dense.target.vocab, n_ctx=64))
    decoder.plan(0, prompt_rows=len(PROMPT))
    decoder.verify()
    assert decoder.result(0)[0] == [CERTAIN]
    decoder.plan(0, budget=2)
    if draft is None:
        decoder.propose(0)
    else:
        decoder.offer(0, draft)
    assert decoder.n_drafted(0) == 2
    decoder.verify()
    emitted: list[int] = decoder.result(0)[0]
    return emitted


@pytest.mark.parametrize("drafter", ["self", "noise", "mix"])
def test_draws_are_the_targets(dense: Stage, probabilities: np.ndarray, drafter: str) -> None:
    """SELF: the target drafts for itself. NOISE: its least likely tokens. MIX: its likeliest, then one of those."""
    ranked = [int(token) for token in np.argsort(-probabilities)]
    drafts = {"self": None, "noise": ranked[-2:], "mix": [ranked[0], ranked[-1]]}
    runner = None
    if drafter == "self":
        runner = DraftRunner(dense.context(n_seq=1), N_VOCAB, n_max=2)
    with dense.context(n_seq=1) as context:
        decoder = Decoder(context, [] if runner is None else [runner], check=False)
        runs = [draw(decoder, dense, seed, drafts[drafter]) for seed in range(N_DRAWS)]
    counts = Counter(emitted[0] for emitted in runs)
    assert p_value(counts, probabilities) > 0.001
    accepted = sum(len(emitted) > 1 for emitted in runs) / N_DRAWS
    drafted = ranked[-2] if drafter == "noise" else ranked[0]
    tolerance = 4 * math.sqrt(probabilities[drafted] * (1 - probabilities[drafted]) / N_DRAWS)
    assert accepted == pytest.approx(probabilities[drafted], abs=tolerance)


def test_the_test_notices_a_draft_that_is_inserted(probabilities: np.ndarray) -> None:
    """One draw in twenty replaced by the likeliest token is too many."""
    draws = np.random.default_rng(1).choice(N_VOCAB, N_DRAWS, p=probabilities)
    honest = Counter(int(token) for token in draws)
    assert p_value(honest, probabilities) > 0.001
    draws[::20] = int(probabilities.argmax())
    assert p_value(Counter(int(token) for token in draws), probabilities) < 0.001


@pytest.mark.parametrize("top_k", [1, 5])
def test_no_draw_outside_the_top_k(dense: Stage, probabilities: np.ndarray, top_k: int) -> None:
    """A draft from outside cannot get in."""
    ranked = [int(token) for token in np.argsort(-probabilities)]
    params = PARAMS.replace(top_k=top_k)
    seen = set()
    with dense.context(n_seq=1) as context:
        decoder = Decoder(context)
        for seed in range(200):
            decoder.begin(0, PROMPT, build_chain(params.replace(seed=seed), dense.target.vocab, n_ctx=64))
            decoder.plan(0, prompt_rows=len(PROMPT))
            decoder.verify()
            decoder.plan(0, budget=1)
            decoder.offer(0, [ranked[5 + seed % 20]])
            decoder.verify()
            emitted, _, accepted, _, _ = decoder.result(0)
            assert accepted == 0
            seen.add(emitted[0])
    assert seen <= set(ranked[:top_k]) and len(seen) == top_k


def test_seeds_differ(tiny: Callable[[str], Path]) -> None:
    """Ten seeds give more than one text, drafts or not; the same seed gives the same one."""
    from pyspec import DraftModel, Engine

    draft = DraftModel(tiny("llama-draft"), n_max=4)
    with Engine(tiny("llama"), speculation=draft, n_ctx=64, flash_attn="off", type_k="f32", type_v="f32") as engine:
        texts = []
        for n_draft_max in (0, None, None):
            params = [SamplingParams(temperature=1.0, max_tokens=12, seed=seed) for seed in range(10)]
            texts.append([engine.generate([5, 6, 7], p, n_draft_max=n_draft_max).token_ids for p in params])
    assert texts[0] == texts[1] == texts[2] and len(set(texts[0])) >= 8
