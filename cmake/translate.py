"""Translates one .pyx file to C++ for CMake: ``translate.py MODULE FILE.pyx FILE.cpp``, from the source
directory.

Two things beyond calling Cython. The list of files it read (``FILE.cpp.dep``) gets absolute paths, which
is what CMake can relate to the build directory. And the C++ file is only replaced if it differs, so that
a translation that comes out as before is not compiled again.
"""

import subprocess
import sys
from pathlib import Path


def main(module: str, pyx: str, cpp: str) -> int:
    output = Path(cpp)
    fresh = output.with_suffix(".new.cpp")
    # Run from the source directory, so that tracebacks say "pyspec/_llama.pyx" and not where that was.
    status = subprocess.run(
        [sys.executable, "-m", "cython", "--cplus", "-3", "--depfile", "--module-name", module, "-I", ".",
         "-o", str(fresh), pyx],
        check=False,
    ).returncode  # fmt: skip
    if status != 0:
        return status
    written = Path(f"{fresh}.dep")
    read = written.read_text(encoding="utf-8").partition(": \\\n")[2].split(" \\\n")
    paths = [str(Path(name.strip().replace("\\ ", " ")).resolve()).replace(" ", "\\ ") for name in read]
    Path(f"{output}.dep").write_text(f"{output}: " + " \\\n  ".join(paths) + "\n", encoding="utf-8")
    written.unlink()
    if output.exists() and output.read_bytes() == fresh.read_bytes():
        fresh.unlink()
    else:
        fresh.replace(output)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
