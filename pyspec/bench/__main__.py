"""``python -m pyspec.bench``: the same as ``pyspec bench``."""

import sys

from pyspec.cli import main

raise SystemExit(main(["bench", *sys.argv[1:]]))
