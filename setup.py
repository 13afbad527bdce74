"""Builds the native half of pyspec: libllama, ggml and the Cython modules, with CMake.

Everything else about the package is in pyproject.toml. What a user can set, all through the environment:

``CMAKE_ARGS``
    Further arguments for CMake, split as a shell would, for instance ``-DGGML_CUDA=on``.
``CMAKE_BUILD_PARALLEL_LEVEL``
    How many compilers run at once; all cores unless set.
``PYSPEC_LLAMA_CPP``
    A llama.cpp source tree to build instead of the pinned one, see vendor/README.md.

The build directory is kept (``build/<python>-<platform>``), so that a second build compiles only what
changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "vendor"))

import fetch_llama_cpp  # noqa: E402

# Variables that CMake reads once, when a build directory is configured first. A build with other values
# gets a directory of its own: it would otherwise silently keep the old ones.
CONFIGURING = (
    *("CMAKE_ARGS", "CMAKE_GENERATOR", "PYSPEC_LLAMA_CPP", "ARCHFLAGS", "MACOSX_DEPLOYMENT_TARGET"),
    *("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CUDACXX", "CUDAFLAGS", "CUDAHOSTCXX"),
)

# llama.cpp's own programs that the benchmarks compare with.
EXAMPLES = ("llama-speculative-simple", "llama-server")


def llama_source(override: str | None) -> fetch_llama_cpp.Source:
    """The llama.cpp tree to build, fetched if need be."""
    try:
        with alone_in(ROOT / "build" / "llama.cpp"):
            return fetch_llama_cpp.source_dir(override=override)
    except fetch_llama_cpp.SourceError as error:
        raise CompileError(str(error)) from error


class Build(build):
    """``build``, from an empty staging folder: deleted files would otherwise be in every later wheel."""

    def run(self) -> None:
        shutil.rmtree(Path(self.build_lib) / "pyspec", ignore_errors=True)
        super().run()


class CMake:
    """One build directory, and CMake's three steps in it."""

    def __init__(self, command: Command, *extra: str) -> None:
        project = command.distribution
        self.quiet = not project.verbose
        self.env = tool_environment()
        self.folder = build_folder(self.env)
        self.tool = find_tool("cmake", self.env)
        source = llama_source(self.env.get(fetch_llama_cpp.ENV_VAR))
        users = self.env.get("CMAKE_ARGS", "")
        # Ours first, so that the user's win.
        self.arguments = [
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DPYSPEC_VERSION={project.get_version()}",
            f"-DPYSPEC_LLAMA_CPP={source.path}",
            f"-DPYSPEC_LLAMA_COMMIT={source.commit or ''}",
            f"-DPYSPEC_CMAKE_ARGS={json.dumps(users)}",
            *self.generator(),
            *extra,
            *shlex.split(users),
        ]

    def generator(self) -> list[str]:
        ninja = shutil.which("ninja", path=self.env["PATH"])
        if ninja is None or "CMAKE_GENERATOR" in self.env:
            return []
        # Named each time: pip's build environment, and the ninja in it, has another path in every run.
        return ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]

    def configure(self) -> None:
        forget_moved_cache(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        quieter = ["--log-level=NOTICE"] if self.quiet else []
        self.run("configure", "-S", str(ROOT), "-B", str(self.folder), *quieter, *self.arguments)

    def compile(self, *targets: str) -> None:
        self.run("compile", "--build", str(self.folder), "--target", *targets)

    def install(self, prefix: Path) -> None:
        self.run("install", "--install", str(self.folder), "--component", "pyspec", "--prefix", str(prefix))

    def run(self, step: str, *arguments: str) -> None:
        """Run one step; what CMake has to say goes to the terminal as it says it."""
        if not self.quiet:
            print("+", shlex.join(["cmake", *arguments]), flush=True)
        status = subprocess.run([self.tool, *arguments], env=self.env, check=False).returncode
        if status != 0:
            raise CompileError(
                f"CMake could not {step} pyspec (status {status}). Its own message is above; "
                f"CMAKE_ARGS was {self.env.get('CMAKE_ARGS', '')!r}."
            )


class BuildNative(build_ext):
    """``build_ext``, by CMake."""

    def run(self) -> None:
        cmake = CMake(self)
        prefix = ROOT if self.inplace else Path(self.build_lib).resolve()
        with alone_in(cmake.folder):
            cmake.configure()
            cmake.compile("pyspec_all")
            cmake.install(prefix)
            remove_strangers(cmake.folder, prefix / "pyspec" / "lib")


class BuildExample(Command):
    """``build_example``: llama.cpp's own speculative decoding and its server, on the libraries the package uses."""

    description = "build llama.cpp's llama-speculative-simple and llama-server into build/, for the benchmarks"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = []

    def initialize_options(self) -> None:
        pass

    def finalize_options(self) -> None:
        pass

    def run(self) -> None:
        cmake = CMake(self, "-DPYSPEC_LLAMA_EXAMPLES=on")
        with alone_in(cmake.folder):
            cmake.configure()
            cmake.compile(*EXAMPLES)
        for name in EXAMPLES:
            link = ROOT / "build" / name
            link.unlink(missing_ok=True)
            link.symlink_to(cmake.folder / "bin" / name)
            print(link)


class SourceDistribution(sdist):
    """``sdist`` with the pinned llama.cpp inside, so that it builds without a network."""

    def run(self) -> None:
        llama_source(None)
        super().run()


def tool_environment() -> dict[str, str]:
    """The environment CMake runs in: the tools of this Python's environment found first, even if not
    activated.
    """
    env = dict(os.environ)
    env["PATH"] = os.pathsep.join([env.get("PATH", os.defpath), sysconfig.get_path("scripts")])
    # Lets ccache recognise a file compiled in another directory, a source distribution unpacked by pip
    # for one.
    env.setdefault("CCACHE_BASEDIR", str(ROOT))
    # Packagers set it, and "cmake --install" would put it in front of the folder setuptools asked for.
    env.pop("DESTDIR", None)
    return env


def find_tool(name: str, env: dict[str, str]) -> str:
    path = shutil.which(name, path=env["PATH"])
    if path is None:
        raise CompileError(f"{name} was not found. With --no-build-isolation, first: pip install {name}")
    return path


def build_folder(env: dict[str, str]) -> Path:
    """The build directory for this interpreter and these settings."""
    name = f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
    settings = {key: env[key] for key in CONFIGURING if env.get(key)}
    if settings:
        name += "-" + hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return ROOT / "build" / name


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other build uses the directory, and keep others waiting: Ninja doesn't look."""
    folder.parent.mkdir(exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def forget_moved_cache(folder: Path) -> None:
    """Remove a build directory that came here as part of a copied tree: CMake refuses to use it."""
    cache = folder / "CMakeCache.txt"
    if cache.exists() and f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n" not in cache.read_text(encoding="utf-8"):
        shutil.rmtree(folder)


def remove_strangers(folder: Path, libraries: Path) -> None:
    """Remove libraries that an earlier build with other settings left in the package."""
    installed = (folder / "install_manifest_pyspec.txt").read_text(encoding="utf-8").splitlines()
    for file in libraries.rglob("*"):
        if file.is_file() and str(file) not in installed:
            file.unlink()


setup(
    # Named so that setuptools knows the package to be platform-specific; CMakeLists.txt lists the real ones.
    ext_modules=[Extension("pyspec._llama", sources=[])],
    cmdclass={
        "build": Build,
        "build_ext": BuildNative,
        "build_example": BuildExample,
        "sdist": SourceDistribution,
    },
)
