"""``python -m pyspec``: the command line."""

from pyspec.cli import main

raise SystemExit(main())
