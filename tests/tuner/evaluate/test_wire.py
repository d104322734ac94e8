from __future__ import annotations

import json

import pytest

from kernels.attention.config import Config
from kernels.attention.template import Resources
from tuner.evaluate import wire
from tuner.evaluate.executor import Compilation, Evaluation
from tuner.trial import Candidate, Measurement, Outcome


@pytest.mark.parametrize("resources", [None, Resources(168, 0, 200_760)])
@pytest.mark.parametrize("outcome", Outcome)
def test_a_compilation_comes_back_to_who_asked(
    outcome: Outcome, resources: Resources | None
) -> None:
    candidate = Candidate("fake", Config(number=1))
    compilation = Compilation(candidate, outcome, "so it is", resources, 1.25)
    spelled = json.loads(json.dumps(wire.compilation_to_json(compilation)))
    assert wire.compilation_from_json(spelled, candidate) == compilation


@pytest.mark.parametrize(
    "measurement", [None, Measurement(1.5, 0.02, (1.4, 1.5, 1.6), 612.5, 1e-3, 1755)]
)
@pytest.mark.parametrize("outcome", Outcome)
def test_an_evaluation_comes_back_to_who_asked(
    outcome: Outcome, measurement: Measurement | None
) -> None:
    candidate = Candidate("fake", Config(number=1))
    evaluation = Evaluation(candidate, outcome, "so it is", measurement, 1.25, 0.5)
    spelled = json.loads(json.dumps(wire.evaluation_to_json(evaluation)))
    assert wire.evaluation_from_json(spelled, candidate) == evaluation
