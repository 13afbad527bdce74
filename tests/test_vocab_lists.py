"""Lists of the tokens worth drafting: reading corpora, counting, choosing, looking at lists, and the command for it."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspec import Engine, InvalidRequest, SamplingParams
from pyspec._llama import Model, Vocab
from pyspec.cli import main
from pyspec.gguf_header import read_gguf
from pyspec.speculation import DraftModel
from pyspec.speculation.draft_vocab import special_tokens
from pyspec.speculation.vocab_list import VocabList, read_list, tokenizer_hash, write_list
from pyspec.vocab_lists import Source, build, count, find, inspect, merge, pieces
from pyspec.vocab_lists import corpus as corpus_module
from pyspec.vocab_lists.count import parts, tally
from pyspec.vocab_lists.inspection import script

ENGLISH = "The lighthouse keeper walked down to the shore every morning and looked at the sea.\n" * 40
CODE = "def area(width, height):\n    return width * height\n\n" * 30
RUSSIAN = "Смотритель маяка каждое утро спускался к берегу и смотрел на море.\n" * 10


@pytest.fixture(scope="module")
def vocab(smollm2: Path) -> Iterator[Vocab]:
    with Model(str(smollm2), vocab_only=True) as model:
        yield model.vocab


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    (folder / "english.txt").write_text(ENGLISH, encoding="utf-8")
    (folder / "deep" / "area.py").write_text(CODE, encoding="utf-8")
    (folder / "deep" / "picture.png").write_bytes(b"\x89PNG\0\0")
    lines = [{"text": line, "meta": {"title": "a sea"}} for line in RUSSIAN.splitlines()]
    with gzip.open(folder / "russian.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    return folder


# -- corpora ---------------------------------------------------------------------------------------------------------


def test_files_folders_and_patterns(texts: Path) -> None:
    by_folder = [source.path for source in find([texts])]
    assert by_folder == [str(texts / name) for name in ("deep/area.py", "english.txt", "russian.jsonl.gz")]
    assert [source.path for source in find([f"{texts}/**/*.py"])] == [str(texts / "deep" / "area.py")]
    assert [source.path for source in find([texts / "english.txt", texts])] == [
        by_folder[1],
        by_folder[0],
        by_folder[2],
    ]
    for nothing in (texts / "missing.txt", f"{texts}/*.doc"):
        with pytest.raises(InvalidRequest, match="is no file, folder or pattern"):
            find([nothing])
    (texts / "empty").mkdir()
    with pytest.raises(InvalidRequest, match="holds no texts"):
        find([texts / "empty"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=300),
    size=st.integers(1, 40),
)
def test_pieces_are_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setattr(corpus_module, "PIECE", size)
    for name, opened in (("a.txt", open), ("a.txt.gz", gzip.open)):
        with opened(tmp_path / name, "wb") as file:
            file.write(text.encode())
        assert "".join(pieces(Source(str(tmp_path / name)))) == text


def test_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one", "m": {"t": "two"}}\n\n{"text": "three", "m": {"t": "four"}}\n', encoding="utf-8")
    assert "".join(pieces(Source(str(path)))) == "one\nthree\n"
    assert "".join(pieces(Source(str(path), ("m.t", "text")))) == "two\none\nfour\nthree\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"good\nbad\0", r"a\.txt, line 2, is binary"),
        ("a.txt", b"one\ntwo\nth\xffree\n", r"a\.txt, line 3, is no UTF-8"),
        ("a.txt", b"ends in the middle \xe2\x82", r"line 1, is no UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": ', r"a\.jsonl, line 2, is no JSON"),
        ("a.jsonl", b'{"text": "a"}\n{"other": 1}\n', r"line 2, has no text called 'text'"),
        ("a.jsonl", b'{"text": 5}\n', r"line 1, has no text called 'text'"),
        ("a.jsonl", b"\xff\n", r"line 1, is no JSON"),
        ("a.gz", b"this was never packed", r"a\.gz can't be read"),
        ("a.gz", gzip.compress(b"cut short" * 100, mtime=0)[:-9], r"a\.gz can't be read"),
    ],
)
def test_files_that_are_no_text(smollm2: Path, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidRequest, match=message):
        count(str(smollm2), [Source(str(tmp_path / name))], n_processes=1)
    with pytest.raises(InvalidRequest, match="can't be read"):
        list(pieces(Source(str(tmp_path / "missing"))))


# -- counting --------------------------------------------------------------------------------------------------------


def as_counter(counts: Any) -> Counter[int]:
    return Counter({int(token): int(counts[token]) for token in np.flatnonzero(counts)})


@pytest.mark.parametrize("n_processes", [1, 2])
def test_counts_are_the_tokenizers(
    smollm2: Path, vocab: Vocab, texts: Path, monkeypatch: pytest.MonkeyPatch, n_processes: int
) -> None:
    monkeypatch.setattr(corpus_module, "PIECE", 500)
    seen: list[int] = []
    sources = find([texts])
    counts = count(str(smollm2), sources, n_processes=n_processes, by_source=True, progress=seen.append)
    expected: Counter[int] = Counter()
    for source in sources:
        own: Counter[int] = Counter()
        for piece in pieces(source):
            own.update(vocab.tokenize(piece, add_special=False))
        assert {
            int(t): int(counts.by_source[source.path][t]) for t in np.flatnonzero(counts.by_source[source.path])
        } == own
        expected += own
    assert {int(t): int(counts.by_token[t]) for t in np.flatnonzero(counts.by_token)} == expected
    assert counts.total == sum(expected.values())
    assert counts.n_characters == len(ENGLISH) + len(CODE) + len(RUSSIAN) == seen[-1]
    assert seen == sorted(seen)


@settings(max_examples=100, deadline=None)
@given(text=st.text("ab \n\U0001f642", max_size=200), size=st.integers(1, 30))
def test_parts_are_the_text(text: str, size: int) -> None:
    cut = list(parts(text, size))
    assert "".join(cut) == text
    assert all(0 < len(part) <= size for part in cut[:-1]) and len(cut[-1]) <= size
    for part, following in itertools.pairwise(cut):
        assert part.endswith("\n") or "\n" not in part
        assert part.endswith("\n") or following.startswith(" ") or " " not in part[1:]


def test_long_texts_count_alike_but_for_their_cuts(vocab: Vocab) -> None:
    text = (CODE + ENGLISH) * 40
    ids, numbers = tally(vocab, text)
    whole = Counter(vocab.tokenize(text, add_special=False))
    found = Counter(dict(zip(ids.tolist(), numbers.tolist(), strict=True)))
    n_cuts = len(list(parts(text))) - 1
    assert n_cuts > 20
    assert (found - whole).total() + (whole - found).total() <= 6 * n_cuts


# -- choosing --------------------------------------------------------------------------------------------------------


def test_the_most_frequent_until_enough_is_covered(vocab: Vocab) -> None:
    counts = np.zeros(vocab.n_tokens, np.int64)
    counts[1000:1200] = np.arange(200, 0, -1) ** 2
    special = set(special_tokens(vocab))
    built = build(counts, vocab, coverage=0.9)
    assert len(built.ids) % 64 == 0 and special <= set(built.ids) and built.n_special == len(special)
    assert built.coverage >= 0.9
    assert list(built.ids[:50]) == list(range(1000, 1050))
    assert built.coverage == counts[list(built.ids)].sum() / counts.sum()
    fewer = build(counts, vocab, coverage=0.5)
    assert set(fewer.ids) <= set(built.ids)
    sized = build(counts, vocab, size=1000)
    assert len(sized.ids) == 1024
    assert build(counts, vocab, size=1000) == sized  # the same again
    assert set(vocab.eog_tokens) <= set(sized.ids)
    whole = build(counts, vocab, coverage=1.0)
    assert set(range(1000, 1200)) <= set(whole.ids) and whole.coverage == 1.0
    huge = build(counts, vocab, size=10**9)
    assert len(huge.ids) == vocab.n_tokens


def test_placeholders_only_if_asked_for(gemma3: Path) -> None:
    with Model(str(gemma3), vocab_only=True) as model:
        counts = np.zeros(model.vocab.n_tokens, np.int64)
        counts[5000] = 1
        assert len(build(counts, model.vocab).ids) < 1500
        assert len(build(counts, model.vocab, all_control=True).ids) > 6242


@pytest.mark.parametrize(
    ("parameters", "name"),
    [({"coverage": 1.5}, "coverage"), ({"coverage": float("nan")}, "coverage"), ({"size": 0}, "size")],
)
def test_impossible_lists(vocab: Vocab, parameters: dict[str, Any], name: str) -> None:
    counts = np.ones(vocab.n_tokens, np.int64)
    with pytest.raises(InvalidRequest) as caught:
        build(counts, vocab, **parameters)
    assert caught.value.name == name
    with pytest.raises(InvalidRequest, match="no tokens"):
        build(0 * counts, vocab)


def test_joined_lists(vocab: Vocab) -> None:
    own = tokenizer_hash(vocab)
    lists = [VocabList((5, 6, 7), {"tokenizer": own}, "a"), VocabList((9, 5, 8, 100), {}, "b")]
    assert merge(lists) == (5, 9, 6, 7, 8, 100)
    filled = merge(lists, vocab)
    assert len(filled) == 64 == len(set(filled)) and filled[:6] == merge(lists)
    with pytest.raises(InvalidRequest, match="different tokenizers: a, c"):
        merge([lists[0], VocabList((1,), {"tokenizer": "other"}, "c")])


# -- files -----------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.lists(st.integers(0, 49151), min_size=1, max_size=50, unique=True),
    header=st.dictionaries(st.from_regex(r"[a-z][a-z]{0,8}", fullmatch=True), st.text(max_size=20), max_size=4),
)
def test_written_and_read(tmp_path: Path, vocab: Vocab, ids: list[int], header: dict[str, str]) -> None:
    header.pop("tokenizer", None)
    write_list(tmp_path / "list", ids, header)
    found = read_list(tmp_path / "list", vocab)
    assert found.ids == tuple(ids)
    assert found.header == {name: " ".join(value.split()) for name, value in header.items()}


OTHER = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"5 6\nseven\n", r"line 2: 'seven' is no token id"),
        (b"# a list\n\n5 # 6\n-1\n", r"line 4: '-1' is no token id"),
        (b"5\n49151\n49152\n", r"line 3: token 49152 is outside 0\.\.49151"),
        (b"5\n" + b"9" * 30 + b"\n", r"line 2: token 9{30} is outside"),
        (b"5\n" + b"9" * 100_000 + b"\n", r"line 2: '9{40}\.\.\.' is no token id"),
        (b"5 " * 100_000 + b"six", r"line 1: 'six' is no token id"),
        (b"1.5", r"line 1: '1\.5' is no token id"),
        (b"1_000", r"line 1: '1_000' is no token id"),
        (b"0x10", r"line 1: '0x10' is no token id"),
        ("\u0663".encode(), r"line 1: '\u0663' is no token id"),  # a digit, but none of ours
        (b"5\n\xff\xfe\0", r"line 2: .* is no token id"),
        (b"", r"lists no tokens"),
        (b"# model: nothing\n\n   # 5 6 7\n", r"lists no tokens"),
        (f"# tokenizer: {OTHER}\n5\n".encode(), r"is for another tokenizer: "),
        (f"# model: a llama\n# tokenizer: {OTHER}\n5\n".encode(), r"is for another tokenizer \(made for a llama\)"),
    ],
    ids=lambda value: value[:12].decode("latin-1").strip() if isinstance(value, bytes) else "",
)
def test_files_that_are_no_lists(
    tmp_path: Path, vocab: Vocab, smollm2: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    """Refused by the reader, and by whoever uses it; messages name the file, and the line if it is one line's."""
    path = tmp_path / "words.txt"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"words\.txt.*" + message) as caught:
        read_list(path, vocab)
    assert caught.value.name == "vocab"
    assert main(["draft-vocab", "inspect", "-m", str(smollm2), str(path)]) != 0
    error = " ".join(capsys.readouterr().err.split())
    assert "words.txt" in error and "Traceback" not in error


