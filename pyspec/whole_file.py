"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Opens a file to write bytes to, which appears under its name when the block ends, in the place of one that was
    there. Where the block raises, or the disk is full, what was there stays as it was and nothing is left beside it.

    As with `open`, the permissions are those of the file that was there, else the usual ones for new files, a link is
    followed, and what is no regular file (``/dev/stdout``) is written to directly.

    Args:
        path: the file.

    Raises:
        OSError: it can't be written.
    """
    name = os.path.realpath(path)
    if os.path.exists(name) and not os.path.isfile(name):
        with open(name, "wb") as file:
            yield file
        return
    temporary = os.path.join(os.path.dirname(name), f".pyspec-{uuid.uuid4().hex}")
    try:
        file = open(temporary, "xb")  # noqa: SIM115 (closed below, before it gets its name)
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    try:
        with file:
            yield file
            if os.path.exists(name):
                os.chmod(temporary, os.stat(name).st_mode & 0o7777)
        os.replace(temporary, name)
    except BaseException:
        os.unlink(temporary)
        raise
