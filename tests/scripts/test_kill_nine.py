"""kill -9 a few times; the script does it a hundred times for the published figure."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from scripts import kill_nine
from tests.patience import ANSWER_S

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.timeout(300),
]


@pytest.mark.parametrize(("kind", "kills"), [("driver", 3), ("worker", 3), ("writer", 4)])
def test_a_kill_at_any_moment_loses_repeats_and_damages_nothing(
    kind: str, kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kill_nine, "GONE_S", ANSWER_S)
    seed = random.randrange(2**32)
    tally = kill_nine.KINDS[kind](kills, tmp_path, random.Random(seed))
    assert tally.kills == kills
    assert tally.midway >= kills // 2
    assert tally.told > 0
    assert tally.faults == 0, f"seed {seed}: {tally}"
