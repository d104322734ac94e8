"""What the recorded spaces that we ship claim to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.attention import registry
from tuner.evaluate.replay import shipped_spaces
from tuner.evaluate.space_file import file_name, read_space
from tuner.store.rows import trial_row

# Whose spaces still say which config is fast, and what of today they hold: of the portable
# kernel, the one before a guard of its masked loop was taken over by the other, with three stages
# at most; of the Hopper kernel, the one before queries were held in registers. A replay says that
# the kernel has changed since.
FORMER = {
    ("portable", "7d9e1baeadf5"): lambda config: config["num_stages"] <= 3,
    ("hopper", "157aa05c8312"): lambda config: config["q_held"] == 0,
}

SPACES = sorted(shipped_spaces().parent.rglob("*.json.xz"))


@pytest.mark.parametrize("path", SPACES, ids=lambda path: f"{path.parent.name}-{path.name[:30]}")
def test_a_shipped_space_is_whole(path: Path) -> None:
    space = read_space(path)
    header = space.header
    assert path.name == file_name(header.problem, header.template, header.target)
    space.check(trial_row)  # which a replay leaves to this test
    template = registry.get(header.template)
    feasible = template.feasible(header.problem.specialization, header.target.hardware.capability)
    held = FORMER.get((header.template, header.template_version))
    if held is None:
        assert header.template_version == template.version
    assert set(space.trials) == {config for config in feasible if held is None or held(config)}
