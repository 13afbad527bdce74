"""Remembering what was measured: one small file for each model, build, machine and set of settings.

The files are in the folder for models (see `pyspec.models`). One that is missing, damaged or from another version is
measured again; one that can't be written is no error, as the measurement is there all the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

from pyspec._llama import Model
from pyspec.buildinfo import build_info
from pyspec.exactness.invariance import RowInvariance
from pyspec.exactness.probe import Progress, row_invariance
from pyspec.machine import default_threads
from pyspec.models.cache import cache_dir

# What measuring means; to be raised when it changes.
VERSION = 1

# Measurements that are kept.
MOST_FILES = 256

# What of the build decides which kernels there are.
_BUILD = ("version", "llama_commit", "compiler", "build_type", "system", "cmake_args", "ggml_options", "cpu_features")


def measured(
    model: Model, *, progress: Progress | None = None, remeasure: bool = False, **options: Any
) -> RowInvariance:
    """What `row_invariance` says of a model, from an earlier time if that was on this machine, build and file.

    Args:
        remeasure: do not look whether it was measured before.
        **options: those of `row_invariance`.
    """
    try:
        path = cache_dir() / "exactness" / f"{_key(model, options)}.json"
    except OSError:  # the file has gone since the model was loaded
        return row_invariance(model, progress=progress, **options)
    if not remeasure:
        try:
            return RowInvariance.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            pass
    found = row_invariance(model, progress=progress, **options)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(found.to_dict()), encoding="utf-8")
        unfinished.replace(path)
        _tidy(path.parent)
    return found


def _tidy(folder: Path) -> None:
    """Forgets the oldest measurements where there are very many."""
    files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
    for file in files[:-MOST_FILES]:
        file.unlink(missing_ok=True)


def _key(model: Model, options: dict[str, Any]) -> str:
    """A name for everything the answer depends on."""
    built = build_info()
    file = Path(model.path).stat()
    n_threads = options.get("n_threads") or default_threads()
    parts = {
        "measuring": VERSION,
        "file": [os.path.realpath(model.path), file.st_size, file.st_mtime_ns],
        "loaded": model.load_params,
        "build": {name: built[name] for name in _BUILD},
        "devices": [device["description"] for device in built["devices"]],
        "processor": _processor(),
        "options": {
            **options,
            "n_threads": n_threads,
            "n_threads_batch": options.get("n_threads_batch") or n_threads,
        },
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _processor() -> str:
    """The model of the processor: builds for the machine they run on choose kernels by it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
