"""The command line: it parses, calls and renders, and holds no logic of its own."""

from tuner.cli.app import main as main
