"""Text of scripted models, whose tokens are known bytes: characters split over tokens, rounds, limits and stops.

The target writes the script whatever was drafted, so every way of drafting has to give the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import drafters
import pytest
import tiny_models

from pyspec import Engine, Result, SamplingParams

# An emoji, a Chinese and a Korean character byte by byte, with whole tokens and a split "é" between them.
BYTES = [*"\U0001f600".encode(), None, *"\u6b6a".encode(), None, *"\uac70".encode(), None, *"\u00e9".encode(), None]
PIECES = ["\u2581hello", "!", "\u4f60", "\u2581world"]
TEXT = "\U0001f600 hello\u6b6a!\uac70\u4f60\u00e9 world"


def script() -> list[str]:
    pieces = iter(PIECES)
    return [next(pieces) if byte is None else f"<0x{byte:02X}>" for byte in BYTES]


class Stage:
    def __init__(self, engine: Engine, puppet: drafters.Puppet, tokens: list[int]) -> None:
        self.engine = engine
        self.puppet = puppet
        self.tokens = tokens
        self.prompt = engine.tokenize("the")
        self.bytes = [engine.model.vocab.piece(token, special=False) for token in tokens]

    def run(self, params: SamplingParams) -> tuple[Result, list[str]]:
        generation = self.engine.stream(self.prompt, params)
        chunks = list(generation)
        result = generation.result()
        assert "".join(chunk.text for chunk in chunks) == result.text
        assert sum((chunk.tokens for chunk in chunks), ()) == result.token_ids
        return result, [chunk.text for chunk in chunks]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    path: Path = tmp_path_factory.mktemp("scripted") / "model.gguf"
    tokens = tiny_models.write_scripted(path, script())
    puppet = drafters.Puppet()
    with Engine(path, speculation=puppet, n_ctx=256) as engine:
        yield Stage(engine, puppet, tokens)


DRAFTS: dict[str, Callable[[Stage], drafters.Script]] = {
    "none": lambda s: drafters.nothing,
    **{f"right{n}": lambda s, n=n: drafters.right(s.prompt, s.tokens, n) for n in (1, 2, 3, 5, 16)},
    **{f"mix{k}": lambda s, k=k: drafters.mix(k, s.prompt, s.tokens, 256, 4) for k in (1, 2, 3)},
    "noise": lambda s: drafters.noise(s.prompt, s.tokens, 256),
}


@pytest.fixture(params=DRAFTS, autouse=True)
def draft(request: pytest.FixtureRequest, stage: Stage) -> str:
    stage.puppet.script = DRAFTS[str(request.param)](stage)
    return str(request.param)


def test_characters_in_pieces(stage: Stage, draft: str) -> None:
    result, chunks = stage.run(SamplingParams(temperature=0.0))
    assert result.text == TEXT
    assert result.finish_reason == "stop" and result.token_ids[:-1] == tuple(stage.tokens)
    for chunk in chunks:
        assert "\ufffd" not in chunk and chunk.encode().decode() == chunk
    if draft == "right16":
        assert len(chunks) <= 3


def test_a_limit_inside_a_character(stage: Stage) -> None:
    """The bytes of a character that never got complete become U+FFFD, as bytes.decode(errors="replace") does it."""
    for n in range(1, len(stage.tokens) + 1):
        result, chunks = stage.run(SamplingParams(temperature=0.0, max_tokens=n))
        assert result.token_ids == tuple(stage.tokens[:n]) and result.finish_reason == "length"
        whole = b"".join(stage.bytes[:n]).decode(errors="replace")
        assert result.text == whole
        for chunk in chunks[:-1]:
            assert "\ufffd" not in chunk
        assert whole.rstrip("\ufffd") == TEXT[: len(whole.rstrip("\ufffd"))]


@pytest.mark.parametrize(
    "stop",
    ["\u6b6a", "\u6b6a!", "!\uac70", "o\u6b6a!\uac70\u4f60", "\U0001f600", "\u00e9 w", "rld", " ", "\u4f60\u00e9"],
)
def test_stop_strings_over_characters_in_pieces(stage: Stage, stop: str) -> None:
    result, chunks = stage.run(SamplingParams(temperature=0.0, stop=[stop, "never \u6b6a"]))
    assert (result.finish_reason, result.stop) == ("stop", stop)
    assert result.text == TEXT[: TEXT.index(stop)]
    # The last token is the one that completed the stop string.
    n = len(result.token_ids)
    assert result.token_ids == tuple(stage.tokens[:n])
    assert stop in b"".join(stage.bytes[:n]).decode(errors="replace")
    assert stop not in b"".join(stage.bytes[: n - 1]).decode(errors="replace")
    assert all("\ufffd" not in chunk for chunk in chunks)


@pytest.mark.parametrize("stop", ["\ufffd", "\u6b6b", "hello\u6b6a?", TEXT + "x"])
def test_stop_strings_that_almost_appear(stage: Stage, stop: str) -> None:
    result, _ = stage.run(SamplingParams(temperature=0.0, stop=stop))
    assert result.text == TEXT and result.finish_reason == "stop" and isinstance(result.stop, int)


def test_a_stop_string_made_of_a_cut_character(stage: Stage) -> None:
    """What becomes U+FFFD at the limit is text like any other, and can be a stop string."""
    result, _ = stage.run(SamplingParams(temperature=0.0, stop="\ufffd", max_tokens=2))
    assert (result.text, result.finish_reason, result.stop) == ("", "stop", "\ufffd")


@pytest.mark.parametrize("at", range(len(BYTES)))
def test_a_stop_token_inside_a_character(stage: Stage, at: int) -> None:
    """A stop token is no text; what is left of a character before it becomes U+FFFD."""
    result, _ = stage.run(SamplingParams(temperature=0.0, stop_token_ids=[stage.tokens[at]]))
    assert (result.finish_reason, result.stop) == ("stop", stage.tokens[at])
    assert result.token_ids == tuple(stage.tokens[: at + 1])
    assert result.text == b"".join(stage.bytes[:at]).decode(errors="replace")
