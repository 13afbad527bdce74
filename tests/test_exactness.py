"""In how wide a batch rows are exact: measured, remembered, and explained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run

from pyspec import InvalidRequest, Model, UnsupportedModel, build_info
from pyspec.exactness import Comparison, RowInvariance, measured, row_invariance
from pyspec.exactness.causes import Variant, conclusions
from pyspec.exactness.invariance import proven_width
from pyspec.exactness.probe import depths_to_try, shapes_to_try, widths_to_try

Tiny = Callable[[str], Path]

HAS_LLAMAFILE = build_info()["llamafile"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def llama(tiny: Tiny) -> Iterator[Model]:
    with Model(str(tiny("llama"))) as model:
        yield model


def comparison(rows: tuple[int, ...], equal: int, reference: int = 1) -> Comparison:
    return Comparison(8, rows, reference, compared=4, equal=equal, largest=0.0 if equal == 4 else 0.5, flips=0)


# -- what is tried -----------------------------------------------------------------------------------------------


def test_every_small_width_is_tried() -> None:
    assert widths_to_try(17) == list(range(2, 18))
    assert widths_to_try(33)[16:] == [23, 24, 25, 31, 32, 33]
    assert widths_to_try(64)[-2:] == [63, 64]
    assert widths_to_try(2) == [2]


@pytest.mark.parametrize(("n_slots", "limit"), [(2, 2), (2, 9), (4, 33), (3, 5)])
def test_shapes_fit_and_are_both_even_and_not(n_slots: int, limit: int) -> None:
    shapes = shapes_to_try(n_slots, limit)
    assert all(sum(shape) <= limit and min(shape) >= 1 and 2 <= len(shape) <= n_slots for shape in shapes)
    assert (1, 1) in shapes
    if limit > n_slots + 1:
        assert any(len(set(shape)) > 1 for shape in shapes)
        assert any(sum(shape) == limit for shape in shapes)


def test_depths_go_as_far_as_the_context() -> None:
    assert depths_to_try(100, 0, 33) == [8]
    assert depths_to_try(1024, 0, 33) == [8, 255, 511]
    assert depths_to_try(2048, 700, 33)[-1] > 700
    assert depths_to_try(35, 0, 33) == [0]


def test_the_width_ends_before_the_first_difference() -> None:
    equal = [comparison((n,), 4) for n in range(2, 6)]
    assert proven_width(equal, 1, 5) == 5
    assert proven_width([*equal, comparison((4,), 3)], 1, 5) == 3
    assert proven_width([*equal, comparison((1, 2), 3)], 1, 5) == 2
    assert proven_width([*equal, comparison((4,), 3, reference=2)], 1, 5) == 5
    assert proven_width([], 1, 5) == 1
    assert proven_width([comparison((2,), 0)], 1, 5) == 1


# -- measuring ---------------------------------------------------------------------------------------------------


def test_f32_weights_have_one_kernel_from_two_rows_on(llama: Model) -> None:
    """llamafile's matrix product is taken from two rows on; without it all rows are alike."""
    found = row_invariance(llama, n_rows=9, n_slots=2, n_threads=1)
    assert found.paired_width == found.limit == 9
    assert found.width == (1 if HAS_LLAMAFILE else 9)
    first = found.first_difference()
    if HAS_LLAMAFILE:
        assert first is not None and first.rows == (2,) and first.equal < first.compared and first.largest > 0
    else:
        assert first is None


@pytest.mark.skipif(sys.platform != "linux" or not HAS_LLAMAFILE, reason="needs two CPU backends to choose from")
def test_without_llamafiles_product_rows_are_alike_from_one_on(llama: Model) -> None:
    """The second CPU backend of the package, which the environment chooses."""
    code = (
        "import sys; from pyspec import Model; from pyspec.exactness import row_invariance\n"
        "with Model(sys.argv[1]) as model:\n"
        "    found = row_invariance(model, n_rows=9, n_slots=2, n_threads=1)\n"
        "print(found.width, found.limit, found.first_difference())"
    )
    environment = {**os.environ, "PYSPEC_LLAMAFILE": "0"}
    command = [sys.executable, "-c", code, llama.path]
    assert subprocess.check_output(command, env=environment, text=True).splitlines()[-1] == "9 9 None"


