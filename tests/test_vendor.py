"""Where the source of llama.cpp comes from: the pinned file, one laid there by hand, a user's tree."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from building import ROOT, fetcher, run, succeed

if not (ROOT / "setup.py").exists():
    pytest.skip("needs the source tree around the tests", allow_module_level=True)


LOCK = fetcher.Lock.read()


def source_archive(path: Path, members: Mapping[str, bytes | tarfile.TarInfo]) -> Path:
    """A tar archive with these files, or members as they are."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def cmakelists(version: str) -> bytes:
    major, minor, patch = version.split(".")
    lines = f"set(LLAMA_VERSION_MAJOR {major})\nset(LLAMA_VERSION_MINOR {minor})\n"
    return f"{lines}set(LLAMA_VERSION_PATCH {patch})\n".encode()


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    """A vendor folder whose lock pins a small archive, ``package-1.0.tar.gz`` next to it."""
    folder = tmp_path / "vendor"
    folder.mkdir()
    pin(folder, "0.5.0")
    return folder


def pin(folder: Path, version: str) -> Path:
    """Write an archive that holds a llama.cpp of this version, and a lock that pins it."""
    archive = source_archive(
        folder.parent / "package-1.0.tar.gz",
        {
            "package-1.0/vendor/llama.cpp/CMakeLists.txt": cmakelists(version),
            "package-1.0/vendor/llama.cpp/include/llama.h": b"// " + version.encode(),
            "package-1.0/vendor/llama.cpp/models/vocab.gguf": b"big",
            "package-1.0/vendor/llama.cpp/tools/ui/CMakeLists.txt": b"# a part of a folder",
            "package-1.0/vendor/llama.cpp/tools/ui/src/app.ts": b"big",
            "package-1.0/package/binding.py": b"not llama.cpp",
        },
    )
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (folder / "llama.cpp.lock").write_text(
        f"package = package\nversion = 1.0\nsha256 = {digest}\nllama_version = {version}\n"
        "llama_commit = abc\nsupported_from = 0.5.0\nsupported_below = 0.6.0\n"
    )
    return archive


def lay_by_hand(folder: Path) -> None:
    shutil.copy(folder.parent / "package-1.0.tar.gz", folder)


