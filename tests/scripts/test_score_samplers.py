"""Recorded spaces are scored as a search sees them: all templates of a problem together."""

from __future__ import annotations

import numpy as np

from scripts.score_samplers import OURS, Task, batches, cases, run
from tuner.evaluate.space_file import read_space
from tuner.search.exploration import _LEAST_AHEAD

FOLDERS = (str(OURS / "h100"),)
BOTH, ONE = "H100 D128 S8192 causal fp16 B2 H16", "H100 D128 S4096 causal fp16 B4 H16"


def test_the_templates_of_one_problem_on_one_card_are_one_space() -> None:
    known = cases(FOLDERS)
    case = known[BOTH]
    files = [read_space(path) for path in sorted((OURS / "h100").glob("D128-S8192-causal-*"))]
    assert {space.header.template for space in files} == {"portable", "hopper"}
    assert len(case.trials) == sum(len(space.trials) for space in files)
    assert {default.template for default in case.defaults} == {"portable", "hopper"}
    assert [trial.candidate for trial in case.trials] == list(case.space.candidates.feasible)
    assert case.winner.template == "hopper"
    assert np.isnan(case.landscape.values).sum() == 36  # what spills
    assert {default.template for default in known[ONE].defaults} == {"portable"}


def test_what_a_space_of_more_templates_taught_serves_one_of_fewer() -> None:
    result = run(Task(FOLDERS, ONE, "surrogate", "neighbours", 1, 8, 1))
    assert result.repeats == 0
    assert len(result.curve) == 8
    assert 0.9 < result.curve[-1] <= 1.0


def test_the_default_sampler_is_also_scored_as_a_search_asks_it() -> None:
    assert batches("surrogate", None) == (1, _LEAST_AHEAD, 16)
    assert batches("random", None) == (1,)
    assert batches("surrogate", 4) == (4,)
