"""ngram-cache: what it does better than llama.cpp's (common/ngram-cache.cpp), and where it does the same."""

from __future__ import annotations

import pytest
from ngram_stage import draft

from pyspec._ngram import LookupCache, NGramCacheRunner, Rehearsal


def test_n_draft() -> None:
    for n in (1, 8, 40):
        assert len(draft(NGramCacheRunner(1, n_draft=n), [1, 2, 3, 4, 5] * 9)) == n


def test_n_grams_across_rounds_are_counted() -> None:
    """Token by token, as plain rounds bring them. llama.cpp learns nothing from a round of one token."""
    stage = Rehearsal(NGramCacheRunner(1))
    stage.feed([50, 51])
    for token in [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4]:
        stage.propose(8)
        stage.verify([token])
    assert stage.propose(4) == [5, 6, 7, 8]


Counts = dict[tuple[int, ...], dict[int, int]]


def table(counts: Counts | None) -> LookupCache | None:
    if counts is None:
        return None
    cache = LookupCache()
    for ngram, successors in counts.items():
        for token, count in successors.items():
            for _ in range(count):
                cache.update([*ngram, token], low=len(ngram), high=len(ngram))
    return cache


def cache_draft(history: list[int], static: Counts | None = None, dynamic: Counts | None = None) -> list[int]:
    """The first token that is proposed, if any."""
    runner = NGramCacheRunner(1, n_draft=1, lookup_static=table(static), lookup_dynamic=table(dynamic))
    return draft(runner, history)


def test_thresholds_of_the_context() -> None:
    """Four or three tokens: once, half of the time. Two: twice, half. One: twice, two thirds."""
    assert cache_draft([1, 2, 3, 9, 70, 1, 2, 3]) == [9]
    assert cache_draft([2, 3, 9, 70, 2, 3]) == []
    assert cache_draft([2, 3, 9, 70, 2, 3, 9, 71, 2, 3]) == [9]
    assert cache_draft([3, 9, 70, 3, 9, 71, 3, 8, 72, 3]) == [9]
    assert cache_draft([3, 9, 70, 3, 8, 72, 3]) == []


def test_of_equals_the_newest_is_taken() -> None:
    assert cache_draft([1, 2, 3, 8, 70, 1, 2, 3, 9, 71, 1, 2, 3]) == [9]


def test_thresholds_of_other_requests() -> None:
    """Two to four occurrences, two thirds to three quarters."""
    history = [40, 41, 42, 43]
    assert cache_draft(history, dynamic={(40, 41, 42, 43): {9: 1}}) == []
    assert cache_draft(history, dynamic={(40, 41, 42, 43): {9: 2, 8: 1}}) == [9]
    assert cache_draft(history, dynamic={(40, 41, 42, 43): {9: 3, 8: 2}}) == []
    assert cache_draft(history, dynamic={(42, 43): {9: 2}}) == []
    assert cache_draft(history, dynamic={(42, 43): {9: 2, 8: 1}}) == [9]
    assert cache_draft(history, dynamic={(43,): {9: 3, 8: 1}}) == [9]
    assert cache_draft(history, dynamic={(43,): {9: 5, 8: 2}}) == []


def test_the_corpus_alone() -> None:
    assert cache_draft([42, 43], static={(42, 43): {9: 1}}) == []
    assert cache_draft([42, 43], static={(42, 43): {9: 2, 8: 2}}) == [8]
    assert cache_draft([42, 43], static={(42, 43): {9: 2, 8: 1, 7: 1}}) == [9]
    assert cache_draft([42, 43], static={(42, 43): {9: 2, 8: 1, 7: 2}}) == []
    assert cache_draft([43], static={(43,): {9: 5}, (42, 43): {9: 9}}) == []


def test_the_corpus_decides_between_equals() -> None:
    history = [1, 2, 3, 8, 70, 1, 2, 3, 9, 71, 1, 2, 3]
    assert cache_draft(history, static={(2, 3): {8: 1}}) == [8]
    assert cache_draft(history, static={(2, 3): {8: 2, 9: 3}}) == [9]


def test_a_token_the_corpus_prefers_but_the_text_does_not_stops_the_draft() -> None:
    history = [*[1, 2, 3, 9, 70] * 3, 1, 2, 3, 8, 71, 1, 2, 3]
    assert cache_draft(history) == [9]
    assert cache_draft(history, static={(2, 3): {8: 1}}) == []


def test_the_context_comes_before_other_requests_and_these_before_the_corpus() -> None:
    context = [1, 2, 3, 9, 70, 1, 2, 3]
    dynamic = {(1, 2, 3): {8: 5}}
    static = {(2, 3): {7: 5}}
    assert cache_draft(context, dynamic=dynamic) == [9]
    assert cache_draft([1, 2, 3], static={(5, 6): {7: 5}}, dynamic=dynamic) == [8]
    assert cache_draft([2, 3], static=static, dynamic=dynamic) == [7]


def test_what_was_written_is_taught_to_later_requests() -> None:
    """When the request ends; the prompt is left out."""
    learned = LookupCache()
    stage = Rehearsal(NGramCacheRunner(2, lookup_dynamic=learned, teach=True), 2)
    for _ in range(3):
        before = len(learned)
        stage.feed([1, 2, 3, 4, 5, 6], seq=0)  # 6 is the seed: the first token that is not the prompt's
        for token in (70, 71, 72, 73, 74):
            stage.propose(0, seq=0)
            stage.verify([token], seq=0)
        assert len(learned) == before
        stage.forget(seq=0)
    assert learned[(70, 71)] == {72: 3}
    assert learned[(5,)] == {6: 3}
    with pytest.raises(KeyError):
        learned[(4,)]
    stage.feed([9, 70, 71], seq=1)
    assert stage.propose(8, seq=1) == [72, 73, 74]


def test_a_corpus_exists_once() -> None:
    corpus = LookupCache()
    corpus.update([1, 2, 3] * 5, low=2, high=2)
    runner = NGramCacheRunner(64, lookup_static=corpus)
    assert runner.lookup_static is corpus
    stage = Rehearsal(runner, 64)
    for seq in range(64):
        stage.feed([1, 2], seq=seq)
        assert stage.propose(4, seq=seq) == [3, 1, 2, 3]
