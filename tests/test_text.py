"""Text assembly: complete characters, stop strings, and independence of how tokens and rounds are cut."""

from __future__ import annotations

import codecs
import time
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspec._llama import Model
from pyspec.engine.text import Fed, StopMatcher, TextAssembler
from pyspec.errors import InvalidRequest

# --- what is right, written the slow and obvious way ------------------------------------------------


def first_completion(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The end of the first stop string to complete, and the string; the longest of several at one end."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            return end, max(found, key=len)
    return None


def n_complete_chars(data: bytes) -> int:
    return len(codecs.getincrementaldecoder("utf-8")(errors="replace").decode(data))


def expected(pieces: list[bytes], stops: list[str]) -> tuple[str, int, str | None]:
    """Text, number of tokens and stop string of a stream, from all of it at once."""
    text = b"".join(pieces).decode("utf-8", errors="replace")
    found = first_completion(text, stops)
    if found is None:
        return text, len(pieces), None
    end, stop = found
    n_used = next(
        (n for n in range(len(pieces) + 1) if n_complete_chars(b"".join(pieces[:n])) >= end), len(pieces)
    )
    return text[: end - len(stop)], n_used, stop


def held_back(text: str, stops: list[str]) -> int:
    return max((n for s in stops for n in range(1, len(s)) if text.endswith(s[:n])), default=0)


def run(assembler: TextAssembler, rounds: list[list[bytes]]) -> tuple[list[str], int, str | None]:
    """Feeds rounds until the text ends; the chunks, the tokens used and the stop string."""
    chunks, n_used = [], 0
    for pieces in rounds:
        fed = assembler.feed(pieces)
        chunks.append(fed.text)
        n_used += fed.n_used
        if fed.stop is not None:
            return chunks, n_used, fed.stop
    fed = assembler.finish()
    return [*chunks, fed.text], n_used, fed.stop


def cut(items, borders):
    """A sequence in parts, at the given borders."""
    edges = [0, *sorted({b % (len(items) + 1) for b in borders}), len(items)]
    return [items[a:b] for a, b in pairwise(edges)]


# --- strategies: small alphabets, so that stops overlap, nest and almost match ----------------------

CHARS = "ab \n\U0001f600\u6b6a\uac70\u00e9\ufffd"
stop_sets = st.lists(st.text(CHARS, min_size=1, max_size=5), max_size=4)
valid = st.text(CHARS, max_size=40).map(str.encode)
# Fragments that break decoding: lone continuations, cut and overlong sequences, surrogates, out of range.
broken = st.lists(
    st.sampled_from([b"a", b"b", b" ", b"\xc3\xa9", b"\xe6", b"\xad", b"\xaa", b"\xf0\x9f", b"\x98", b"\x80",
                     b"\xff", b"\xc0", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbf\xbd",
                     "\U0001f600".encode()]),
    max_size=25,
).map(b"".join)  # fmt: skip
streams = st.one_of(valid, broken, st.binary(max_size=40))
borders = st.lists(st.integers(0, 200), max_size=30)


@settings(max_examples=1500, deadline=None)
@given(data=streams, stops=stop_sets, token_borders=borders, round_borders=borders)
@example(data=b"hello world", stops=["world", "lo w"], token_borders=list(range(12)), round_borders=[])
@example(data=b"\xe6\xad", stops=["\ufffd"], token_borders=[1], round_borders=[1])
@example(data=b"aab", stops=["aaa", "ab"], token_borders=[1, 2], round_borders=[])
def test_any_cut_gives_the_text_of_the_whole_stream(data, stops, token_borders, round_borders):
    pieces = cut(data, token_borders)
    rounds = cut(pieces, round_borders)
    chunks, n_used, stop = run(TextAssembler(stops), rounds)
    assert ("".join(chunks), n_used, stop) == expected(pieces, stops)


@settings(max_examples=500, deadline=None)
@given(data=streams, stops=stop_sets, token_borders=borders)
def test_only_what_may_still_change_is_held_back(data, stops, token_borders):
    assembler = TextAssembler(stops)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    so_far, released = "", ""
    for piece in cut(data, token_borders):
        fed = assembler.feed([piece])
        so_far += decoder.decode(piece)
        released += fed.text
        if fed.stop is not None:
            break
        assert released == so_far[: len(so_far) - held_back(so_far, stops)]


@settings(max_examples=300, deadline=None)
@given(data=streams, stops=stop_sets, token_borders=borders)
def test_text_never_contains_a_stop_string(data, stops, token_borders):
    chunks, _, stop = run(TextAssembler(stops), [cut(data, token_borders)])
    text = "".join(chunks)
    assert not any(s in text for s in stops)
    if stop is None:
        assert text == data.decode("utf-8", errors="replace")


# --- characters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["\U0001f600 \u6b6a \uac70", "caf\u00e9", "\U0001f469\u200d\U0001f469\u200d\U0001f467"]
)
def test_split_characters_arrive_whole(text):
    pieces = [bytes([b]) for b in text.encode()]
    for per_round in range(1, len(pieces) + 1):
        rounds = [pieces[i : i + per_round] for i in range(0, len(pieces), per_round)]
        chunks, n_used, stop = run(TextAssembler(), rounds)
        assert "".join(chunks) == text
        assert (n_used, stop) == (len(pieces), None)
        assert not any("\ufffd" in chunk for chunk in chunks)
        for chunk in chunks:
            chunk.encode()  # every chunk is text of its own


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_split_characters_of_real_tokenizers(request, model):
    text = "\U0001f600 \u6b6a \uac70 \U0001f469\u200d\U0001f467 na\u00efve \U00010348 \u0f12 end"
    with Model(str(request.getfixturevalue(model)), vocab_only=True) as loaded:
        tokens = loaded.vocab.tokenize(text, add_special=False)
        pieces = [loaded.vocab.piece(token, special=False) for token in tokens]
    assert any("\ufffd" in piece.decode(errors="replace") for piece in pieces)
    for per_round in (1, 2, 3, 5, 9):
        rounds = [pieces[i : i + per_round] for i in range(0, len(pieces), per_round)]
        chunks, n_used, stop = run(TextAssembler(["\u6b6a\u6b6a", "end of"]), rounds)
        assert ("".join(chunks), n_used, stop) == (text, len(tokens), None)
        chunks, n_used, stop = run(TextAssembler(["\uac70"]), rounds)
        assert "".join(chunks) == text[: text.index("\uac70")]
        assert b"".join(pieces[: n_used - 1]).decode(errors="ignore").count("\uac70") == 0
        assert b"".join(pieces[:n_used]).decode(errors="ignore").count("\uac70") == 1


