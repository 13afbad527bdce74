"""The built package: how a build fails, what its libraries need, what an import says, what a wheel holds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from building import (
    PACKAGE,
    ROOT,
    check_installed,
    check_wheel,
    copy_project,
    fetcher,
    native_files,
    needs_build_tools,
    run,
    site_folders,
    succeed,
)

from pyspec import build_info

if not (ROOT / "setup.py").exists():
    pytest.skip("needs the source tree around the tests", allow_module_level=True)


@needs_build_tools
class TestFailingBuilds:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            # As where there is no toolkit, whatever this machine has.
            ("-DGGML_CUDA=on -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=on", "CUDA Toolkit not found"),
            ("-DGGML_BACKEND_DL=on", "GGML_BACKEND_DL is not supported"),
            ("-DCMAKE_CXX_COMPILER=/no/such/compiler", "/no/such/compiler"),
        ],
    )
    def test_cmakes_own_message_is_shown(self, arguments: str, message: str, tmp_path: Path) -> None:
        project = copy_project(tmp_path / "project", linked_source=True)
        result = run([sys.executable, "setup.py", "build_ext", "--inplace"], cwd=project, CMAKE_ARGS=arguments)
        assert result.returncode != 0
        assert message in result.stderr
        assert "error: CMake could not configure pyspec" in result.stderr.splitlines()[-1]
        assert arguments in result.stderr.splitlines()[-1]
        assert "Traceback" not in result.stderr

    def test_arguments_are_recorded_as_they_were(self, tmp_path: Path) -> None:
        project = copy_project(tmp_path / "project", linked_source=True)
        arguments = '-DCMAKE_CXX_FLAGS="-DA=\\"b c\\"" \n -DLIST="a;b" -DGGML_LLAMAFILE=off'
        script = (
            "import sys, setuptools; sys.argv = ['setup.py', '--version']; import setup; "
            "command = setup.BuildNative(setuptools.Distribution({'version': '1'})); setup.CMake(command).configure()"
        )
        succeed([sys.executable, "-c", script], cwd=project, CMAKE_ARGS=arguments)
        (written,) = project.glob("build/*/_build_info.py")
        values: dict[str, object] = {}
        exec(written.read_text(), values)
        assert values["cmake_args"] == arguments
        assert "GGML_LLAMAFILE" not in values["ggml_options"]  # type: ignore[operator]

    def test_a_missing_tool_is_named(self, tmp_path: Path) -> None:
        project = copy_project(tmp_path / "project", linked_source=True)
        script = "import sysconfig; sysconfig.get_path = lambda *_: '/none'; exec(open('setup.py').read())"
        code = f"import sys; sys.argv = ['setup.py', 'build_ext']; __file__ = 'setup.py'\n{script}"
        result = run([sys.executable, "-c", code], cwd=project, PATH="/nowhere")
        assert "error: cmake was not found" in result.stderr


def dynamic_section(path: Path) -> dict[str, list[str]]:
    """NEEDED, SONAME and RUNPATH of a shared library, by readelf."""
    if sys.platform != "linux" or shutil.which("readelf") is None:
        pytest.skip("needs readelf")
    found: dict[str, list[str]] = {}
    for line in succeed(["readelf", "-d", "-W", path]).splitlines():
        if match := re.search(r"\((NEEDED|SONAME|RUNPATH|RPATH)\).*\[(.*)\]", line):
            found.setdefault(match[1], []).append(match[2])
    return found


class TestLibraries:
    def test_each_library_is_one_file_under_one_name(self) -> None:
        names = {path.name for path in (PACKAGE / "lib").iterdir()}
        for library in ("llama", "ggml", "ggml-base", "ggml-cpu"):
            assert [name for name in names if re.fullmatch(rf"lib{library}-pyspec\.(so|dylib)", name)]
        assert not [path for path in (PACKAGE / "lib").iterdir() if path.is_symlink()]

    def test_no_other_packages_libllama_can_take_their_place(self) -> None:
        """The loader identifies a library by its SONAME alone."""
        for path in (PACKAGE / "lib").glob("lib*-pyspec.so"):
            assert dynamic_section(path)["SONAME"] == [path.name]

    def test_they_find_each_other_wherever_the_package_lies(self) -> None:
        for path in native_files(PACKAGE):
            section = dynamic_section(path)
            assert "RPATH" not in section
            (runpath,) = section["RUNPATH"]
            if "cuda" not in path.name:
                assert runpath == ("$ORIGIN" if path.parent.name == "lib" else "$ORIGIN/lib")
            for name in section["NEEDED"]:
                if name.startswith(("libllama", "libggml")):
                    assert (PACKAGE / "lib" / name).is_file()

    def test_openmp_comes_along(self) -> None:
        needed = dynamic_section(PACKAGE / "lib" / "libggml-cpu-pyspec.so")["NEEDED"]
        if "libgomp.so.1" in needed:
            assert (PACKAGE / "lib" / "libgomp.so.1").is_file()

    def test_what_is_loaded_is_what_lies_in_the_package(self) -> None:
        if not Path("/proc/self/maps").exists():
            pytest.skip("needs /proc")
        code = "import pyspec; print(open('/proc/self/maps').read())"
        loaded = {line.split()[-1] for line in succeed([sys.executable, "-c", code]).splitlines() if "-pyspec" in line}
        assert loaded == {str(path) for path in (PACKAGE / "lib").glob("lib*-pyspec.so")}


def copy_package(target: Path, *, without: str = "") -> Path:
    """The built package alone, without the files that match a pattern."""
    shutil.copytree(PACKAGE, target / "pyspec", ignore=shutil.ignore_patterns("__pycache__", without))
    return target


def bare_python(code: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code with the package in this folder, out of reach of an editable installation's import hook."""
    path = os.pathsep.join([str(folder), *site_folders()])
    return run([sys.executable, "-S", "-c", code], cwd=folder, PYTHONPATH=path, **env)


