"""The command line: it parses, calls and renders, and holds no logic of its own."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `tuner` command."""
    try:
        from tuner.cli import app
    except KeyboardInterrupt:  # loading takes a tenth of a second, too short to say more
        sys.exit(130)
    app.main()