def test_a_character_is_released_with_its_last_byte():
    assembler = TextAssembler()
    texts = [assembler.feed([bytes([b])]).text for b in "\U0001f600a".encode()]
    assert texts == ["", "", "", "\U0001f600", "a"]


def test_a_character_cut_by_the_end_becomes_a_replacement_and_is_reported():
    assembler = TextAssembler()
    assert assembler.feed([b"ok ", b"\xe6\xad"]).text == "ok "
    assert assembler.incomplete == b"\xe6\xad"
    assert assembler.finish() == Fed("\ufffd", 0)
    assert assembler.incomplete == b""


def test_invalid_bytes_are_replaced_as_soon_as_they_are_known_to_be_invalid():
    assembler = TextAssembler()
    assert assembler.feed([b"a\xff"]).text == "a\ufffd"
    assert assembler.feed([b"\xe6"]).text == ""
    assert assembler.feed([b"b"]).text == "\ufffdb"


def test_empty_pieces_count_as_tokens():
    assembler = TextAssembler(["x"])
    assert assembler.feed([b"", b"a", b""]) == Fed("a", 3, parts=("", "a", ""))
    assert assembler.feed([]) == Fed("", 0)
    assert assembler.feed([b"", b"x", b""]) == Fed("", 2, "x", parts=("", ""))


