"""Files of lookup caches: llama.cpp's format, and what happens to damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram_stage import draft, patient

from pyspec._ngram import LookupCache, NGramCacheRunner
from pyspec.errors import InvalidRequest, StateError
from pyspec.speculation import NGramCache, lookup_file
from pyspec.speculation.ngram_config import save_learned

Counts = dict[tuple[int, ...], dict[int, int]]


def as_written_by_llama_cpp(counts: Counts) -> bytes:
    """Records of four tokens (-1 where there is none), the number of successors, and each with its count."""
    data = b""
    for ngram, successors in counts.items():
        data += struct.pack("<4i", *ngram, *[-1] * (4 - len(ngram)))
        data += struct.pack("<i", len(successors))
        for token, count in successors.items():
            data += struct.pack("<2i", token, count)
    return data


COUNTS: Counts = {(5,): {6: 1}, (7, 8): {9: 3, 10: 2**31 - 1}, (1, 2, 3): {4: 2, 0: 1, 7: 7}, (1, 2, 3, 4): {5: 1}}
DATA = as_written_by_llama_cpp(COUNTS)

ngrams = st.lists(st.integers(0, 99), min_size=1, max_size=4).map(tuple)
caches = st.dictionaries(ngrams, st.dictionaries(st.integers(0, 99), st.integers(1, 9), min_size=1), max_size=20)
texts = st.lists(st.integers(0, 5), max_size=60)


def test_llama_cpp_files_are_read() -> None:
    cache = LookupCache.from_bytes(DATA)
    assert len(cache) == 4
    assert cache.to_dict() == COUNTS
    assert cache[(7, 8)] == {9: 3, 10: 2**31 - 1}
    for missing in ((7,), (8, 7), (), (1, 2, 3, 4, 5)):
        with pytest.raises(KeyError):
            cache[missing]


def test_an_empty_file_is_an_empty_cache() -> None:
    assert LookupCache.from_bytes(b"").to_dict() == {}


@patient
@given(caches)
def test_round_trip(counts: Counts) -> None:
    cache = LookupCache.from_bytes(as_written_by_llama_cpp(counts))
    assert cache.to_dict() == counts
    assert LookupCache.from_bytes(cache.to_bytes()).to_dict() == counts
    assert len(cache.to_bytes()) == len(as_written_by_llama_cpp(counts))


@patient
@given(texts, texts)
def test_a_saved_cache_drafts_the_same(corpus: list[int], history: list[int]) -> None:
    """Ties included."""
    cache = LookupCache()
    cache.update(corpus)
    again = LookupCache.from_bytes(cache.to_bytes())
    for name in ("lookup_static", "lookup_dynamic"):
        drafts = [draft(NGramCacheRunner(1, **{name: c}), history) for c in (cache, again)]
        assert drafts[0] == drafts[1]


def test_update() -> None:
    cache = LookupCache()
    cache.update([1, 2, 1, 2, 3], low=1, high=2)
    assert cache.to_dict() == {(1,): {2: 2}, (2,): {1: 1, 3: 1}, (1, 2): {1: 1, 3: 1}, (2, 1): {2: 1}}
    for low, high in ((0, 2), (1, 5), (3, 2)):
        with pytest.raises(InvalidRequest):
            cache.update([1, 2], low=low, high=high)
    with pytest.raises(InvalidRequest):
        cache.update([1, -1])


@patient
@given(caches, caches)
def test_merge(a: Counts, b: Counts) -> None:
    merged = LookupCache.from_bytes(as_written_by_llama_cpp(a))
    merged.merge(LookupCache.from_bytes(as_written_by_llama_cpp(b)))
    expected = {ngram: dict(successors) for ngram, successors in a.items()}
    for ngram, successors in b.items():
        for token, count in successors.items():
            into = expected.setdefault(ngram, {})
            into[token] = into.get(token, 0) + count
    assert merged.to_dict() == expected


def test_counts_do_not_overflow() -> None:
    cache = LookupCache.from_bytes(DATA)
    cache.merge(cache)
    assert cache[(7, 8)] == {9: 6, 10: 2**31 - 1}
    cache.update([7, 8, 10], low=2, high=2)
    assert cache[(7, 8)] == {9: 6, 10: 2**31 - 1}


# -- damage ----------------------------------------------------------------------------------------------------


def refused(data: bytes, n_vocab: int | None = None) -> str:
    with pytest.raises(StateError) as error:
        LookupCache.from_bytes(data, n_vocab)
    return str(error.value)


def test_a_file_that_ends_early() -> None:
    ends = {0}
    for ngram, successors in COUNTS.items():
        ends.add(max(ends) + len(as_written_by_llama_cpp({ngram: successors})))
    for n in range(len(DATA)):
        if n not in ends:
            assert refused(DATA[:n]).startswith("byte ")
    assert refused(DATA + b"\0") == f"byte {len(DATA)}: it ends within an n-gram (1 bytes are left)"
    assert refused(DATA[:-3]) == f"byte {len(DATA) - 12}: 1 successors do not fit into the 5 bytes that are left"


def with_integer(at: int, value: int) -> bytes:
    return DATA[:at] + struct.pack("<i", value) + DATA[at + 4 :]


# The first record: the n-gram at 0, its number of successors at 16, a successor at 20, its count at 24.


@pytest.mark.parametrize("n", [0, -1, -(2**31), 2**31 - 1, 2**28])
def test_sizes_are_not_trusted(n: int) -> None:
    assert refused(with_integer(16, n)).startswith("byte 16: ")


@pytest.mark.parametrize("count", [0, -1, -(2**31)])
def test_counts_are_positive(count: int) -> None:
    assert refused(with_integer(24, count)) == f"byte 24: a count of {count}"


def test_tokens_are_in_the_vocabulary() -> None:
    assert LookupCache.from_bytes(DATA, 11).to_dict() == COUNTS
    assert refused(DATA, 10) == f"byte {28 + 20 + 8}: token 10 is not in the vocabulary of 10"
    assert refused(DATA, 8) == f"byte {28 + 4}: token 8 is not in the vocabulary of 8"
    assert refused(with_integer(20, -5)).startswith("byte 20: token -5 ")
    assert refused(with_integer(0, -1)).startswith("byte 0: token -1 ")
    assert refused(with_integer(4, -2)).startswith("byte 4: token -2 ")


def test_an_n_gram_has_no_gap() -> None:
    assert refused(with_integer(8, 3)) == "byte 8: token 3 follows the end of an n-gram"


def test_nothing_is_there_twice() -> None:
    assert refused(DATA + DATA) == f"byte {len(DATA)}: the n-gram is there twice"
    one = as_written_by_llama_cpp({(1,): {2: 3, 4: 5}})
    assert refused(one[:28] + struct.pack("<2i", 2, 1)) == "byte 28: token 2 is there twice"


@patient
@given(st.binary(max_size=200))
def test_noise_is_refused_or_read(data: bytes) -> None:
    try:
        cache = LookupCache.from_bytes(data)
    except StateError:
        return
    assert len(cache.to_bytes()) == len(data)


@patient
@given(st.lists(st.tuples(st.integers(0, len(DATA) - 1), st.integers(0, 255)), max_size=4), st.integers(1, 20))
def test_a_damaged_file_is_refused_or_drafts_known_tokens(damage: list[tuple[int, int]], n_vocab: int) -> None:
    data = bytearray(DATA)
    for at, byte in damage:
        data[at] = byte
    try:
        cache = LookupCache.from_bytes(data, n_vocab)
    except StateError:
        return
    for history in ([1, 2, 3], [7, 8], [5]):
        proposed = draft(NGramCacheRunner(1, lookup_static=cache, lookup_dynamic=cache), history)
        assert all(0 <= token < n_vocab for token in proposed)


# -- on disk ---------------------------------------------------------------------------------------------------


def test_save_load_merge(tmp_path: Path) -> None:
    cache = LookupCache.from_bytes(DATA)
    lookup_file.save(tmp_path / "a.bin", cache)
    assert (tmp_path / "a.bin").stat().st_size == len(DATA)
    assert lookup_file.load(str(tmp_path / "a.bin"), 11).to_dict() == COUNTS
    other = LookupCache()
    other.update([5, 6, 11])
    lookup_file.save(tmp_path / "b.bin", other)
    lookup_file.save(tmp_path / "b.bin", other)
    merged = lookup_file.merge([tmp_path / "a.bin", tmp_path / "b.bin"])
    assert (merged[(5,)], merged[(5, 6)], merged[(7, 8)]) == ({6: 2}, {11: 1}, COUNTS[(7, 8)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "b.bin"]
    with pytest.raises(StateError, match=r"b\.bin is damaged or not one: byte \d+: token 11 "):
        lookup_file.merge([tmp_path / "a.bin", tmp_path / "b.bin"], 11)


def test_a_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.bin", tmp_path):
        with pytest.raises(InvalidRequest, match="can't be read") as error:
            lookup_file.load(path)
        assert error.value.name == "path"


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        lookup_file.save(tmp_path / "no" / "a.bin", LookupCache())


def test_a_save_that_fails_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    config = NGramCache(lookup_cache_dynamic=folder / "a.bin", save_dynamic=True)
    runner = config.build(1)
    folder.rmdir()
    save_learned(config, runner)
    assert "a.bin could not be saved" in caplog.text


def test_the_configuration_reads_and_saves(tmp_path: Path) -> None:
    corpus, learned = tmp_path / "corpus.bin", tmp_path / "learned.bin"
    lookup_file.save(corpus, LookupCache.from_bytes(DATA))
    config = NGramCache(lookup_cache_static=corpus, lookup_cache_dynamic=learned, save_dynamic=True)
    runner = config.build(2, n_vocab=11)
    assert runner.lookup_static is not None
    assert runner.lookup_static.to_dict() == COUNTS
    assert runner.lookup_dynamic is not None
    assert len(runner.lookup_dynamic) == 0
    runner.lookup_dynamic.update([1, 2, 3])
    save_learned(config, runner)
    assert len(lookup_file.load(learned)) == 3
    assert len(config.build(1).lookup_dynamic or ()) == 3

    only_read = NGramCache(lookup_cache_dynamic=learned)
    reader = only_read.build(1)
    assert reader.lookup_dynamic is not None
    reader.lookup_dynamic.update([4, 5])
    save_learned(only_read, reader)
    assert len(lookup_file.load(learned)) == 3

    with pytest.raises(InvalidRequest):
        NGramCache(lookup_cache_dynamic=tmp_path / "none").build(1)
    with pytest.raises(InvalidRequest, match="no such directory"):
        NGramCache(lookup_cache_dynamic=tmp_path / "none" / "a", save_dynamic=True).build(1)
    with pytest.raises(StateError):
        config.build(1, n_vocab=5)
    corpus.write_bytes(DATA[:-1])
    with pytest.raises(StateError):
        config.build(1)
