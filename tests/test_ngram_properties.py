"""N-gram speculators under random histories, edits, budgets and verdicts."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from ngram_stage import ALL, Make, draft, patient

from pyspec._ngram import (
    LookupCache,
    NGramCacheRunner,
    NGramMapK4VRunner,
    NGramModRunner,
    NGramSimpleRunner,
    Rehearsal,
)

N_VOCAB = 5  # so few that everything repeats itself all the time
tokens = st.integers(0, N_VOCAB - 1)
budgets = st.integers(0, 20)
texts = st.lists(tokens, min_size=1, max_size=80)


# -- against the plain reading of what they are --------------------------------------------------------------


def simple(history: list[int], size_n: int, size_m: int, min_hits: int, budget: int) -> list[int]:
    """ngram-simple by scanning."""
    key = history[-size_n:]
    ends = [end for end in range(size_n, len(history)) if history[end - size_n : end] == key]
    if len(history) < size_n or len(ends) < min_hits:
        return []
    wanted = min(size_m, budget)
    for end in reversed(ends):
        period = len(history) - end
        if period >= wanted or history[-period:] == history[-2 * period : -period]:
            break
    else:
        end = ends[0]
    text = list(history)
    for i in range(wanted):
        text.append(text[end + i])
    return text[len(history) :]


@patient
@given(texts, st.integers(1, 4), st.integers(1, 12), st.integers(1, 3), st.integers(1, 16))
def test_simple(history: list[int], size_n: int, size_m: int, min_hits: int, budget: int) -> None:
    runner = NGramSimpleRunner(1, size_n=size_n, size_m=size_m, min_hits=min_hits)
    assert draft(runner, history, budget) == simple(history, size_n, size_m, min_hits, budget)


def values(history: list[int], size_n: int, size_m: int) -> list[tuple[list[int], int]]:
    """ngram-map-k4v: what followed the key, and how often, by scanning; the young ones come last."""
    key = history[-size_n:]
    counted: list[list[Any]] = []  # value, count, where it was last
    young = []
    for end in range(size_n, len(history)):
        if history[end - size_n : end] != key:
            continue
        value = history[end : end + size_m]
        if len(value) < size_m:
            young.append((value, 1))
            continue
        known = [entry for entry in counted if entry[0] == value]
        if known:
            known[0][1:] = known[0][1] + 1, end
        elif len(counted) < 4:
            counted.append([value, 1, end])
        else:
            counted.remove(min(counted, key=lambda entry: entry[1:]))
            counted.append([value, 1, end])
    return [(value, count) for value, count, _ in counted] + young[-8:]


def majority(candidates: list[tuple[list[int], int]], n: int) -> list[int]:
    found: list[int] = []
    while len(found) < n:
        votes: dict[int, int] = {}
        for value, count in candidates:
            token = (value + found)[len(found)]
            votes[token] = votes.get(token, 0) + count
        best = max(votes, key=lambda token: votes[token], default=-1)
        if best < 0 or votes[best] < 2 * (sum(votes.values()) - votes[best]):
            break
        candidates = [(v, c) for v, c in candidates if (v + found)[len(found)] == best]
        found.append(best)
    return found


@patient
@given(texts, st.integers(1, 3), st.integers(1, 8), st.integers(1, 3), st.integers(1, 10))
def test_map_k4v(history: list[int], size_n: int, size_m: int, min_hits: int, budget: int) -> None:
    runner = NGramMapK4VRunner(1, size_n=size_n, size_m=size_m, min_hits=min_hits)
    hits = sum(history[end - size_n : end] == history[-size_n:] for end in range(size_n, len(history)))
    expected = []
    if len(history) >= size_n and hits >= min_hits:
        expected = majority(values(history, size_n, size_m), min(size_m, budget))
    assert draft(runner, history, budget) == expected


@patient
@given(texts, st.integers(1, 4), st.integers(1, 12), st.integers(1, 16))
def test_mod(history: list[int], n_match: int, n_max: int, budget: int) -> None:
    table = {tuple(history[i - n_match : i]): history[i] for i in range(n_match, len(history))}
    text = list(history)
    while len(text) < len(history) + min(n_max, budget) and len(history) >= n_match:
        token = table.get(tuple(text[-n_match:]))
        if token is None:
            break
        text.append(token)
    runner = NGramModRunner(1, n_match=n_match, n_max=n_max, n_min=0)
    assert draft(runner, history, budget) == text[len(history) :]


def count(texts: list[list[int]]) -> dict[tuple[int, ...], dict[int, int]]:
    """Successors by n-gram, each in the order in which they reached their count."""
    counts: dict[tuple[int, ...], dict[int, int]] = {}
    for text in texts:
        for i in range(len(text)):
            for order in range(1, min(i, 4) + 1):
                successors = counts.setdefault(tuple(text[i - order : i]), {})
                successors[text[i]] = successors.pop(text[i], 0) + 1
    return counts


LAX = {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}
STRICT = {1: (4, 75), 2: (3, 66), 3: (2, 66), 4: (2, 66)}


def likeliest(successors: dict[int, int], corpus: dict[int, int], n_min: int, percent: int) -> int:
    def score(token: int) -> int:
        return successors[token] * (100 * corpus[token] if token in corpus else 1)

    total = sum(successors.values())
    if total < n_min:
        return -1
    # Of equals: the one that got there last; with a corpus the most frequent one has precedence.
    first = max(reversed(successors), key=lambda token: successors[token])
    best = max([first, *reversed(successors)], key=score) if corpus else first
    return best if 100 * successors[best] >= percent * total else -1


@patient
@given(texts, st.lists(texts, max_size=3), st.lists(texts, max_size=3), st.integers(1, 12))
def test_cache(history: list[int], dynamic: list[list[int]], static: list[list[int]], n: int) -> None:
    def table(texts: list[list[int]]) -> LookupCache:
        cache = LookupCache()
        for text in texts:
            cache.update(text)
        return cache

    def next_token(text: list[int]) -> int:
        corpus = count(static).get(tuple(text[-2:]), {}) if len(text) > 1 else {}
        for counts, thresholds in ((count([history]), LAX), (count(dynamic), STRICT)):
            for order in range(min(4, len(text)), 0, -1):
                successors = counts.get(tuple(text[-order:]), {})
                if successors and (token := likeliest(successors, corpus, *thresholds[order])) >= 0:
                    return token
        return likeliest(corpus, {}, *LAX[2]) if corpus else -1

    text = list(history)
    while len(text) < len(history) + n and (token := next_token(text)) >= 0:
        text.append(token)
    runner = NGramCacheRunner(1, n_draft=12, lookup_static=table(static), lookup_dynamic=table(dynamic))
    assert draft(runner, history, n) == text[len(history) :]


# -- whatever happens to a history ---------------------------------------------------------------------------


class Histories(RuleBasedStateMachine):
    """Two sequences that grow, are cut, edited, replaced and forgotten, half of it without a word."""

    make: Make
    lessons = True  # whether verdicts on its own drafts reach it

    def __init__(self) -> None:
        super().__init__()
        self.stage = Rehearsal(self.make(2), 2)

    @rule(seq=st.integers(0, 1), text=texts, told=st.booleans())
    def replace(self, seq: int, text: list[int], told: bool) -> None:
        self.stage.feed(text, seq=seq, told=told)

    @rule(seq=st.integers(0, 1), text=texts, told=st.booleans())
    def grow(self, seq: int, text: list[int], told: bool) -> None:
        self.stage.feed([*self.stage.tokens(seq=seq), *text], seq=seq, told=told)

    @rule(seq=st.integers(0, 1), at=st.integers(0, 200), text=texts, n=st.integers(0, 40), told=st.booleans())
    def edit(self, seq: int, at: int, text: list[int], n: int, told: bool) -> None:
        history = self.stage.tokens(seq=seq)
        at = min(at, len(history))
        self.stage.feed([*history[:at], *text, *history[at + n :]], seq=seq, told=told)

    @rule(seq=st.integers(0, 1), n=st.integers(1, 40), told=st.booleans())
    def cut(self, seq: int, n: int, told: bool) -> None:
        history = self.stage.tokens(seq=seq)
        if len(history) > n:
            self.stage.feed(history[:-n], seq=seq, told=told)

    @rule(seq=st.integers(0, 1), budget=budgets, text=texts, n=budgets, own=st.booleans())
    def round(self, seq: int, budget: int, text: list[int], n: int, own: bool) -> None:
        history = self.stage.tokens(seq=seq)
        if not history:
            return
        proposed = self.stage.propose(budget, seq=seq)
        assert len(proposed) <= min(budget, self.stage.speculator.n_max)
        assert all(0 <= token < N_VOCAB for token in proposed)
        emitted = self.stage.verify(
            [*proposed[:n], *text],  # right for a while
            seq=seq,
            n_submitted=n if n % 3 else None,
            own=own and self.lessons,
        )
        assert self.stage.tokens(seq=seq) == [*history, *emitted]
        self.stage.check(seq=seq)

    @rule(seq=st.integers(0, 1))
    def fail(self, seq: int) -> None:
        self.stage.propose(8, seq=seq)
        self.stage.drop(seq=seq)

    @rule(seq=st.integers(0, 1))
    def forget(self, seq: int) -> None:
        self.stage.forget(seq=seq)

    @rule(seq=st.integers(0, 1))
    def compare(self, seq: int) -> None:
        """What it proposes now is what one does that has only ever seen these tokens."""
        history = self.stage.tokens(seq=seq)
        proposed = self.stage.propose(8, seq=seq)
        fresh = draft(self.make(1), history, 8) if history else []
        if self.lessons and self.stage.speculator.name.startswith("ngram-map"):  # lengths were learned
            assert bool(proposed) == bool(fresh)
        else:
            assert proposed == fresh

    def teardown(self) -> None:
        for seq in (0, 1):
            self.compare(seq)
            self.stage.check(seq=seq)


def machine(name: str, with_lessons: bool = True) -> type:
    class Machine(Histories):
        make = staticmethod(ALL[name])
        lessons = with_lessons

    Machine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
    return Machine.TestCase


TestSimple = machine("ngram-simple")
TestMapK = machine("ngram-map-k")
TestMapKWithoutLessons = machine("ngram-map-k", with_lessons=False)
TestMapK4V = machine("ngram-map-k4v")
TestMapK4VWithoutLessons = machine("ngram-map-k4v", with_lessons=False)
TestMod = machine("ngram-mod")
TestCache = machine("ngram-cache")