# --- stop strings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "n_used", "stop"),
    [
        # The first to complete wins, even inside one token, and whichever order they are given in.
        (["world", "lo w"], [b"hello world"], "hel", 1, "lo w"),
        (["lo w", "world"], [b"hel", b"lo", b" wor", b"ld"], "hel", 3, "lo w"),
        (["abcd", "bc"], [b"abcd"], "a", 1, "bc"),
        # Completing at the same character: the longest.
        (["c", "bc", "abc"], [b"xab", b"c"], "x", 2, "abc"),
        (["bc", "xbc"], [b"a", b"bc"], "a", 2, "bc"),
        # Over three tokens; the tokens behind the one that completes it are not part of the result.
        ([" ha ha ha"], [b"no", b" ha", b" ha", b" ha", b" ha"], "no", 4, " ha ha ha"),
        # A false start that turns into the real one.
        (["aab"], [b"a", b"a", b"a", b"b"], "a", 4, "aab"),
        (["abac"], [b"aba", b"bac"], "ab", 2, "abac"),
        # A stop string that begins in the middle of one token and ends in the middle of another.
        (["END"], [b"text E", b"N", b"D more"], "text ", 3, "END"),
        # Bytes of one character in different tokens.
        (["\u6b6a"], [b"a\xe6", b"\xad", b"\xaab"], "a", 3, "\u6b6a"),
        # At the very start.
        (["\n"], [b"\n", b"a"], "", 1, "\n"),
    ],
)
def test_stop_strings(stops, pieces, text, n_used, stop):
    for rounds in ([pieces], [[p] for p in pieces]):
        chunks, used, found = run(TextAssembler(stops), rounds)
        assert ("".join(chunks), used, found) == (text, n_used, stop)


def test_a_beginning_of_a_stop_string_is_released_when_the_text_ends_there():
    assembler = TextAssembler(["\n\n", "User:"])
    assert assembler.feed([b"Hi\n", b"Use"]).text == "Hi\n"
    assert assembler.finish() == Fed("Use", 0)


def test_a_beginning_of_a_stop_string_holds_back_nothing_before_it():
    assembler = TextAssembler(["</s>"])
    assert assembler.feed([b"a long text <"]).text == "a long text "
    assert assembler.feed([b"b"]).text == "<b"


def test_nothing_is_taken_after_a_stop_string():
    assembler = TextAssembler(["."])
    assert assembler.feed([b"a.", b"b"]) == Fed("a", 1, ".", parts=("a",))
    assert assembler.stopped == "."
    assert assembler.feed([b"c"]) == Fed("", 0, ".")
    assert assembler.finish() == Fed("", 0, ".")
    assert assembler.incomplete == b""


def test_a_single_string_is_one_stop_string():
    assert TextAssembler("ab").feed([b"xbay", b"ab"]) == Fed("xbay", 2, "ab", parts=("xbay", ""))


@pytest.mark.parametrize("stop", ["", [""], ["a", ""]])
def test_an_empty_stop_string_is_refused(stop):
    if stop == "":
        stop = ("",)
    with pytest.raises(InvalidRequest, match="empty string") as caught:
        TextAssembler(stop)
    assert caught.value.name == "stop"


def test_cost_is_linear_in_text_and_stop_strings():
    """The case that makes naive matching quadratic: everything is almost a stop string, all the time."""

    def seconds(n: int) -> float:
        stops = ["a" * n + "b", "a" * (n // 2) + "c"]
        pieces = [b"a"] * (2 * n)
        assembler = TextAssembler(stops)
        start = time.perf_counter()
        released = "".join(assembler.feed([p]).text for p in pieces) + assembler.finish().text
        assert released == "a" * (2 * n)
        return time.perf_counter() - start

    seconds(500)
    small = min(seconds(2_000) for _ in range(3))
    large = min(seconds(20_000) for _ in range(3))
    assert large < 10 * small * 3  # ten times the work; quadratic would be a hundred


def test_many_stop_strings_cost_no_more_than_one():
    text = ("some ordinary text without any of them " * 500).encode()

    def seconds(stops: list[str]) -> float:
        best = float("inf")
        for _ in range(3):
            assembler = TextAssembler(stops)
            start = time.perf_counter()
            assembler.feed([text[i : i + 4] for i in range(0, len(text), 4)])
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds([f"x{i}" for i in range(2_000)]) < 5 * seconds(["x1"])


def test_matcher_reports_what_may_still_match():
    matcher = StopMatcher(["abcx", "bcy"])
    assert matcher.feed("ab") is None
    assert matcher.held == 2
    assert matcher.feed("c") is None
    assert matcher.held == 3
    assert matcher.feed("y") == (1, "bcy")
