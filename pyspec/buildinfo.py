"""What this installation was built from, and what it can use on this machine."""

from __future__ import annotations

from typing import Any

from pyspec import _llama


def build_info() -> dict[str, Any]:
    """Describe the build and the machine, for bug reports and for checking that a GPU is seen.

    Returns a dictionary with these keys:

    ``version``
        Version of pyspec.
    ``llama_version``, ``llama_commit``
        The llama.cpp inside it.
    ``compiler``, ``build_type``, ``system``
        What compiled it, and for what.
    ``cmake_args``
        ``CMAKE_ARGS`` as they were set for the build; empty if none were.
    ``ggml_options``
        Names of the ggml options that are on, ``"GGML_NATIVE"`` for one.
    ``llamafile``
        Whether the CPU backend of this process takes llamafile's matrix product. The environment variable
        ``PYSPEC_LLAMAFILE=0`` chooses the one that does not, before pyspec is imported.
    ``backends``
        Names of the compute backends that are compiled in.
    ``devices``
        The devices those backends find here.
    ``cpu_features``
        Instruction sets and features each backend was compiled with, as llama.cpp prints them.
    """
    from pyspec import _build_info as built

    features = _llama.system_info()
    return {
        "version": built.version,
        "llama_version": built.llama_version,
        "llama_commit": built.llama_commit,
        "compiler": built.compiler,
        "build_type": built.build_type,
        "system": built.system,
        "cmake_args": built.cmake_args,
        "ggml_options": list(built.ggml_options),
        "llamafile": "LLAMAFILE = 1" in features,
        "backends": _llama.backends(),
        "devices": _llama.devices(),
        "cpu_features": features,
    }
