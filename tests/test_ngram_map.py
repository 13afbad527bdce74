"""ngram-simple, ngram-map-k, ngram-map-k4v: what is better than in llama.cpp (common/ngram-map.cpp)."""

from __future__ import annotations

from typing import Any

from ngram_stage import draft, sized

from pyspec._ngram import NGramMapK4VRunner, NGramMapKRunner, NGramSimpleRunner, Rehearsal

# -- ngram-simple --------------------------------------------------------------------------------------------


@sized
def test_the_first_token_of_a_text_can_be_found(make: Any) -> None:
    assert draft(make(1, size_n=3), [1, 2, 3, 4, 5, 6, 7, 1, 2, 3])[:4] == [4, 5, 6, 7]


@sized
def test_n_grams_with_the_same_hash_are_told_apart(make: Any) -> None:
    """A Thue-Morse sequence and its complement: no polynomial modulo 2^64 tells these 1,024 tokens apart."""
    a = [7 + bin(i).count("1") % 2 for i in range(1024)]
    b = [15 - token for token in a]
    assert draft(make(1, size_n=1024), [*a, 50, 51, *b]) == []
    assert draft(make(1, size_n=1024, size_m=4), [*a, 50, 51, *b, 52, *a])[:3] == [50, 51, b[0]]


def test_a_short_recent_match_does_not_hide_a_long_older_one() -> None:
    history = [1, 2, *range(10, 20), 1, 2, 5, 1, 2]
    assert draft(NGramSimpleRunner(1, size_n=2, size_m=10), history) == list(range(10, 20))
    # the newest that has enough is taken
    assert draft(NGramSimpleRunner(1, size_n=2, size_m=10), history, budget=3) == [5, 1, 2]


def test_the_newest_of_several_wins() -> None:
    history = [1, 2, 30, 31, 32, 1, 2, 40, 41, 42, 1, 2]
    assert draft(NGramSimpleRunner(1, size_n=2, size_m=3), history) == [40, 41, 42]


def test_a_loop_wins_over_an_older_long_match() -> None:
    history = [1, 2, 3, 4, *range(10, 60), *[1, 2, 3, 9] * 4, 1, 2, 3]
    assert draft(NGramSimpleRunner(1, size_n=3, size_m=9), history) == [9, 1, 2, 3, 9, 1, 2, 3, 9]


def test_the_seed_is_part_of_the_continuation() -> None:
    assert draft(NGramSimpleRunner(1, size_n=2, size_m=3), [1, 2, 3, 1, 2])[:3] == [3, 1, 2]


@sized
def test_min_hits(make: Any) -> None:
    history = [1, 2, 3, 4, 5, 6] * 4
    for n in range(1, 4):
        assert draft(make(1, size_n=3, size_m=4, min_hits=n), history) == [1, 2, 3, 4]
    assert draft(make(1, size_n=3, size_m=4, min_hits=4), history) == []


# -- learned lengths -----------------------------------------------------------------------------------------


class Repeated:
    """ngram-map-k, and a key that is always followed by 10, 11, 12, ... in the end."""

    def __init__(self) -> None:
        self.truth = list(range(10, 50))
        self.stage = Rehearsal(NGramMapKRunner(1, size_n=2, size_m=16))
        self.stage.feed([1, 2, *self.truth, 1, 2])

    def round(self, n_right: int, budget: int = 1024, n_submitted: int | None = None) -> int:
        """Proposes and is right about so many tokens. Then the key comes again. The length of the draft."""
        proposed = self.stage.propose(budget)
        assert proposed == self.truth[: len(proposed)]
        self.stage.verify([*self.truth[:n_right], 7], n_submitted=n_submitted)
        length = len(self.stage.tokens())
        self.stage.feed([*self.stage.tokens(), *range(1000 + length, 1020 + length), 1, 2, *self.truth, 1, 2])
        return len(proposed)


def test_lengths_shrink_and_grow_again() -> None:
    """llama.cpp's only shrink, and an n-gram whose draft was wrong at once never gets another."""
    case = Repeated()
    assert [case.round(n) for n in (5, 0, 40, 40, 40, 40, 40, 3, 40)] == [16, 5, 1, 2, 4, 8, 16, 16, 3]


def test_a_draft_that_was_cut_short_and_right_counts_as_right() -> None:
    case = Repeated()
    assert case.round(40, budget=3) == 3
    assert case.round(40, n_submitted=2) == 16
    assert case.round(40) == 16


def test_a_failure_is_about_what_was_submitted() -> None:
    case = Repeated()
    assert case.round(1, n_submitted=4) == 16
    assert case.round(1) == 1


def test_a_text_that_ends_within_the_draft_teaches_nothing_about_the_rest() -> None:
    case = Repeated()
    stage = case.stage
    assert len(stage.propose(1024)) == 16
    stage.verify(case.truth[:3])  # the last token ended it
    stage.feed([*stage.tokens(), 1, 2])
    assert len(stage.propose(1024)) == 16


