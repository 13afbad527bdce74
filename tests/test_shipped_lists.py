"""The lists of tokens worth drafting that come with the package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyspec import DraftModel, Engine, SamplingParams
from pyspec._llama import Model
from pyspec.bench.lossless import first_difference, gap_after, row_difference
from pyspec.models import catalog
from pyspec.speculation import shipped_lists
from pyspec.speculation.draft_vocab import special_tokens
from pyspec.speculation.shipped_lists import FOLDER, shipped_list
from pyspec.speculation.vocab_list import read_header, read_list, tokenizer_hash, write_list
from pyspec.vocab_lists.count import tally

ROOT = Path(__file__).parent.parent
NAMES = ["gemma3", "smollm2"]


@pytest.fixture
def path(name: str, request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(name)
    return found


def test_there_is_one_for_every_model_that_is_fetched() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == NAMES
    assert sorted(catalog.SOURCES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_is_in_it(name: str, path: Path) -> None:
    file = FOLDER / f"{name}.txt"
    with Model(str(path), vocab_only=True) as model:
        found = shipped_list(model.vocab, model.vocab)
        assert found is not None and found.name == name
        assert found.tokens.ids == read_list(file, model.vocab).ids
        assert set(special_tokens(model.vocab)) <= set(found.tokens.ids)
        header = read_header(file)
        assert header["tokenizer"] == tokenizer_hash(model.vocab)
        assert header["vocabulary"] == str(model.vocab.n_tokens)
    assert header["size"] == str(len(found.tokens.ids)) and len(found.tokens.ids) % 64 == 0
    assert float(header["coverage"]) > 0.9 and "fortunes" in header["corpus"] and header["model"]
    assert file.stat().st_size < 400_000


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("file", ["README.md", "pyspec/engine/engine.py"])
def test_texts_it_was_not_made_from(name: str, path: Path, file: str) -> None:
    """English and code of this project."""
    with Model(str(path), vocab_only=True) as model:
        found = shipped_list(model.vocab, model.vocab)
        assert found is not None
        ids, numbers = tally(model.vocab, (ROOT / file).read_text(encoding="utf-8"))
        assert numbers[np.isin(ids, found.tokens.ids)].sum() / numbers.sum() > 0.92


def test_it_is_found_by_the_tokenizer(
    tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the number of tokens alone; other models' lists, and models there is no list for, do no harm."""
    monkeypatch.setattr(shipped_lists, "FOLDER", tmp_path)
    with Model(tiny("llama"), vocab_only=True) as model, Model(tiny("draft-other-texts"), vocab_only=True) as other:
        facts = {"vocabulary": "256", "tokenizer": tokenizer_hash(other.vocab)}
        write_list(tmp_path / "a-other.txt", range(100), facts)
        write_list(tmp_path / "b-short.txt", range(100), {**facts, "vocabulary": "255"})
        assert shipped_list(model.vocab, model.vocab) is None
        write_list(tmp_path / "c-own.txt", range(0, 256, 2), {**facts, "tokenizer": tokenizer_hash(model.vocab)})
        found = shipped_list(model.vocab, model.vocab)
        assert found is not None and (found.name, found.tokens.ids) == ("c-own", tuple(range(0, 256, 2)))
    for slots in (0, 100):
        draft = DraftModel(tiny("llama"), n_max=4, vocab="auto", vocab_slots=slots)
        with Engine(tiny("llama"), speculation=draft, n_ctx=128) as engine:
            vocab = engine.config.draft_vocab
            assert vocab is not None and (vocab.source, vocab.shipped) == ("auto", "c-own")
            if vocab.unused_because is None:  # which is a matter of microseconds
                assert (vocab.n_rows, vocab.n_slots) == (128, slots)


@pytest.mark.parametrize("name", NAMES)
def test_engines_use_it(name: str, path: Path) -> None:
    with Engine(path, speculation=DraftModel(path, n_max=4, vocab="auto"), n_ctx=128) as engine:
        vocab = engine.config.draft_vocab
        assert vocab is not None and (vocab.source, vocab.shipped) == ("auto", name)
        assert engine.config.to_dict()["draft_vocab"]["shipped"] == name
        params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
        text = "Once upon a time there was"
        drafted = engine.generate(text, params)
        assert drafted.stats.accepted > 12
        plain = engine.generate(text, params, n_draft_max=0)
        at = first_difference(drafted.token_ids, plain.token_ids)
        if at is not None:  # a near tie, which other row widths round the other way
            tokens = [*plain.prompt_token_ids, *plain.token_ids]
            allowed = 2 * row_difference(engine.model, tokens)
            assert gap_after(engine.model, [*plain.prompt_token_ids, *plain.token_ids[:at]]) <= allowed