@pytest.mark.parametrize("name", ["mamba", "qwen35", "gemma3"])
def test_every_kind_of_memory_can_be_measured(tiny: Tiny, name: str) -> None:
    """Comparisons start from the same state, whether it is cut back or put back: two rows at a time are alike."""
    with Model(str(tiny(name))) as model:
        found = row_invariance(model, n_rows=4, n_slots=2, n_threads=1)
    rows = {c.rows for c in found.comparisons}
    assert {(2,), (3,), (4,), (1, 1)} <= rows
    assert all(c.compared > 0 and c.largest < 1.0 for c in found.comparisons)


def test_quantized_weights_are_exact(smollm2_q4_0: Path) -> None:
    with Model(str(smollm2_q4_0)) as model:
        found = row_invariance(model, n_rows=9, n_slots=2, n_ctx=330, type_v="bf16", prompt_rows=40)
    assert found.width == found.paired_width == 9
    assert found.prompt_width == 40
    assert all(c.exact and c.flips == 0 and c.largest == 0.0 for c in found.comparisons)
    assert {c.depth for c in found.comparisons} == {8, 255}
    assert set(found.ms) >= set(range(1, 10)) and all(ms > 0 for ms in found.ms.values())


def test_a_search_may_end_at_the_first_difference(llama: Model) -> None:
    if not HAS_LLAMAFILE:
        pytest.skip("every width is exact in this build")
    short = row_invariance(llama, n_rows=9, n_threads=1, all_widths=False)
    assert short.width == 1 and short.paired_width == 9


def test_several_sequences_are_looked_at_however_short_the_search(llama: Model) -> None:
    found = row_invariance(llama, n_rows=12, n_slots=3, n_threads=1, all_widths=False, only_together=True)
    assert found.paired_width == 12
    assert {(2, 2), (3, 3), (2, 2, 2), (4, 4, 4)} <= {c.rows for c in found.comparisons if c.reference == 2}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"n_rows": 1}, "n_rows"),
        ({"n_rows": 65}, "n_rows"),
        ({"n_slots": 0}, "n_slots"),
        ({"n_ctx": 9}, "n_ctx"),
        ({"type_v": "q9"}, "type_v"),
        ({"n_threads": -1}, "n_threads"),
    ],
)
def test_bad_options(llama: Model, options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        row_invariance(llama, **options)
    assert caught.value.name == name


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_models_that_do_not_write(tiny: Tiny, name: str) -> None:
    with Model(str(tiny(name))) as model, pytest.raises(UnsupportedModel):
        row_invariance(model, n_rows=4)


def test_a_vocabulary_without_weights(tiny: Tiny) -> None:
    with Model(str(tiny("llama")), vocab_only=True) as model, pytest.raises(InvalidRequest, match="vocab_only"):
        row_invariance(model, n_rows=4)


# -- remembering -------------------------------------------------------------------------------------------------


def test_what_was_measured_is_remembered(llama: Model, own_cache: Path) -> None:
    calls: list[float] = []
    options: dict[str, Any] = {"n_rows": 3, "n_threads": 1, "progress": lambda _, done: calls.append(done)}
    first = measured(llama, **options)
    assert calls and calls == sorted(calls) and calls[-1] <= 1.0
    n_calls = len(calls)
    assert measured(llama, **options) == first and len(calls) == n_calls
    assert measured(llama, **options, remeasure=True).width == first.width and len(calls) == 2 * n_calls
    assert len(list((own_cache / "exactness").iterdir())) == 1


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"width": 3}', "\0\0"])
def test_a_damaged_file_is_measured_again(llama: Model, own_cache: Path, damage: str) -> None:
    first = measured(llama, n_rows=3, n_threads=1)
    (file,) = (own_cache / "exactness").iterdir()
    file.write_text(damage)
    assert measured(llama, n_rows=3, n_threads=1).comparisons == first.comparisons
    assert json.loads(file.read_text())["width"] == first.width


@pytest.mark.parametrize("change", [{"n_threads": 2}, {"type_v": "bf16"}, {"flash_attn": "off"}, {"n_ubatch": 64}])
def test_other_settings_are_measured_for_themselves(llama: Model, own_cache: Path, change: dict[str, Any]) -> None:
    options: dict[str, Any] = {"n_rows": 2, "n_threads": 1, "n_ctx": 64}
    measured(llama, **options)
    measured(llama, **{**options, **change})
    assert len(list((own_cache / "exactness").iterdir())) == 2


