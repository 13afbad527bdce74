#!/usr/bin/env python3
"""Finds, or fetches, the llama.cpp source tree that pyspec is compiled against.

setup.py calls :func:`source_dir` before it configures the build; ``python vendor/fetch_llama_cpp.py``
does the same by hand. Only the standard library is used, and pip for the download.

The tree comes from, in this order:

1. the directory named by the environment variable ``PYSPEC_LLAMA_CPP``, whose version must be supported;
2. ``vendor/llama.cpp``, if an earlier run unpacked the pinned version there;
3. the pinned source distribution lying in ``vendor/`` (for machines without a network);
4. the same file, downloaded with ``pip download`` from whatever index pip is configured for.

What is unpacked is checked against the sha256 in ``llama.cpp.lock`` first.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

VENDOR = Path(__file__).resolve().parent
ENV_VAR = "PYSPEC_LLAMA_CPP"
STAMP = ".pyspec-source"

# The files and folders of the tree that are unpacked: the two libraries, and what llama.cpp's own speculative
# decoding example and its server need, which the benchmarks are measured against. Left out are test vocabularies,
# documentation, the web interface (its build files write an empty one), converters and the other tools: 130 of 170 MB.
KEPT = tuple(map(PurePosixPath, (
    "CMakeLists.txt", "LICENSE", "AUTHORS", "licenses", "cmake", "include", "src", "ggml", "vendor", "common",
    "examples", "pocs", "scripts/ui-assets.cmake", "tools/mtmd", "tools/server",
    "tools/ui/ui.cpp.in", "tools/ui/ui.h.in", "tools/ui/CMakeLists.txt",
)))  # fmt: skip


class SourceError(Exception):
    """No usable llama.cpp source tree; the message says why and what to do."""


@dataclass(frozen=True)
class Lock:
    """What ``vendor/llama.cpp.lock`` pins."""

    package: str
    version: str
    sha256: str
    llama_version: str
    llama_commit: str
    supported_from: str
    supported_below: str

    @property
    def filename(self) -> str:
        """Name of the source distribution's file."""
        return f"{self.package}-{self.version}.tar.gz"

    @property
    def stamp(self) -> str:
        """What an unpacked tree is marked with: the file it comes from, and the parts that were taken."""
        return "\n".join([self.sha256, *map(str, KEPT)])

    @classmethod
    def read(cls, path: Path = VENDOR / "llama.cpp.lock") -> Lock:
        """Read a lock file: ``key = value`` lines, ``#`` comments."""
        values = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            line = line.partition("#")[0].strip()
            if line:
                key, _, value = line.partition("=")
                values[key.strip()] = value.strip()
        return cls(**values)


@dataclass(frozen=True)
class Source:
    """A llama.cpp source tree that can be built."""

    path: Path
    version: str
    commit: str | None
    """Commit of the pinned tree; None for a tree of the user's own, whose git knows it."""


def source_dir(vendor: Path = VENDOR, override: str | None = None) -> Source:
    """Return the tree to build, unpacking the pinned one into ``vendor/llama.cpp`` if it isn't there.

    ``override`` is the value of ``PYSPEC_LLAMA_CPP``, if set: that directory is used, and nothing is fetched.
    Raises :class:`SourceError`.
    """
    lock = Lock.read(vendor / "llama.cpp.lock")
    if override:
        return _users_tree(Path(override).expanduser(), lock)
    tree = vendor / "llama.cpp"
    if tree.exists():
        stamp = tree / STAMP
        if not stamp.exists():
            raise SourceError(
                f"{tree} was not unpacked by this build. To build from it, move it elsewhere and set "
                f"{ENV_VAR} to its path; to build the pinned version, remove it."
            )
        if stamp.read_text(encoding="utf-8").strip() == lock.stamp:
            return Source(tree, lock.llama_version, lock.llama_commit)
    by_hand = vendor / lock.filename
    if by_hand.exists():
        unpack(by_hand, tree, lock)
    else:
        with tempfile.TemporaryDirectory(prefix="pyspec-") as folder:
            unpack(download(lock, Path(folder), by_hand), tree, lock)
    return Source(tree, lock.llama_version, lock.llama_commit)


