"""Helpers of the tests of the build: running commands, copying the project, examining what came out."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pyspec"


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


fetcher = load_script(ROOT / "vendor" / "fetch_llama_cpp.py")

needs_build_tools = pytest.mark.skipif(
    importlib.util.find_spec("Cython") is None or importlib.util.find_spec("cmake") is None,
    reason="the tools of [build-system] are not installed here",
)


def copy_project(target: Path, *, linked_source: bool = False) -> Path:
    """A clean clone of this project as it stands, without anything built."""
    shutil.copytree(
        ROOT,
        target,
        symlinks=True,
        ignore=lambda folder, names: [
            name
            for name in names
            if name in {".git", ".venv", "build", "dist", "__pycache__", "_build_info.py"}
            or name.startswith((".mypy", ".ruff", ".pytest", ".hypothesis"))
            or name.endswith((".so", ".egg-info", ".gguf"))
            or Path(folder, name) in {PACKAGE / "lib", ROOT / "vendor" / "llama.cpp"}
        ],
    )
    if linked_source:
        (target / "vendor" / "llama.cpp").symlink_to(ROOT / "vendor" / "llama.cpp")
    return target


def run(
    command: Iterable[str | Path], *, cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with these environment variables added; an empty value removes one."""
    environment = {key: value for key, value in {**os.environ, **env}.items() if value or key == "PATH"}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def succeed(command: Iterable[str | Path], *, cwd: Path | None = None, **env: str) -> str:
    result = run(command, cwd=cwd, **env)
    assert result.returncode == 0, f"{result.args}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    return result.stdout


def native_files(package: Path) -> list[Path]:
    return sorted([*package.glob("*.so"), *(package / "lib").glob("lib*-pyspec.so")])


def site_folders() -> list[str]:
    import numpy as np

    return [str(Path(np.__file__).parent.parent)]


def check_wheel(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        names = set(archive.namelist())
        links = [info.filename for info in archive.infolist() if (info.external_attr >> 28) == 0xA]
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        described = Parser().parsestr(archive.read(metadata).decode())
    assert not links
    code = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py") if path.name != "_build_info.py"}
    assert {name for name in names if name.endswith(".py")} == code | {"pyspec/_build_info.py"}
    modules = {path.stem for path in PACKAGE.glob("*.pyx")}
    assert {
        Path(name).name.partition(".")[0] for name in names if re.fullmatch(r"pyspec/\w+\.[^/]*\.so", name)
    } == modules
    for library in ("llama", "ggml", "ggml-base", "ggml-cpu"):
        assert f"pyspec/lib/lib{library}-pyspec.so" in names
    if sys.platform == "linux":
        assert "pyspec/lib/without-llamafile/libggml-cpu-pyspec.so" in names
    assert "pyspec/py.typed" in names
    assert {Path(name).suffix for name in names if name.startswith("pyspec/")} <= {
        ".gguf",
        ".py",
        ".pyi",
        ".so",
        ".txt",
        ".typed",
        ".1",
    }
    assert [need for need in described.get_all("Requires-Dist", []) if "extra ==" not in need] == ["numpy"]
    assert described["License-Expression"] == "MIT"


def check_installed(python: Path, folder: Path) -> None:
    """Import an installed wheel where no compiler, no tool and no source tree can be reached."""
    code = "import json, pyspec, pyspec._llama as l; print(json.dumps(pyspec.build_info()), l.__file__)"
    out = succeed([python, "-I", "-c", code], cwd=folder, PATH="", LD_LIBRARY_PATH="")
    assert '"CPU"' in out
    assert str(folder) in out