class TestSource:
    def test_the_unpacked_tree_is_the_pinned_one(self) -> None:
        tree = ROOT / "vendor" / "llama.cpp"
        assert (tree / fetcher.STAMP).read_text().strip() == LOCK.stamp
        assert fetcher.llama_version(tree) == LOCK.llama_version
        assert fetcher.source_dir() == fetcher.Source(tree, LOCK.llama_version, LOCK.llama_commit)

    def test_nothing_of_it_is_tracked(self) -> None:
        if not (ROOT / ".git").exists():
            pytest.skip("not a git repository")
        tracked = succeed(["git", "ls-files", "vendor"], cwd=ROOT).split()
        assert tracked == ["vendor/README.md", "vendor/fetch_llama_cpp.py", "vendor/llama.cpp.lock"]

    def test_a_file_put_there_by_hand_is_unpacked(self, vendor: Path) -> None:
        lay_by_hand(vendor)
        source = fetcher.source_dir(vendor)
        assert source == fetcher.Source(vendor / "llama.cpp", "0.5.0", "abc")
        files = sorted(
            str(path.relative_to(source.path)) for path in source.path.rglob("*") if path.is_file()
        )
        assert files == [fetcher.STAMP, "CMakeLists.txt", "include/llama.h", "tools/ui/CMakeLists.txt"]

    def test_the_second_time_nothing_is_fetched_or_unpacked(self, vendor: Path) -> None:
        lay_by_hand(vendor)
        header = fetcher.source_dir(vendor).path / "include" / "llama.h"
        (vendor / "package-1.0.tar.gz").unlink()
        before = header.stat()
        fetcher.source_dir(vendor)
        assert header.stat() == before

    def test_a_moved_pin_replaces_the_tree_and_its_files_are_new(self, vendor: Path) -> None:
        lay_by_hand(vendor)
        header = fetcher.source_dir(vendor).path / "include" / "llama.h"
        os.utime(header, (2e9, 2e9))
        (vendor / "llama.cpp" / "src").mkdir()
        pin(vendor, "0.5.1")
        lay_by_hand(vendor)
        assert fetcher.source_dir(vendor).version == "0.5.1"
        assert header.read_bytes() == b"// 0.5.1"
        assert not (vendor / "llama.cpp" / "src").exists()
        # The archive's own times are those of 1970: a build directory would take its objects for newer.
        assert abs(header.stat().st_mtime - time.time()) < 60

    def test_a_tree_with_other_parts_of_the_same_file_is_replaced(
        self, vendor: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lay_by_hand(vendor)
        with monkeypatch.context() as patch:
            patch.setattr(fetcher, "KEPT", fetcher.KEPT[:-1])
            assert not (fetcher.source_dir(vendor).path / "tools").exists()
        assert (fetcher.source_dir(vendor).path / "tools" / "ui" / "CMakeLists.txt").exists()

    def test_a_file_with_another_checksum_is_refused_and_nothing_changes(self, vendor: Path) -> None:
        lay_by_hand(vendor)
        fetcher.source_dir(vendor)
        pin(vendor, "0.5.1")
        (vendor / "package-1.0.tar.gz").write_bytes(b"something else")
        with pytest.raises(fetcher.SourceError) as error:
            fetcher.source_dir(vendor)
        assert hashlib.sha256(b"something else").hexdigest() in str(error.value)
        assert fetcher.Lock.read(vendor / "llama.cpp.lock").sha256 in str(error.value)
        assert fetcher.llama_version(vendor / "llama.cpp") == "0.5.0"
        assert sorted(path.name for path in vendor.iterdir()) == [
            "llama.cpp",
            "llama.cpp.lock",
            "package-1.0.tar.gz",
        ]

    def test_a_tree_of_the_users_own_is_never_removed(self, vendor: Path) -> None:
        lay_by_hand(vendor)
        (vendor / "llama.cpp").mkdir()
        (vendor / "llama.cpp" / "work.cpp").write_text("mine")
        with pytest.raises(fetcher.SourceError, match="PYSPEC_LLAMA_CPP"):
            fetcher.source_dir(vendor)
        assert (vendor / "llama.cpp" / "work.cpp").read_text() == "mine"

    def test_without_network_the_error_names_both_ways_out(self, vendor: Path, tmp_path: Path) -> None:
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); import fetch_llama_cpp as f, pathlib\n"
            "try: f.source_dir(pathlib.Path(sys.argv[2]))\n"
            "except f.SourceError as error: print(error)"
        )
        offline = {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(tmp_path / "none"),
            "PIP_CONFIG_FILE": os.devnull,
        }
        result = run([sys.executable, "-c", code, ROOT / "vendor", vendor], **offline)
        assert str(vendor / "package-1.0.tar.gz") in result.stdout
        assert "PYSPEC_LLAMA_CPP" in result.stdout
        assert "No matching distribution" in result.stderr  # pip's own reason
        assert not (vendor / "llama.cpp").exists()

    @pytest.mark.parametrize("name", ["package-1.0/vendor/llama.cpp/../../../../evil", "/evil"])
    def test_an_archive_that_writes_elsewhere_is_refused(self, name: str, tmp_path: Path) -> None:
        archive = source_archive(tmp_path / "a.tar.gz", {name: b"evil"})
        with pytest.raises(fetcher.SourceError, match="outside its folder"):
            fetcher.extract(archive, "package-1.0/vendor/llama.cpp", tmp_path / "tree")
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar.gz"]

    def test_links_and_devices_in_an_archive_are_not_made(self, tmp_path: Path) -> None:
        members: dict[str, bytes | tarfile.TarInfo] = {"r/src/ok.cpp": b"ok"}
        for kind, name in ((tarfile.SYMTYPE, "soft"), (tarfile.LNKTYPE, "hard"), (tarfile.FIFOTYPE, "fifo")):
            info = tarfile.TarInfo(f"r/src/{name}")
            info.type, info.linkname = kind, "/etc/passwd"
            members[info.name] = info
        archive = source_archive(tmp_path / "a.tar.gz", members)
        fetcher.extract(archive, "r", tmp_path / "tree")
        assert [path.name for path in (tmp_path / "tree" / "src").iterdir()] == ["ok.cpp"]


class TestAnotherTree:
    """``PYSPEC_LLAMA_CPP``."""

    @staticmethod
    def tree(tmp_path: Path, cmake: bytes) -> Path:
        tree = tmp_path / "checkout"
        (tree / "include").mkdir(parents=True)
        (tree / "include" / "llama.h").touch()
        (tree / "CMakeLists.txt").write_bytes(cmake)
        return tree

    @pytest.mark.parametrize("version", ["0.5.0", "0.5.17"])
    def test_a_supported_version_is_used(self, version: str, tmp_path: Path) -> None:
        tree = self.tree(tmp_path, cmakelists(version))
        assert fetcher.source_dir(override=str(tree)) == fetcher.Source(tree, version, None)

    @pytest.mark.parametrize("version", ["0.4.9", "0.6.0", "1.5.0"])
    def test_another_version_is_refused_with_both_named(self, version: str, tmp_path: Path) -> None:
        tree = self.tree(tmp_path, cmakelists(version))
        with pytest.raises(
            fetcher.SourceError, match=rf"is llama.cpp {version}.*0\.5\.0 or newer, below 0\.6\.0"
        ):
            fetcher.source_dir(override=str(tree))

    def test_a_tree_that_states_no_version_is_refused(self, tmp_path: Path) -> None:
        tree = self.tree(tmp_path, b'project("llama.cpp" C CXX)\n')
        with pytest.raises(fetcher.SourceError, match="states no LLAMA_VERSION"):
            fetcher.source_dir(override=str(tree))

    def test_a_folder_that_is_no_tree_stops_the_build_with_one_line(self, tmp_path: Path) -> None:
        result = run([sys.executable, "setup.py", "build_ext"], cwd=ROOT, PYSPEC_LLAMA_CPP=str(tmp_path))
        assert result.returncode != 0
        assert f"error: PYSPEC_LLAMA_CPP={tmp_path} is not a llama.cpp source tree" in result.stderr
        assert "Traceback" not in result.stderr
