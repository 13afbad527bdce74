"""Scripted drafters: they know the right continuation and decide how much of it to propose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pyspec import Engine, Result, SamplingParams
from pyspec.speculation import DraftRequest

Script = Callable[[list[int], int], Iterable[int]]


class Puppet:
    """A speculator whose drafts a test sets: a function of the tokens so far and of the round's longest draft."""

    n_max = 16

    def __init__(self) -> None:
        self.script: Script = nothing
        self.requests: list[DraftRequest] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[Iterable[int]]:
        self.requests.extend(requests)
        return [self.script(list(r.tokens), r.n_max) for r in requests]


def nothing(tokens: list[int], n_max: int) -> Iterable[int]:
    """Never a draft."""
    return []


def right(prompt: Sequence[int], continuation: Sequence[int], length: int = 16) -> Script:
    """SELF: always what the target will say."""

    def script(tokens: list[int], n_max: int) -> Iterable[int]:
        at = len(tokens) - len(prompt)
        return continuation[at : at + length]

    return script


def noise(prompt: Sequence[int], continuation: Sequence[int], n_vocab: int, length: int = 8) -> Script:
    """NOISE: always wrong."""

    def script(tokens: list[int], n_max: int) -> Iterable[int]:
        at = len(tokens) - len(prompt)
        return [(token + 1) % n_vocab for token in continuation[at : at + length]]

    return script


def mix(k: int, prompt: Sequence[int], continuation: Sequence[int], n_vocab: int, length: int = 8) -> Script:
    """MIX(k): k right tokens, then a wrong one, then whatever comes."""

    def script(tokens: list[int], n_max: int) -> Iterable[int]:
        at = len(tokens) - len(prompt)
        draft = list(continuation[at : at + length])
        return [token if i < k else (token + 1) % n_vocab for i, token in enumerate(draft)]

    return script


class Stage:
    """An engine with a puppet drafting for it."""

    def __init__(self, engine: Engine, puppet: Puppet) -> None:
        self.engine = engine
        self.puppet = puppet
        self.n_vocab = engine.model.vocab.n_tokens

    def plain(self, prompt: Any, params: SamplingParams) -> Result:
        return self.engine.generate(prompt, params, n_draft_max=0)

    def scripts(self, prompt: list[int], continuation: tuple[int, ...]) -> dict[str, Script]:
        return {
            "right": right(prompt, continuation),
            "noise": noise(prompt, continuation, self.n_vocab),
            **{f"mix{k}": mix(k, prompt, continuation, self.n_vocab) for k in (1, 3)},
        }
