"""Whole builds, from scratch, with the ordinary commands. They take minutes: ``pytest -m slow_build``."""

from __future__ import annotations

import os
import resource
import sys
import tarfile
import time
import venv
from pathlib import Path

import pytest
from building import ROOT, check_installed, check_wheel, copy_project, native_files, succeed

if not (ROOT / "setup.py").exists():
    pytest.skip("needs the source tree around the tests", allow_module_level=True)


def children_seconds() -> float:
    """Processor time of all commands run so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.slow_build
class TestWholeBuilds:
    """Everything from scratch with the ordinary commands."""

    @pytest.fixture
    def python(self, tmp_path: Path) -> Path:
        venv.create(tmp_path / "env", with_pip=True, symlinks=True)
        return tmp_path / "env" / "bin" / "python"

    def test_pip_install(self, python: Path, tmp_path: Path) -> None:
        project = copy_project(tmp_path / "project")
        succeed([python, "-m", "pip", "install", "-q", project])
        check_installed(python, tmp_path)
        # Again, in another isolated environment: the build directory is used, libllama is not compiled again.
        built = sorted((project / "build").glob("*/bin/lib*-pyspec.so"))
        before = [path.stat().st_mtime_ns for path in built]
        assert len(before) == 4
        started = time.monotonic()
        succeed([python, "-m", "pip", "install", "-q", "--force-reinstall", "--no-deps", project])
        assert [path.stat().st_mtime_ns for path in built] == before
        print(f"second pip install: {time.monotonic() - started:.1f} s")

    def test_pip_install_without_native_instructions(self, python: Path, tmp_path: Path) -> None:
        project = copy_project(tmp_path / "project")
        succeed([python, "-m", "pip", "install", "-q", project], CMAKE_ARGS="-DGGML_NATIVE=off")
        check_installed(python, tmp_path)
        out = succeed([python, "-c", "import pyspec; print(pyspec.build_info())"], cwd=tmp_path)
        assert "-DGGML_NATIVE=off" in out
        assert "'GGML_NATIVE'" not in out
        assert "AVX512" not in out

    def test_an_editable_installation_follows_the_source(self, python: Path, tmp_path: Path) -> None:
        project = copy_project(tmp_path / "project")
        succeed([python, "-m", "pip", "install", "-q", "-e", project])
        check_installed(python, project)

    def test_an_unchanged_build_does_nothing_and_a_touched_module_is_quick(self, tmp_path: Path) -> None:
        project = copy_project(tmp_path / "project")
        command = [sys.executable, "setup.py", "build_ext", "--inplace"]
        succeed(command, cwd=project)
        files = [*native_files(project / "pyspec"), *(project / "build").rglob("*.o")]
        before = {path: path.stat().st_mtime_ns for path in files}
        started = time.monotonic()
        succeed(command, cwd=project)
        assert {path: path.stat().st_mtime_ns for path in files} == before
        assert time.monotonic() - started < 10
        for name in ("_llama.pyx", "_decoder.pyx"):
            source = project / "pyspec" / name
            source.write_text(source.read_text() + f"\nadded_here = {name!r}\n")
            before_cpu, started = children_seconds(), time.monotonic()
            succeed(command, cwd=project)
            cpu, elapsed = children_seconds() - before_cpu, time.monotonic() - started
            changed = {path.name for path in files if path.stat().st_mtime_ns != before[path]}
            assert {file.partition(".")[0] for file in changed} == {Path(name).stem}
            before = {path: path.stat().st_mtime_ns for path in files}
            print(f"after a change in {name}: {elapsed:.1f} s, {cpu:.1f} s of computing")
            assert cpu < 30  # not the time by the clock: the machine may have other work

    def test_the_source_distribution_builds_without_a_network(self, python: Path, tmp_path: Path) -> None:
        project = copy_project(tmp_path / "project")
        succeed([sys.executable, "-m", "build", "--outdir", tmp_path / "dist", project])
        (file,) = (tmp_path / "dist").glob("*.whl")
        check_wheel(file)
        (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
        print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB")
        print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB")
        with tarfile.open(sdist) as tar:
            names = {name.partition("/")[2] for name in tar.getnames()}
            tar.extractall(tmp_path / "unpacked", filter="data")
        assert "vendor/llama.cpp/include/llama.h" in names
        assert not [name for name in names if name.endswith((".so", ".gguf", ".pyc"))]
        (unpacked,) = (tmp_path / "unpacked").iterdir()
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            tmp_path / "w",
        ]
        succeed([*command, unpacked], **offline)
        (offline_wheel,) = (tmp_path / "w").glob("*.whl")
        check_wheel(offline_wheel)
        succeed([python, "-m", "pip", "install", "-q", offline_wheel])
        check_installed(python, tmp_path)