class TestImport:
    def imported(self, folder: Path, **env: str) -> str:
        """What an import from this folder ends with."""
        return bare_python("import pyspec", folder, **env).stderr.strip()

    def test_a_copy_of_the_package_works(self, tmp_path: Path) -> None:
        assert self.imported(copy_package(tmp_path)) == ""

    def test_without_libllama_the_paths_tried_are_named(self, tmp_path: Path) -> None:
        folder = copy_package(tmp_path, without="libllama*")
        last = self.imported(folder, LD_LIBRARY_PATH="/some/where").splitlines()[-1]
        assert last.startswith("ImportError: pyspec can't load its native code: libllama-pyspec.so")
        assert str(folder / "pyspec" / "lib" / "libllama-pyspec.so") in last
        assert "/some/where/libllama-pyspec.so" in last
        assert "libggml-base-pyspec.so" in last  # what is there

    def test_an_unbuilt_tree_says_how_to_build(self, tmp_path: Path) -> None:
        last = self.imported(copy_package(tmp_path, without="_llama.*.so")).splitlines()[-1]
        assert last.startswith("ImportError: pyspec's native modules are not built for Python")
        assert "make build" in last

    @pytest.mark.parametrize(("library", "advice"), [("libcublas.so.13", "nvidia-cublas"), ("libcuda.so.1", "driver")])
    def test_missing_cuda_libraries_are_explained(self, library: str, advice: str) -> None:
        from pyspec._loading import explain

        message = explain(ImportError(f"{library}: cannot open shared object file: No such file or directory"))
        assert library in message
        assert advice in message

    def test_numpy_is_the_only_package_needed(self) -> None:
        code = (
            "import sys\n"
            "class Only:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name.partition('.')[0] not in {*sys.stdlib_module_names, 'numpy', 'pyspec'}:\n"
            "            raise ImportError('imports ' + name)\n"
            "sys.meta_path.insert(0, Only())\n"
            "import pyspec, pyspec.models, pyspec.chat, pyspec.speculation\n"
        )
        assert bare_python(code, ROOT).stderr == ""


