"""Recorded spaces are scored as a search sees them: all templates of a problem together."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from kernels.attention import registry
from kernels.attention.problem import Problem
from scripts import score_samplers
from scripts.recorded_cases import cases
from scripts.score_samplers import OURS, Task, batches, run
from tests.tuner.evaluate.recording import trial
from tuner.evaluate.space_file import read_space, write_space
from tuner.evaluate.t4 import SpaceError
from tuner.store.errors import StoreError
from tuner.trial import Candidate, Outcome

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
    assert batches("surrogate", None) == (1, 8, 16, 31)
    assert batches("random", None) == (1,)
    assert batches("surrogate", 4) == (4,)


@pytest.mark.parametrize(
    ("headdim", "template", "count", "sentence"),
    [
        (64, "x", 3, "is of no space that is searched: "),
        (96, "portable", 3, "is of no space that is searched: "),
        (64, "portable", 3, "is of no space that is searched: "),  # foreign parameters
    ],
)
def test_what_cannot_be_scored_is_refused(
    tmp_path: Path, headdim: int, template: str, count: int, sentence: str
) -> None:
    problem = Problem.on_grid(headdim, 4096, True)
    trials = [trial(number, problem=problem, template=template) for number in range(count)]
    write_space(tmp_path / "space.json", trials, {}, "by hand")
    with pytest.raises(SpaceError, match=sentence):
        cases((str(tmp_path),))


def recorded(folder: Path, right: int) -> None:
    """Three configs of which so many came through, as the only recorded space of `folder`."""
    problem = Problem.on_grid(64, 4096, True)
    configs = islice(registry.get("portable").feasible(problem.specialization, 90), 3)
    trials = [
        replace(
            trial(number, Outcome.OK if number < right else Outcome.SPILLS, problem=problem),
            candidate=Candidate("portable", config),
        )
        for number, config in enumerate(configs)
    ]
    write_space(folder / "space.json", trials, {}, "by hand")


@pytest.mark.parametrize("right", [0, 1])
def test_fewer_than_two_times_are_no_landscape(tmp_path: Path, right: int) -> None:
    recorded(tmp_path, right)
    with pytest.raises(SpaceError, match="has no two times, so that nothing can be scored"):
        cases((str(tmp_path),))


def test_scores_that_cannot_be_written_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, content: str) -> None:
        raise StoreError(f"{path} cannot be written: no space")

    recorded(tmp_path, 3)
    monkeypatch.setattr(score_samplers.refusals, "write_atomically", full)
    asked = ["--spaces", tmp_path, "--samplers", "random", "--starts", "cold", "--seeds", "2"]
    with pytest.raises(SystemExit) as ended:
        score_samplers.main([*map(str, asked), "--output", str(tmp_path / "scores.json")])
    assert ended.value.code == 2
    said = capsys.readouterr()
    (result,) = json.loads(said.out)["results"]
    assert (result["sampler"], result["start"]) == ("random", "cold")
    assert said.err.endswith("scores.json cannot be written: no space\n")
