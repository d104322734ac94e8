from __future__ import annotations

import json

import pytest

from kernels.attention.config import Config
from kernels.attention.template import Resources
from tuner.evaluate import wire
from tuner.evaluate.executor import Compilation
from tuner.trial import Candidate, Outcome


@pytest.mark.parametrize("resources", [None, Resources(168, 0, 200_760)])
@pytest.mark.parametrize("outcome", Outcome)
def test_a_compilation_comes_back_to_who_asked(
    outcome: Outcome, resources: Resources | None
) -> None:
    candidate = Candidate("fake", Config(number=1))
    compilation = Compilation(candidate, outcome, "so it is", resources, 1.25)
    spelled = json.loads(json.dumps(wire.compilation_to_json(compilation)))
    assert wire.compilation_from_json(spelled, candidate) == compilation
