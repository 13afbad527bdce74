"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspec._llama import Context, Model
from pyspec.engine import saved
from pyspec.engine.prefixes import Saved
from pyspec.speculation.vocab_list import write_list
from pyspec.whole_file import whole_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with whole_file(path) as file:
        file.write(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    with whole_file(str(path)) as file:
        file.write(b"two")
        assert path.read_bytes() == b"one"
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["file"]


def break_off(path: Path, error: BaseException) -> None:
    with whole_file(path) as file:
        file.write(b"half of it")
        raise error


@pytest.mark.parametrize("error", [ValueError("wrong"), OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_what_was_there_stays(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    for before in (None, b"before"):
        if before is not None:
            path.write_bytes(before)
        with pytest.raises(type(error)):
            break_off(path, error)
        assert os.listdir(tmp_path) == ([] if before is None else ["file"])
    assert path.read_bytes() == b"before"


def test_permissions_and_links_are_those_of_open(tmp_path: Path) -> None:
    plain, path, link = tmp_path / "plain", tmp_path / "file", tmp_path / "link"
    plain.write_bytes(b"")
    link.symlink_to("file")
    for _ in range(2):
        with whole_file(link) as file:
            file.write(b"new")
        assert path.read_bytes() == b"new" and link.is_symlink()
        assert mode(path) == mode(plain)
    path.chmod(0o640)
    with whole_file(path) as file:
        file.write(b"newer")
    assert mode(path) == 0o640
    with whole_file("/dev/null") as file:
        file.write(b"nothing")
    assert not Path("/dev/null").is_file()


def test_errors_name_the_file(tmp_path: Path) -> None:
    for path, number in ((tmp_path / "none" / "file", errno.ENOENT), (tmp_path, errno.EISDIR)):
        with pytest.raises(OSError, match=rf"^\[Errno {number}\]") as caught, whole_file(path):
            pass
        assert caught.value.filename == str(path)
    assert os.listdir(tmp_path) == []


FULL = """
import resource, sys
from pyspec.speculation.vocab_list import write_list
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    write_list(sys.argv[1], range(100_000), {})
except OSError as error:
    print(error.errno)
"""


def test_a_disk_that_fills_while_a_list_is_written(tmp_path: Path) -> None:
    """A limit on the size of files stops a write in its middle, as a full disk does."""
    path = tmp_path / "list"
    write_list(path, [1, 2, 3], {"model": "before"})
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EFBIG)]
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["list"]


def test_all_files_have_usual_permissions(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    write_list(tmp_path / "list", [1], {})
    saved.write(tmp_path / "prefix", Saved((1,), 1, b"state", ()), {"n_vocab": 2})
    with Model(str(tiny("llama"))) as model, Context(model, n_ctx=64) as context:
        context.decode([5, 6], pos=0)
        context.state_seq_save(tmp_path / "state", 0, [5, 6])
    assert {mode(path) for path in tmp_path.iterdir()} == {mode(plain)}
    assert len(list(tmp_path.iterdir())) == 4