def llama_version(tree: Path) -> str | None:
    """The version a llama.cpp tree states in its CMakeLists.txt, or None if it states none."""
    try:
        text = (tree / "CMakeLists.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    parts = [re.search(rf"set\(LLAMA_VERSION_{part}\s+(\d+)\)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    found = [match.group(1) for match in parts if match]
    return ".".join(found) if len(found) == 3 else None


def _users_tree(tree: Path, lock: Lock) -> Source:
    """Check a tree the user named."""
    wanted = f"pyspec needs llama.cpp {lock.supported_from} or newer, below {lock.supported_below}"
    tree = tree.resolve()
    if not (tree / "include" / "llama.h").is_file():
        raise SourceError(
            f"{ENV_VAR}={tree} is not a llama.cpp source tree: it has no include/llama.h. {wanted}; unset "
            f"{ENV_VAR} to build the pinned {lock.llama_version}."
        )
    version = llama_version(tree)
    if version is None or not _key(lock.supported_from) <= _key(version) < _key(lock.supported_below):
        states = f"is llama.cpp {version}" if version else "states no LLAMA_VERSION in its CMakeLists.txt"
        raise SourceError(
            f"{ENV_VAR}={tree} {states}. {wanted}; check out such a version there, or unset {ENV_VAR} to "
            f"build the pinned {lock.llama_version}."
        )
    return Source(tree, version, None)


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def download(lock: Lock, folder: Path, by_hand: Path) -> Path:
    """Download the pinned source distribution into ``folder`` with pip and return its path.

    ``by_hand`` is where the error message tells the user to put the file if that fails.
    """
    # --no-binary names the one package: with ":all:", pip would also compile that package's build tools,
    # CMake among them, from source.
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--no-binary", lock.package, f"{lock.package}=={lock.version}", "--dest", str(folder),
    ]  # fmt: skip
    print(f"pyspec: fetching llama.cpp {lock.llama_version} ({lock.filename}, 77 MB)", flush=True)
    try:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise SourceError(_cannot_fetch(lock, by_hand, str(error))) from error
    archive = folder / lock.filename
    if result.returncode != 0 or not archive.is_file():
        raise SourceError(
            _cannot_fetch(lock, by_hand, f"pip ended with status {result.returncode}, see above")
        )
    return archive


def _cannot_fetch(lock: Lock, by_hand: Path, reason: str) -> str:
    return (
        f"The source of llama.cpp {lock.llama_version} could not be fetched ({reason}). Either\n"
        f"  - put the file {lock.filename} at {by_hand}\n"
        f"    (on a machine with a network: pip download --no-deps --no-binary {lock.package} "
        f"{lock.package}=={lock.version}), or\n"
        f"  - set {ENV_VAR} to the directory of a llama.cpp checkout, from {lock.supported_from}, below "
        f"{lock.supported_below}."
    )


def unpack(archive: Path, tree: Path, lock: Lock) -> None:
    """Unpack the llama.cpp inside ``archive`` as ``tree``, replacing what an earlier run unpacked there.

    The file's sha256 is checked first. The tree appears whole or not at all: it is built next to its
    place and moved there, so an interrupted run leaves nothing that looks finished.
    """
    digest = _sha256(archive)
    if digest != lock.sha256:
        raise SourceError(
            f"{archive} is not the pinned file: its sha256 is {digest}, but vendor/llama.cpp.lock says "
            f"{lock.sha256}. Remove it and build again."
        )
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".llama.cpp-", dir=tree.parent) as folder:
        fresh = Path(folder) / "llama.cpp"
        extract(archive, f"{lock.package}-{lock.version}/vendor/llama.cpp", fresh)
        if llama_version(fresh) != lock.llama_version:
            raise SourceError(
                f"{archive} holds llama.cpp {llama_version(fresh)}, but vendor/llama.cpp.lock says "
                f"{lock.llama_version}."
            )
        (fresh / STAMP).write_text(lock.stamp + "\n", encoding="utf-8")
        if tree.exists():
            shutil.rmtree(tree)
        fresh.rename(tree)


def extract(archive: Path, root: str, target: Path) -> None:
    """Write the kept files under ``root`` of a tar archive into ``target``.

    Only plain files are written, only below ``target``; a name that would lead elsewhere is an error.
    Files get the present time, not the archive's, so that a build directory notices that they changed.
    """
    prefix = PurePosixPath(root)
    with tarfile.open(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name)
            if ".." in name.parts or name.is_absolute():
                raise SourceError(
                    f"{archive} holds a file that would be written outside its folder: {member.name}"
                )
            if not name.is_relative_to(prefix) or not member.isfile():
                continue
            inside = name.relative_to(prefix)
            if not any(inside.is_relative_to(kept) for kept in KEPT):
                continue
            content = tar.extractfile(member)
            assert content is not None  # a plain file always has content
            path = target.joinpath(*inside.parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with content, path.open("wb") as out:
                shutil.copyfileobj(content, out)
            path.chmod(0o755 if member.mode & 0o100 else 0o644)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def main() -> int:
    try:
        source = source_dir(override=os.environ.get(ENV_VAR))
    except SourceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"llama.cpp {source.version} in {source.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
