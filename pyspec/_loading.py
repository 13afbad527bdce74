"""Imports the binding, and with it libllama, before anything else of the package.

If that fails, the exception says what was looked for where, and what to do about it. Imported first by
``pyspec/__init__.py``.

There are two CPU backends in the package, on Linux: with llamafile's matrix product and without. They have one name,
and the loader gives libggml the library of that name that is loaded already, if there is one: so with
``PYSPEC_LLAMAFILE=0`` the one without is loaded before the binding is.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
LIBRARIES = PACKAGE / "lib"
WITHOUT_LLAMAFILE = LIBRARIES / "without-llamafile" / "libggml-cpu-pyspec.so"

SWITCH = "PYSPEC_LLAMAFILE"


def choose_cpu_backend(wanted: str, options: Iterable[str]) -> None:
    """Loads the CPU backend that the environment asks for, if it is not the one that libggml takes by itself.

    Args:
        wanted: "1" or "0": with or without llamafile's matrix product; "": as it was built.
        options: of ggml, that were on in this build.

    Raises:
        ImportError: this build has no such backend, or it can't be loaded.
    """
    if wanted in ("", "1" if "GGML_LLAMAFILE" in options else "0"):
        return
    if wanted == "1":
        raise ImportError(f"{SWITCH} is 1, and this pyspec was built without llamafile's kernels (GGML_LLAMAFILE=OFF)")
    if wanted != "0":
        raise ImportError(f"{SWITCH} must be 0 or 1 (with llamafile's matrix product or without), not {wanted!r}")
    if not WITHOUT_LLAMAFILE.exists():
        raise ImportError(
            f"{SWITCH} is 0, and this pyspec has no second CPU backend: {WITHOUT_LLAMAFILE} is missing. It is built on "
            "Linux unless CMAKE_ARGS has -DPYSPEC_BOTH_CPU_BACKENDS=OFF; elsewhere build with -DGGML_LLAMAFILE=OFF"
        )
    try:
        ctypes.CDLL(str(WITHOUT_LLAMAFILE))
    except OSError as error:
        raise ImportError(f"{SWITCH} is 0, and {WITHOUT_LLAMAFILE} can't be loaded: {error}") from None


def explain(error: ImportError) -> str:
    """A message for the user who sees the binding's import fail."""
    if isinstance(error, ModuleNotFoundError) and error.name == "pyspec._llama":
        return _no_module()
    missing = re.search(r"lib[\w.+-]+?\.(?:so[\d.]*|dylib)", str(error))
    if missing is None:
        return f"pyspec's native modules can't be loaded: {error}"
    return _no_library(missing.group(), error)


def _no_module() -> str:
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    built = sorted(path.name for path in PACKAGE.glob("_llama.*.so"))
    return (
        f"pyspec's native modules are not built for {python}: {PACKAGE} has no _llama{EXTENSION_SUFFIXES[0]} "
        f"(it has {', '.join(built) or 'none for any Python'}). In a clone of the repository run "
        "'make build' or 'pip install -e .'; to use an installed pyspec, start Python outside the clone."
    )


def _no_library(name: str, error: ImportError) -> str:
    variable = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
    named = [Path(folder) for folder in os.environ.get(variable, "").split(os.pathsep) if folder]
    tried = ", ".join(str(folder / name) for folder in [*named, LIBRARIES])
    if name.startswith("libcuda."):
        advice = (
            "This pyspec was built with CUDA and needs that library of NVIDIA's driver. On a machine without "
            "a GPU, install a build without CUDA."
        )
    elif name.startswith(("libcudart", "libcublas", "libnccl")):
        advice = (
            "This pyspec was built with CUDA. Install CUDA's runtime, or 'pip install nvidia-cublas "
            f"nvidia-cuda-runtime' next to pyspec, or name the folder that holds it in {variable}."
        )
    else:
        there = sorted(path.name for path in LIBRARIES.glob("*")) if LIBRARIES.is_dir() else []
        advice = (
            f"{LIBRARIES} holds {', '.join(there) or 'nothing'}. If one of pyspec's own libraries is "
            "missing, install pyspec again; another one has to be installed on the system."
        )
    return f"pyspec can't load its native code: {error}. Tried {tried}, and where the system looks. {advice}"


if os.environ.get(SWITCH):
    from pyspec import _build_info

    choose_cpu_backend(os.environ[SWITCH].strip(), _build_info.ggml_options)

try:
    import pyspec._llama  # noqa: F401
except ImportError as error:
    raise ImportError(explain(error), name=error.name, path=error.path) from error
