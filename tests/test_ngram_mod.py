"""ngram-mod: what it does better than llama.cpp's (common/ngram-mod.cpp)."""

from __future__ import annotations

import random

from ngram_stage import draft

from pyspec._ngram import NGramModRunner, Rehearsal


def test_drafts_shorter_than_n_min_are_discarded() -> None:
    history = [*range(10, 20), 50, 51, 12, 13, 14]
    stage = Rehearsal(NGramModRunner(1, n_match=3, n_max=8, n_min=8))
    stage.feed(history)
    assert len(stage.propose(8)) == 8
    assert stage.propose(7) == []
    assert stage.n_discarded() == 0  # not even begun: it could not have become long enough
    stage = Rehearsal(NGramModRunner(2, n_match=3, n_max=64, n_min=48, shared=True), 2)
    stage.feed([1, 2, 3, 10, 11, 12, 13], seq=0)
    stage.feed([60, 1, 2, 3], seq=1)
    assert stage.propose(64, seq=1) == []
    assert stage.n_discarded(seq=1) == 4
    assert stage.speculator.counts()["ngram-mod.discarded"] == 4


def test_a_draft_is_pieced_together() -> None:
    history = [1, 2, 3, 4, 50, 2, 3, 4, 5, 6, 51, 5, 6, 7, 8, 52, 1, 2, 3]
    assert draft(NGramModRunner(1, n_match=2, n_max=5, n_min=0), history) == [4, 5, 6, 7, 8]


def test_n_grams_that_share_a_place_are_told_apart() -> None:
    """llama.cpp's table takes whatever stands where the hash points: here, one lookup in twenty."""
    rng = random.Random(1)
    stage = Rehearsal(NGramModRunner(1, n_match=4, n_max=1, n_min=0))
    stage.feed([rng.randrange(2**20) for _ in range(200_000)])
    for _ in range(300):
        assert stage.propose(1) == []
        stage.verify([rng.randrange(2**20)])


class Pool:
    """Two sequences of one shared table; the first one has been taught that 1, 2, 3 goes on with 10, 11,
    ...
    """

    def __init__(self, shared: bool = True) -> None:
        self.stage = Rehearsal(NGramModRunner(3, n_match=3, n_max=8, n_min=0, shared=shared), 3)
        self.stage.feed([1, 2, 3, *range(10, 40)], seq=0)


def test_a_shared_table_serves_other_requests() -> None:
    pool = Pool()
    pool.stage.feed([60, 1, 2, 3], seq=1)
    assert pool.stage.propose(8, seq=1) == list(range(10, 18))
    pool.stage.forget(seq=0)
    pool.stage.feed([61, 62, 1, 2, 3], seq=2)
    assert pool.stage.propose(8, seq=2) == list(range(10, 18))


def test_nothing_is_shared_unless_asked_for() -> None:
    pool = Pool(shared=False)
    pool.stage.feed([60, 1, 2, 3], seq=1)
    assert pool.stage.propose(8, seq=1) == []


def rounds_that_mislead(pool: Pool, n_right: int = 0, n_submitted: int | None = None) -> int:
    """Rounds of one sequence that is misled by the table, until it stops listening; at most 8."""
    stage = pool.stage
    stage.feed([60, 1, 2, 3], seq=1)
    for i in range(8):
        proposed = stage.propose(8, seq=1)
        if not proposed:
            return i
        right = proposed[:n_right]
        stage.verify([*right, 2000 + i], seq=1, n_submitted=n_submitted)
        # the sequence learns otherwise; it needs another n-gram that only the others know
        stage.feed([100 + i, 101 + i, 102 + i, *range(200 + 10 * i, 209 + 10 * i)], seq=0)
        stage.feed([*stage.tokens(seq=1), 100 + i, 101 + i, 102 + i], seq=1)
    return 8


def test_one_sequences_failures_concern_nobody_else() -> None:
    pool = Pool()
    assert rounds_that_mislead(pool) == 5
    assert pool.stage.speculator.counts()["ngram-mod.detached"] == 1
    pool.stage.feed([61, 62, 20, 21, 22], seq=2)
    assert pool.stage.propose(8, seq=2) == list(range(23, 31))


def test_a_sequence_that_was_misled_keeps_its_own_history() -> None:
    """After a reset llama.cpp has lost the prompt as well."""
    pool = Pool()
    stage = pool.stage
    rounds_that_mislead(pool)
    stage.feed([*stage.tokens(seq=1), *range(500, 520), 500, 501, 502], seq=1)
    assert stage.propose(4, seq=1) == [503, 504, 505, 506]
    # and the next request listens again
    stage.forget(seq=1)
    stage.feed([61, 62, 20, 21, 22], seq=1)
    assert stage.propose(8, seq=1) == list(range(23, 31))


def test_its_own_failures_are_not_the_tables() -> None:
    pool = Pool()
    stage = pool.stage
    stage.feed([500, 501, 502, *range(600, 620), 500, 501, 502], seq=1)
    for i in range(8):
        assert len(stage.propose(8, seq=1)) == 8
        stage.verify([2000 + i], seq=1)
        stage.feed([*stage.tokens(seq=1), *range(3000 + 20 * i, 3020 + 20 * i), 500, 501, 502], seq=1)
    stage.feed([*stage.tokens(seq=1), 1, 2, 3], seq=1)
    assert stage.propose(8, seq=1) == list(range(10, 18))


def test_acceptance_is_a_share_of_what_was_submitted() -> None:
    """Two of two are no failure, though eight were proposed."""
    assert rounds_that_mislead(Pool(), n_right=2, n_submitted=2) == 8
    assert rounds_that_mislead(Pool(), n_right=1, n_submitted=4) == 8
    assert rounds_that_mislead(Pool(), n_right=1) == 5


def test_a_large_shared_table_keeps_the_newest() -> None:
    """Three times what one generation holds goes in; the newest half a million n-grams are found, the oldest
    not.
    """
    stage = Rehearsal(NGramModRunner(2, n_match=1, n_max=1, n_min=0, shared=True), 2)
    for start in range(0, 1_600_000, 100_000):
        stage.feed(range(start, start + 100_000), seq=0)
        stage.forget(seq=0)
    for token, expected in ((1_599_000, [1_599_001]), (1_100_000, [1_100_001]), (5, [])):
        stage.feed([token], seq=1)
        assert stage.propose(1, seq=1) == expected
        stage.forget(seq=1)