def test_other_keys_keep_their_length() -> None:
    stage = Rehearsal(NGramMapKRunner(1, size_n=2, size_m=8))
    stage.feed([1, 2, *range(10, 20), 3, 4, *range(20, 30), 1, 2])
    assert len(stage.propose(8)) == 8
    stage.verify([99])
    stage.feed([*stage.tokens(), 3, 4])
    assert len(stage.propose(8)) == 8
    stage.verify([98])
    stage.feed([*stage.tokens(), 1, 2])
    assert len(stage.propose(8)) == 1


def test_a_round_of_somebody_else_teaches_nothing() -> None:
    stage = Rehearsal(NGramMapKRunner(1, size_n=2, size_m=8))
    stage.feed([1, 2, *range(10, 20), 1, 2])
    stage.propose(8)
    stage.verify([99], own=False)
    stage.feed([*stage.tokens(), 1, 2])
    assert len(stage.propose(8)) == 8
    stage.drop()
    stage.verify([98])
    stage.feed([*stage.tokens(), 1, 2])
    assert len(stage.propose(8)) == 8


# -- ngram-map-k4v -------------------------------------------------------------------------------------------

KEY = [1, 2]
FILLER = list(range(100, 110))


def occurrences(*values: list[int]) -> list[int]:
    """A history in which the key was followed by these values, the key at its end."""
    history: list[int] = []
    for i, value in enumerate(values):
        history += [*KEY, *value, *(1000 * (i + 1) + token for token in FILLER)]
    return history + KEY


A, B, C, D, E = ([10 * i, 10 * i + 1, 10 * i + 2] for i in range(2, 7))


def k4v(history: list[int], size_m: int = 3) -> list[int]:
    return draft(NGramMapK4VRunner(1, size_n=2, size_m=size_m), history)


def test_the_winning_value_is_drafted() -> None:
    """llama.cpp counts values and then copies what stands behind the occurrence it found."""
    assert k4v(occurrences(B, B, B, A)) == B
    assert k4v(occurrences(A, B, B, B)) == B


def test_a_winner_needs_twice_the_count_of_all_others() -> None:
    assert k4v(occurrences(A, A, B)) == A
    assert k4v(occurrences(A, A, A, B, B)) == []
    assert k4v(occurrences(A, A, A, A, B, C)) == A
    assert k4v(occurrences(A, A, A, B, C)) == []


def test_every_occurrence_counts_once() -> None:
    """However often it is asked. llama.cpp counts the occurrence at which it stopped again every time."""
    stage = Rehearsal(NGramMapK4VRunner(1, size_n=2, size_m=3))
    for history in (occurrences(A, A, B, B), occurrences(B, B, A, A)):
        stage.feed(history)
        assert [stage.propose(3) for _ in range(5)] == [[]] * 5


def test_a_common_beginning_is_drafted() -> None:
    assert k4v(occurrences([20, 21, 22, 23], [20, 21, 30, 31]), size_m=4) == [20, 21]
    assert k4v(occurrences(*[[20, 21, 22, 23]] * 4, [20, 21, 30, 31]), size_m=4) == [20, 21, 22, 23]
    assert k4v(occurrences(*[[20, 21, 22, 23]] * 3, [20, 21, 30, 31], [40, 41, 42, 43]), size_m=4) == [20, 21,
    22, 23]


def test_a_fifth_value_replaces_the_rarest() -> None:
    assert k4v(occurrences(A, A, B, C, D, E)) == []
    assert k4v(occurrences(A, A, B, C, D, *[E] * 20)) == E


def test_of_the_rarest_the_oldest_is_replaced() -> None:
    """D is still counted when E has come, A is not: five more are enough for one and not for the other."""
    assert k4v(occurrences(A, B, C, D, E, *[D] * 5)) == D
    assert k4v(occurrences(A, B, C, D, E, *[A] * 5)) == []


def test_young_occurrences_count() -> None:
    """A loop that is shorter than a value is seen when it has come round once."""
    assert k4v([*range(50, 60), 1, 2, 3, 4, 1, 2, 3, 4, 1, 2], size_m=48) == [3, 4, 1, 2] * 12


def test_each_value_has_its_own_length() -> None:
    stage = Rehearsal(NGramMapK4VRunner(1, size_n=2, size_m=3))
    stage.feed(occurrences(A))
    assert stage.propose(3) == A
    stage.verify([77])
    stage.feed([*stage.tokens(), *FILLER, *occurrences(A, A, A, A)])
    assert stage.propose(3) == A[:1]  # it was wrong when it was A
    stage.verify([*B, 78], own=True)
    stage.feed([*stage.tokens(), *FILLER, *occurrences(*[B] * 20)])
    assert stage.propose(3) == B