def test_other_files_and_other_loading_too(tiny: Tiny, own_cache: Path) -> None:
    for name, repack in (("llama", True), ("llama", False), ("llama-draft", True)):
        with Model(str(tiny(name)), use_extra_bufts=repack) as model:
            measured(model, n_rows=2, n_threads=1, n_ctx=64)
    assert len(list((own_cache / "exactness").iterdir())) == 3


def test_a_cache_that_can_not_be_written_is_no_error(
    llama: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "file"))
    assert measured(llama, n_rows=2, n_threads=1, n_ctx=64).limit == 2


def test_a_file_that_has_gone_is_measured_all_the_same(tiny: Tiny, tmp_path: Path, own_cache: Path) -> None:
    path = tmp_path / "gone.gguf"
    path.write_bytes(tiny("llama").read_bytes())
    with Model(str(path)) as model:
        path.unlink()
        assert measured(model, n_rows=2, n_threads=1, n_ctx=64).limit == 2
    assert not (own_cache / "exactness").exists()


def test_as_json_and_back(llama: Model) -> None:
    found = row_invariance(llama, n_rows=3, n_threads=1)
    assert RowInvariance.from_dict(json.loads(json.dumps(found.to_dict()))) == found


# -- explaining --------------------------------------------------------------------------------------------------


def invariance(width: int, comparisons: tuple[Comparison, ...] = (), paired: int = 1) -> RowInvariance:
    return RowInvariance(width, paired, 8, 1, 1, None, comparisons, {1: 1.0})


def test_conclusions() -> None:
    exact = invariance(8, (comparison((2,), 4),))
    assert conclusions([Variant("as given", {}, exact)]) == [
        "Every row of decodes of up to 8 rows is, to the bit, the row alone."
    ]
    deep = Comparison(255, (2,), 1, compared=4, equal=0, largest=0.25, flips=1)
    found = [
        Variant("as given", {}, invariance(1, (comparison((2,), 4), deep), paired=8)),
        Variant("V cache in bf16", {"type_v": "bf16"}, exact),
    ]
    text = "\n".join(conclusions(found))
    assert "From 2 rows on" in text and "0.25" in text and "1 of 4" in text
    assert "behind 8 tokens everything is equal" in text and "behind 255 it is not" in text
    assert "V cache in bf16 it is exact up to 8 rows" in text
    assert "2 to 8 rows all are equal" in text


def test_the_command(tiny: Tiny, capfd: pytest.CaptureFixture[str]) -> None:
    args = ("exactness", str(tiny("llama")), "--rows", "3", "-t", "1", "-c", "64", "--prompt-rows", "8")
    out, _ = run(capfd, *args, "--json", "-")
    document = json.loads(out)
    assert document["model"] == "llama.gguf" and document["llamafile"] == HAS_LLAMAFILE
    names = [variant["name"] for variant in document["variants"]]
    assert names[0] == "as given" and "without flash attention" in names and "without repacking" in names
    assert document["variants"][0]["found"]["limit"] == 3
    table, _ = run(capfd, *args)
    assert "exact rows" in table and "ms per decode" in table and all(name in table for name in names)
    assert f"CPU backend {'with' if HAS_LLAMAFILE else 'without'} llamafile's matrix product." in table


def test_the_command_writes_a_file(tiny: Tiny, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    run(capfd, "exactness", str(tiny("llama")), "--rows", "2", "-t", "1", "-c", "64", "--kv-type", "bf16", "--json",
        str(out))  # fmt: skip
    document = json.loads(out.read_text())
    assert document["settings"]["type_k"] == document["settings"]["type_v"] == "bf16"
    assert str(tmp_path) not in out.read_text()


@pytest.mark.parametrize("args", [("--rows", "0"), ("--rows", "65"), ("-ctk", "q9"), ("-c", "5"), ("--slots", "0")])
def test_bad_arguments(tiny: Tiny, capfd: pytest.CaptureFixture[str], args: tuple[str, ...]) -> None:
    _, err = run(capfd, "exactness", str(tiny("llama")), *args, code=2)
    assert err.startswith("error: ") and len(err.splitlines()) == 1


def test_costs_know_of_company() -> None:
    from pyspec.speculation.costs import RowCosts

    costs = RowCosts()
    for rows, ms in ((1, 4.0), (2, 6.0), (4, 9.0)):
        costs.observe(rows, ms)
    costs.cost_no_less_than(2)
    assert (costs(1), costs(2), costs(4)) == (6.0, 6.0, 9.0)
