"""What a hint installs is what the package asks for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tuner import extras


@pytest.mark.parametrize("part", extras._PACKAGES)
def test_a_hint_installs_what_an_extra_names(part: str) -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    pip, install, package = shlex.split(extras.command(part))
    assert (pip, install) == ("pip", "install")
    extra = "plot" if part in ("matplotlib", "plotext") else part
    assert re.search(rf'^{extra} = \[.*"{re.escape(package)}"', section, re.MULTILINE)
