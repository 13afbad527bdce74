"""What all n-gram speculators have in common."""

from __future__ import annotations

import random

import pytest
from ngram_stage import ALL, Make, draft, every

from pyspec._ngram import Rehearsal


@pytest.mark.parametrize("name", ALL)
def test_names(name: str) -> None:
    assert ALL[name](1).name == name
    assert ALL[name](1).n_max == 8


@every
def test_a_repeated_text_is_proposed(make: Make) -> None:
    text = list(range(10, 40))
    assert draft(make(1), [*text, 99, 10, 11, 12, 13]) == [14, 15, 16, 17, 18, 19, 20, 21]


@every
def test_the_budget_is_kept(make: Make) -> None:
    text = list(range(10, 40))
    for budget in range(9):
        assert draft(make(1), [*text, 99, 10, 11, 12], budget) == text[3 : 3 + budget]


@every
def test_nothing_to_go_on(make: Make) -> None:
    for history in ([], [5], [5, 6], list(range(100))):
        assert draft(make(1), history) == []


@every
def test_a_loop_is_drafted_to_full_length(make: Make) -> None:
    """The continuation runs into itself: llama.cpp's ngram-simple and ngram-map stop at the end of the
    history.
    """
    assert draft(make(1), [7, 8, 9] * 3) == [7, 8, 9, 7, 8, 9, 7, 8]


@every
def test_what_the_rounds_append_is_found(make: Make) -> None:
    """Fed in rounds of one to three tokens, a history is what it is when fed at once."""
    text = [*range(10, 30), 99, *range(10, 20)]
    stage = Rehearsal(make(1))
    stage.feed(text[:3])
    while len(stage.tokens()) < 26:
        stage.propose(2)
        at = len(stage.tokens())
        stage.verify(text[at : at + 3], own=False)
        stage.check()
    assert stage.propose(4) == draft(make(1), stage.tokens(), 4) != []


@every
def test_requests_know_nothing_of_each_other(make: Make) -> None:
    stage = Rehearsal(make(2), 2)
    stage.feed(list(range(30)), seq=0)
    stage.feed([70, 71, 72, 5, 6], seq=1)
    assert stage.propose(8, seq=1) == []
    stage.forget(seq=0)
    stage.feed([50, 5, 6], seq=0)
    assert stage.propose(8, seq=0) == []


@every
def test_a_history_that_was_cut_is_followed(make: Make) -> None:
    """llama.cpp's ngram-map aborts the process, its ngram-cache goes on with counts of what is no longer
    there.
    """
    text = list(range(10, 40))
    stage = Rehearsal(make(1))
    stage.feed([*text, 99, 10, 11, 12])
    assert stage.propose(3) == [13, 14, 15]
    stage.feed([*text[20:30], 99, 10, 11, 12], told=False)
    assert stage.propose(3) == []
    stage.feed([*text[:6], 99, 10, 11, 12], told=False)
    assert stage.propose(3) == [13, 14, 15]
    assert stage.speculator.counts()[f"{stage.speculator.name}.rebuilds"] == 2


@every
def test_a_history_that_was_edited_is_followed(make: Make) -> None:
    """As long as before or longer, so that its length says nothing."""
    stage = Rehearsal(make(1))
    stage.feed([10, 11, 12, 13, 14, *range(50, 90), 10, 11, 12])
    assert stage.propose(2) == [13, 14]
    stage.feed([10, 11, 12, 23, 24, *range(50, 90), 10, 11, 12], told=False)
    assert stage.propose(2) == [23, 24]
    stage.feed([10, 11, 12, 33, 34, *range(50, 95), 10, 11, 12], told=False)
    assert stage.propose(2) == [33, 34]


@every
def test_an_edit_in_a_long_history_is_noticed_after_a_few_rounds(make: Make) -> None:
    text = list(range(1000, 21000))
    stage = Rehearsal(make(1))
    stage.feed([*text, 1000, 1001, 1002])
    assert stage.propose(1) == [1003]
    stage.feed([1000, 1001, 1002, 5, *text[4:], 1000, 1001, 1002], told=False)
    drafts = [stage.propose(1) for _ in range(8)]
    assert drafts[-1] == [5]


@every
def test_an_edit_near_the_end_of_a_long_history_is_noticed_at_once(make: Make) -> None:
    text = list(range(1000, 21000))
    stage = Rehearsal(make(1))
    stage.feed([*text, 5, 6, 7, 8, *range(100, 140), 5, 6, 7])
    assert stage.propose(1) == [8]
    stage.feed([*text, 5, 6, 7, 9, *range(100, 140), 5, 6, 7], told=False)
    assert stage.propose(1) == [9]


@every
def test_counts(make: Make) -> None:
    stage = Rehearsal(make(1))
    stage.feed([1, 2, 3, 4, 5, 1, 2])
    stage.propose(2)
    stage.verify([3, 9, 9])
    stage.propose(2)
    counts = stage.speculator.counts()
    name = stage.speculator.name
    assert {key.partition(".")[0] for key in counts} == {name}
    assert (counts[f"{name}.proposals"], counts[f"{name}.drafts"], counts[f"{name}.drafted"]) == (2, 1, 2)


@every
def test_cost_does_not_depend_on_the_history(make: Make) -> None:
    """Well under the 20 microseconds a proposal may cost, at 8,192 tokens and at 131,072."""
    rng = random.Random(0)
    for length in (8192, 131072):
        text = [rng.randrange(3000) for _ in range(length)]
        runner = make(1)
        stage = Rehearsal(runner)
        stage.feed(text)
        best = float("inf")
        for batch in range(60):  # short ones, so that some are not interrupted on a busy machine
            before = runner.counts()[f"{runner.name}.propose_us"]
            for token in text[5 * batch : 5 * batch + 5]:
                stage.propose(8)
                stage.verify([token])
            best = min(best, (runner.counts()[f"{runner.name}.propose_us"] - before) / 5)
        assert best < 20
