"""The folder model files live in: where it is, locks, and knowing a good file from a damaged one.

A file gets its final name only after its content was checked, by an atomic rename. Beside it a small
*stamp* records the hash, and the size and time the file had then, so that later uses cost a ``stat``
instead of hashing hundreds of megabytes. A file that changed since, or was put there by hand, is hashed
again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from pyspec.errors import FetchError

_BLOCK = 1 << 20


def cache_dir() -> Path:
    """The folder for model files: ``$PYSPEC_CACHE``, else ``pyspec/models`` in the user's cache folder.

    The user's cache folder is ``$XDG_CACHE_HOME``, or ``~/.cache``. Nothing is created.
    """
    if own := os.environ.get("PYSPEC_CACHE"):
        return Path(own).expanduser().absolute()
    # The XDG specification has relative values ignored.
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"
    return base / "pyspec" / "models"


def work_dir(name: str) -> Path:
    """Where a model's pieces and unfinished files are kept until it is complete."""
    return cache_dir() / ".work" / name


def make_dir(path: Path) -> Path:
    """Creates a folder and its parents, or raises a :class:`FetchError` that says what to do."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FetchError(
            f"cannot create the folder {path}: {error.strerror}. Set PYSPEC_CACHE to a folder that can be written to"
        ) from error
    return path


def require_space(needed: int, what: str) -> None:
    """Raises before a disk is filled, rather than after."""
    free = shutil.disk_usage(cache_dir()).free
    if free < needed:
        raise FetchError(
            f"not enough space for {what}: {needed / 1e6:,.0f} MB needed, {free / 1e6:,.0f} MB free in "
            f"{cache_dir()}. Free some, or set PYSPEC_CACHE to a folder on another disk"
        )


@contextlib.contextmanager
def lock(name: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds a model's lock against other processes and threads; calls ``waiting`` while it has to wait."""
    path = make_dir(cache_dir() / ".work") / f"{name}.lock"
    try:
        handle = path.open("a")
    except OSError as error:
        raise FetchError(
            f"cannot write in {path.parent}: {error.strerror}. Set PYSPEC_CACHE to a folder that can be written to"
        ) from error
    with handle:  # closing gives the lock back
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                time.sleep(0.2)
            except OSError as error:
                raise FetchError(
                    f"cannot lock {path}: {error.strerror}. Set PYSPEC_CACHE to a folder on a local disk"
                ) from error
        yield


def sha256_of(path: Path) -> str:
    """Hash of a file's content."""
    with path.open("rb") as file:
        return copy_hashing(file, None)


def copy_hashing(source: IO[bytes], to: IO[bytes] | None) -> str:
    """Reads ``source`` to its end, writes it to ``to`` when given, returns the sha256 of what was read."""
    digest = hashlib.sha256()
    while block := source.read(_BLOCK):
        digest.update(block)
        if to is not None:
            to.write(block)
    return digest.hexdigest()


def join_hashing(paths: Iterable[Path], to: IO[bytes], advance: Callable[[int], None]) -> str:
    """Writes files one after the other, telling ``advance`` each step's size; the sha256 of the whole."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                to.write(block)
                advance(len(block))
    return digest.hexdigest()


def install(temporary: Path, final: Path, *, sha256: str, recipe: str = "") -> None:
    """Gives a checked file its final name, and stamps it."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    _stamp_path(final).unlink(missing_ok=True)
    os.replace(temporary, final)
    write_stamp(final, sha256=sha256, recipe=recipe)


def write_stamp(path: Path, *, sha256: str, recipe: str = "") -> None:
    """Records that ``path``, as it is now, was checked. A folder that cannot be written to is no error."""
    stat = path.stat()
    stamp = {"sha256": sha256, "size": stat.st_size, "mtime": int(stat.st_mtime), "recipe": recipe}
    temporary = _stamp_path(path).with_suffix(f".{os.getpid()}.tmp")
    with contextlib.suppress(OSError):
        temporary.write_text(json.dumps(stamp) + "\n", encoding="utf-8")
        os.replace(temporary, _stamp_path(path))


def read_stamp(path: Path) -> dict[str, Any] | None:
    """The stamp of a file, or None when it has none that can be read."""
    try:
        stamp = json.loads(_stamp_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def is_stamped(path: Path, *, sha256: str | None = None, recipe: str = "") -> bool:
    """Whether ``path`` exists and is unchanged since it was checked (its content is not read)."""
    stamp = read_stamp(path)
    if stamp is None or stamp.get("recipe") != recipe or sha256 not in (None, stamp.get("sha256")):
        return False
    try:
        stat = path.stat()
    except OSError:
        return False
    # Whole seconds: copies and image layers drop the rest.
    return (stat.st_size, int(stat.st_mtime)) == (stamp.get("size"), stamp.get("mtime"))


def is_good(path: Path, *, sha256: str | None = None, recipe: str = "") -> bool:
    """Whether ``path`` holds what it should; hashes it when the stamp does not say so.

    Without ``sha256`` the hash must be the one the stamp recorded, so a file without a stamp is not good.
    """
    if is_stamped(path, sha256=sha256, recipe=recipe):
        return True
    if sha256 is None:
        stamp = read_stamp(path)
        if stamp is None or stamp.get("recipe") != recipe:
            return False
        sha256 = str(stamp.get("sha256"))
    if not path.is_file() or sha256_of(path) != sha256:
        return False
    write_stamp(path, sha256=sha256, recipe=recipe)
    return True


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".stamp")