@pytest.mark.skipif(
    sys.platform != "linux" or "GGML_LLAMAFILE" not in build_info()["ggml_options"],
    reason="a second CPU backend is built on Linux, where the first has llamafile's kernels",
)
class TestCpuBackends:
    """Two in one package, and PYSPEC_LLAMAFILE says which one a process has."""

    PLAIN = PACKAGE / "lib" / "without-llamafile" / "libggml-cpu-pyspec.so"

    def look(self, switch: str) -> tuple[bool, set[str]]:
        """With this value: whether there is llamafile's product, and which CPU backends are loaded."""
        code = "import pyspec; print(pyspec.build_info()['llamafile']); print(open('/proc/self/maps').read())"
        lines = succeed([sys.executable, "-c", code], PYSPEC_LLAMAFILE=switch).splitlines()
        return lines[0] == "True", {line.split()[-1] for line in lines[1:] if "libggml-cpu-pyspec" in line}

    def test_zero_loads_the_one_without_and_no_other(self) -> None:
        assert self.look("0") == (False, {str(self.PLAIN)})

    @pytest.mark.parametrize("switch", ["", "1"])
    def test_otherwise_it_is_the_ordinary_one(self, switch: str) -> None:
        assert self.look(switch) == (True, {str(PACKAGE / "lib" / "libggml-cpu-pyspec.so")})

    def test_it_has_the_name_of_the_other_and_finds_what_it_needs(self) -> None:
        section = dynamic_section(self.PLAIN)
        assert section["SONAME"] == ["libggml-cpu-pyspec.so"]
        assert section["RUNPATH"] == ["$ORIGIN/.."]
        assert section["NEEDED"] == dynamic_section(PACKAGE / "lib" / "libggml-cpu-pyspec.so")["NEEDED"]

    def test_what_can_not_be_chosen(self, tmp_path: Path) -> None:
        def refusal(folder: Path, switch: str) -> str:
            return bare_python("import pyspec", folder, PYSPEC_LLAMAFILE=switch).stderr.strip().splitlines()[-1]

        assert refusal(ROOT, "off") == (
            "ImportError: PYSPEC_LLAMAFILE must be 0 or 1 (with llamafile's matrix product or without), not 'off'"
        )
        missing = refusal(copy_package(tmp_path, without="without-llamafile"), "0")
        assert missing.startswith("ImportError: PYSPEC_LLAMAFILE is 0, and this pyspec has no second CPU backend")
        assert "PYSPEC_BOTH_CPU_BACKENDS" in missing
        damaged = tmp_path / "damaged"
        copy_package(damaged)
        (damaged / "pyspec" / "lib" / "without-llamafile" / self.PLAIN.name).write_bytes(b"no library")
        assert "can't be loaded" in refusal(damaged, "0")

    def test_a_build_without_llamafile_has_one_only(self) -> None:
        from pyspec._loading import choose_cpu_backend

        choose_cpu_backend("0", ("GGML_CPU",))  # it is that one already
        with pytest.raises(ImportError, match="built without llamafile"):
            choose_cpu_backend("1", ("GGML_CPU",))


class TestBuildInfo:
    def test_it_says_what_was_built(self) -> None:
        import pyspec

        info = pyspec.build_info()
        lock = fetcher.Lock.read()
        assert f'\nversion = "{info["version"]}"\n' in (ROOT / "pyproject.toml").read_text()
        assert str(info["llama_version"]).startswith(lock.llama_version)
        assert info["llama_commit"] == lock.llama_commit
        assert re.match(r"(GNU|Clang|AppleClang) \d+", info["compiler"])
        assert info["build_type"] == "Release"
        assert "GGML_CPU" in info["ggml_options"]
        assert "CPU" in info["backends"]
        assert any(device["type"] == "cpu" for device in info["devices"])
        assert "CPU" in info["cpu_features"]
        assert info["llamafile"] == ("LLAMAFILE = 1" in info["cpu_features"])

    def test_it_can_be_written_as_json(self) -> None:
        import json

        import pyspec

        assert json.loads(json.dumps(pyspec.build_info())) == pyspec.build_info()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from the build directory that is there."""
    folder = tmp_path_factory.mktemp("wheel")
    succeed([sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", folder], cwd=ROOT)
    (file,) = folder.glob("*.whl")
    return file


@needs_build_tools
class TestWheel:
    def test_it_holds_the_package_and_nothing_else(self, wheel: Path) -> None:
        check_wheel(wheel)

    def test_it_works_in_a_fresh_environment(self, wheel: Path, tmp_path: Path) -> None:
        venv.create(tmp_path / "env", symlinks=True)
        python = tmp_path / "env" / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = tmp_path / "env" / "lib" / version / "site-packages"
        succeed([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, wheel])
        (site / "numpy.pth").write_text("\n".join(site_folders()))
        check_installed(python, tmp_path)
