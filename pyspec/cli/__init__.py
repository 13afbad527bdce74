"""The command line: ``pyspec generate``, ``pyspec bench``, ``pyspec info``, ``pyspec models``.

Exit codes: 0 done, 1 it failed, 2 it was asked for something that cannot work, 130 interrupted (Ctrl-C).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pyspec.errors import InvalidRequest, PyspecError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code.

    Args:
        argv: the arguments after the program's name; those of the process when None.
    """
    try:
        import rich  # noqa: F401
    except ImportError:
        return _fail("the command line needs the package rich: python -m pip install 'pyspec[cli]'", 1)
    from pyspec.cli.commands import UsageError, parse

    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except SystemExit as leave:  # --help and --version
        return leave.code if isinstance(leave.code, int) else 1
    except BrokenPipeError:
        # Whoever read the output has left. Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except (UsageError, InvalidRequest) as error:
        return _fail(_message(error), 2)
    except (PyspecError, OSError) as error:
        return _fail(_message(error), 1)


def _message(error: Exception) -> str:
    if os.environ.get("PYSPEC_DEBUG"):
        raise error
    from pyspec.cli.options import ENGINE_OPTIONS, SAMPLING_OPTIONS
    from pyspec.cli.parser import with_flag
    from pyspec.cli.spec_options import LENGTH_OPTIONS

    if isinstance(error, InvalidRequest):
        return with_flag(error, (*ENGINE_OPTIONS, *LENGTH_OPTIONS, *SAMPLING_OPTIONS))
    return str(error)


def _fail(text: str, code: int) -> int:
    sys.stdout.flush()
    print(f"error: {text}", file=sys.stderr)
    return code