def test_ids_that_stand_there_twice(tmp_path: Path, vocab: Vocab) -> None:
    path = tmp_path / "list"
    path.write_text("7 5 7\n5 # 8\n\t6 7", encoding="utf-8")
    assert read_list(path, vocab).ids == (7, 5, 6)


HUGE = """
import resource, sys
from pyspec import InvalidRequest
from pyspec._llama import Model
from pyspec.speculation.vocab_list import read_list

with Model(sys.argv[1], vocab_only=True) as model:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in sys.argv[2:]:
        try:
            read_list(path, model.vocab)
        except InvalidRequest as error:
            print(str(error)[-80:])
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 20e6)
"""


def test_100_megabytes_that_are_no_list(smollm2: Path, tmp_path: Path) -> None:
    """In one line, in a comment, in a word: neither memory nor time grow with them."""
    zeros, word, comment = (tmp_path / name for name in ("zeros", "word", "comment"))
    zeros.touch()
    os.truncate(zeros, 100_000_000)
    word.write_bytes(b"5" * 100_000_000)
    comment.write_bytes(b"# " + b"5" * 100_000_000 + b"\nsix")
    done = subprocess.run(
        [sys.executable, "-c", HUGE, str(smollm2), str(zeros), str(word), str(comment)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    messages = done.stdout.splitlines()
    assert len(messages) == 4 and messages[-1] == "True"
    assert all("is no token id" in message for message in messages[:3]) and "line 2: 'six'" in messages[2]


def test_a_disk_that_is_full_leaves_the_old_list(tmp_path: Path) -> None:
    path = tmp_path / "list"
    write_list(path, [1, 2, 3], {"model": "old"})
    before = path.read_text(encoding="utf-8")
    assert stat.S_IMODE(os.stat(path).st_mode) & 0o044  # others may read it, as files are usually made

    def ids() -> Iterator[int]:
        yield 1
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_list(path, ids(), {})
    assert path.read_text(encoding="utf-8") == before
    assert [p.name for p in tmp_path.iterdir()] == ["list"]


# -- looking at lists ------------------------------------------------------------------------------------------------


def test_what_a_list_covers(smollm2: Path, vocab: Vocab, texts: Path) -> None:
    english = count(str(smollm2), find([texts / "english.txt"]), n_processes=1)
    built = build(english.by_token, vocab, coverage=1.0)
    everything = count(str(smollm2), find([texts]), n_processes=1, by_source=True)
    found = inspect(built.ids, vocab, read_gguf(smollm2), everything)
    assert (found.n_ids, found.n_vocab) == (len(built.ids), 49152)
    assert found.by_source[str(texts / "english.txt")] == (english.total, 1.0)
    assert found.by_source[str(texts / "russian.jsonl.gz")][1] < 0.5
    assert found.by_script["Latin"][1] > 0.6 and found.by_script["Cyrillic"][1] < 0.2
    assert sum(n for n, _ in found.by_script.values()) == everything.total
    assert found.missing and not {token for token, _ in found.missing} & set(built.ids)
    assert [n for _, n in found.missing] == sorted((n for _, n in found.missing), reverse=True)
    head = read_gguf(smollm2).tensors["token_embd.weight"]
    assert found.head_bytes == head.n_bytes * len(built.ids) // 49152
    assert inspect(built.ids, vocab, read_gguf(smollm2)).coverage is None


@pytest.mark.parametrize(
    ("piece", "kind"),
    [(" the", "Latin"), ("море", "Cyrillic"), ("你好", "Han"), ("ひ", "Kana"), ("αβ", "Greek"), ("1", "digits"),
     ("();", "symbols"), ("\n  ", "space"), ("\t", "space")],
)  # fmt: skip
def test_kinds_of_tokens(piece: str, kind: str) -> None:
    assert script(piece.encode()) == kind
    assert script("ä".encode()[:1]) == "parts of characters"


# -- the command -----------------------------------------------------------------------------------------------------


def run(*args: str) -> int:
    return main(["draft-vocab", *args])


def test_the_command(smollm2: Path, smollm2_f32: Path, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Build, look, join, use: the text of the target, drafted from the list."""
    first, second, both = (texts / name for name in ("first.list", "second.list", "both.list"))
    model = ("-m", str(smollm2))
    assert run("build", *model, "-o", str(first), str(texts / "english.txt"), str(texts / "deep")) == 0
    assert " cover 100.000% of 1,099" in capsys.readouterr().out
    again = first.read_bytes()
    assert run("build", *model, "-t", "2", "-o", str(first), str(texts / "english.txt"), str(texts / "deep")) == 0
    assert first.read_bytes() == again
    assert run("build", *model, "-o", str(second), "--size", "512", str(texts / "russian.jsonl.gz")) == 0
    assert run("merge", *model, "-o", str(both), str(first), str(second)) == 0
    capsys.readouterr()
    assert run("inspect", *model, "--json", str(both), str(texts)) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["coverage"] > 0.99 and report["header"]["vocabulary"] == "49152"
    assert report["header"]["corpus"] == "english.txt, deep + russian.jsonl.gz"
    assert run("inspect", *model, str(first), str(texts)) == 0
    shown = capsys.readouterr().out
    assert "Cyrillic" in shown and "not listed" in shown
    params = SamplingParams(temperature=0.0, max_tokens=30)
    with Engine(smollm2_f32, speculation=DraftModel(smollm2, n_max=4, vocab=both), n_ctx=512) as engine:
        assert engine.config.draft_vocab is not None and engine.config.draft_vocab.unused_because is None
        result = engine.generate("The lighthouse keeper walked down to the", params)
        assert (
            result.token_ids
            == engine.generate("The lighthouse keeper walked down to the", params, n_draft_max=0).token_ids
        )
        assert result.stats.accepted > 0


def test_lists_of_what_the_model_writes(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "asked.txt").write_text("Name a river.\nCount to ten.\n", encoding="utf-8")
    args = ["build", "-m", str(smollm2), "--from-model", "-n", "16", "--size", "400", str(tmp_path / "asked.txt")]
    assert run(*args, "-o", str(tmp_path / "a")) == 0
    with Model(str(smollm2), vocab_only=True) as model:
        assert len(read_list(tmp_path / "a", model.vocab).ids) == 448


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["build", "-o", "{tmp}/a"], "texts to count are missing"),
        (["build", "-o", "{tmp}/none/a", "{tmp}"], "there is no folder"),
        (["build", "-o", "{tmp}/a", "{tmp}/missing"], "is no file, folder or pattern"),
        (["build", "-o", "{tmp}/a", "--coverage", "2", "{tmp}/text"], "--coverage"),
        (["build", "-o", "{tmp}/a", "--size", "0", "{tmp}/text"], "--size"),
        (["build", "-o", "{tmp}/a", "{tmp}/binary"], "is binary"),
        (["build", "-o", "{tmp}/a", "{tmp}/empty"], "has no tokens"),
        (["inspect", "{tmp}/missing"], "can't be read"),
        (["inspect", "{tmp}/text"], "is no token id"),
        (["merge", "-o", "{tmp}/a", "{tmp}/text"], "is no token id"),
    ],
)
def test_bad_arguments(
    smollm2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    (tmp_path / "text").write_text("some text\n", encoding="utf-8")
    (tmp_path / "binary").write_bytes(b"\0\1")
    (tmp_path / "empty").write_bytes(b"")
    assert run(*(arg.format(tmp=tmp_path) for arg in args), "-m", str(smollm2)) != 0
    error = capsys.readouterr().err
    assert message in " ".join(error.split()) and "Traceback" not in error
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("value", ["auto", "none"])
def test_on_the_command_line(
    smollm2: Path, smollm2_f32: Path, value: str, capsys: pytest.CaptureFixture[str], tiny: Callable[[str], Path]
) -> None:
    args = ["generate", "-m", str(smollm2_f32), "-md", str(smollm2), "-p", "The sea is", "-n", "8", "--temp", "0"]
    options = ["--spec-draft-vocab", value, "--spec-draft-vocab-slots", "256", "--spec-draft-vocab-max-miss", "0.2"]
    assert main([*args, *options]) == 0
    with_it = capsys.readouterr().out
    assert main(args) == 0
    assert with_it == capsys.readouterr().out
    assert main([*args, "--spec-draft-vocab-max-miss", "3"]) != 0
    assert "--spec-draft-vocab-max-miss" in capsys.readouterr().err
