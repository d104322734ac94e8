"""What the recorded spaces that we ship claim to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.attention import registry
from tuner.evaluate.replay import shipped_spaces
from tuner.evaluate.space_file import file_name, read_space

SPACES = sorted(shipped_spaces().parent.rglob("*.json.xz"))


@pytest.mark.parametrize("path", SPACES, ids=lambda path: f"{path.parent.name}-{path.name[:30]}")
def test_a_shipped_space_is_whole(path: Path) -> None:
    space = read_space(path)
    header = space.header
    assert path.name == file_name(header.problem, header.template, header.target)
    template = registry.get(header.template)
    assert header.template_version == template.version
    capability = header.target.hardware.capability
    feasible = template.feasible(header.problem.specialization, capability)
    assert set(space.trials) == set(feasible)
