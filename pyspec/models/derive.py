"""Making a model from a fetched one, by quantizing it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from pyspec.errors import FetchError
from pyspec.models import cache
from pyspec.models.catalog import SOURCES, DerivedModel
from pyspec.models.fetch import fetch_source
from pyspec.models.progress import FetchProgress, Progress

_POLL_SECONDS = 0.1

# Quantizing runs in a process of its own: it cannot be interrupted from inside (Ctrl-C kills it here), and
# its gigabytes are given back whatever happens. The child finds the package where the parent did.
_CHILD = """
import json, sys
arguments = json.loads(sys.argv[1])
sys.path[:] = arguments.pop("path")
from pyspec.models.derive import _quantize_and_load
_quantize_and_load(**arguments)
"""


def recipe_of(model: DerivedModel) -> str:
    """What a file of this model was made from and how; recorded in its stamp."""
    return f"{model.file_type}{' pure' if model.pure else ''} from {SOURCES[model.source].sha256}"


def make_derived(model: DerivedModel, report: Progress) -> Path:
    """The path of a derived model; makes it, and fetches its source, where it is missing or damaged."""
    recipe = recipe_of(model)
    final = cache.cache_dir() / model.filename
    if cache.is_good(final, recipe=recipe):
        return final
    source_path = fetch_source(SOURCES[model.source], report)
    with cache.lock(model.name, lambda: report(FetchProgress(model.name, "wait"))):
        if cache.is_good(final, recipe=recipe):
            return final
        work = cache.make_dir(cache.work_dir(model.name))
        try:
            cache.require_space(model.size, model.filename)
            unfinished = work / "unfinished.gguf"
            unfinished.unlink(missing_ok=True)
            _run_child(model, source_path, unfinished, report)
            cache.install(unfinished, final, sha256=cache.sha256_of(unfinished), recipe=recipe)
        except OSError as error:  # FetchError is one
            raise FetchError(f"cannot make the model {model.name!r} from {source_path}: {error}") from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return final


def _run_child(model: DerivedModel, source: Path, unfinished: Path, report: Progress) -> None:
    arguments = {
        "path": sys.path,
        "source": str(source),
        "target": str(unfinished),
        "file_type": model.file_type,
        "pure": model.pure,
    }
    log = unfinished.with_suffix(".log")
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, json.dumps(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            while process.poll() is None:
                # libllama reports no progress of its own; the file it writes does.
                size = _size_so_far(unfinished)
                report(FetchProgress(model.name, "quantize", size, model.size, model.filename))
                time.sleep(_POLL_SECONDS)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        raise FetchError(f"quantizing failed (exit code {process.returncode}): {last}")
    report(FetchProgress(model.name, "quantize", model.size, model.size, model.filename))


def _size_so_far(unfinished: Path) -> int:
    """Bytes written, under whichever name the file has on its way."""
    size = 0
    for path in unfinished.parent.glob(f"{unfinished.name}*"):
        with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
            size = max(size, path.stat().st_size)
    return size


def _quantize_and_load(source: str, target: str, file_type: str, pure: bool) -> None:
    """The child's work: quantize, and see that what was written can be loaded."""
    from pyspec import _llama

    _llama.quantize(source, target, file_type, allow_requantize=True, pure=pure)
    _llama.Model(target, n_gpu_layers=0, use_extra_bufts=False).close()
