"""The replay executor on a small synthetic space."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from recording import PEERS, PROBLEM, TARGET, config, one_of_each, trial

from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import Problem
from tuner.evaluate import replay
from tuner.evaluate.backend import open_executor
from tuner.evaluate.replay import ReplayExecutor
from tuner.evaluate.space_file import file_name, write_space
from tuner.evaluate.t4 import SpaceError
from tuner.search import finals
from tuner.target import Hardware
from tuner.trial import Candidate, Outcome

OTHER = Problem.on_grid(128, 8192, False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_space(tmp_path / file_name(PROBLEM, "fake", TARGET), one_of_each(), PEERS)
    write_space(tmp_path / "any-name.json.gz", [trial(0, problem=OTHER)])
    (tmp_path / "README.md").write_text("Not a space.")
    return tmp_path


def candidate(number: int) -> Candidate:
    return Candidate("fake", config(number))


def test_it_is_the_target_of_the_recording(folder: Path) -> None:
    with ReplayExecutor(folder) as executor:
        assert executor.target == TARGET
        assert executor.origin == "replay"
        assert executor.problems == (PROBLEM, OTHER)
        assert executor.template_version(PROBLEM, "fake") == "0123456789ab"


def test_the_announcement(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ReplayExecutor(folder)
    monkeypatch.setattr(replay, "has_gpu", lambda: False)
    monkeypatch.setattr(replay, "_version", lambda template: "0123456789ab")
    assert executor.announce() == (
        "No GPU here: replaying measurements recorded on NVIDIA H100 80GB HBM3 "
        "(sm_90, 132 SMs, 79 GiB, 700 W) on 2026-11-28, Triton 3.6.0."
    )
    monkeypatch.setattr(replay, "has_gpu", lambda: True)
    monkeypatch.setattr(replay, "_version", lambda template: "ffffffffffff")
    text = executor.announce()
    assert text.startswith("Replaying measurements")
    assert text.endswith("since then the kernel of fake has changed.")


def test_other_problems_are_refused_by_name(folder: Path) -> None:
    executor = ReplayExecutor(folder)
    assert executor.refuse(PROBLEM) is None
    reason = executor.refuse(Problem.on_grid(64, 512, True))
    assert reason == (
        "D64 S512 causal fp16 B32 H32 was not recorded, only "
        "D64 S4096 causal fp16 B4 H32, D128 S8192 full fp16 B2 H16"
    )


def test_every_outcome_comes_back_where_it_happened(folder: Path) -> None:
    executor = ReplayExecutor(folder)
    early = {Outcome.COMPILE_ERROR, Outcome.OUT_OF_RESOURCES, Outcome.SPILLS}
    for number, recorded in enumerate(one_of_each()):
        if recorded.outcome is Outcome.REJECTED:
            continue
        compiled = executor.compile(PROBLEM, candidate(number)).result(0)
        assert compiled.seconds == 1.25
        assert compiled.resources == recorded.resources
        if recorded.outcome in early:
            assert (compiled.outcome, compiled.reason) == (recorded.outcome, recorded.reason)
            continue
        assert compiled.outcome is Outcome.OK
        evaluated = executor.evaluate(PROBLEM, candidate(number), 0.1).result(0)
        assert (evaluated.outcome, evaluated.reason) == (recorded.outcome, recorded.reason)
        assert (evaluated.measurement is None) == (recorded.measurement is None)
        assert evaluated.seconds == 0.125


def test_a_hang_of_the_compiler_is_one_of_compilation(tmp_path: Path) -> None:
    hung = replace(trial(0, Outcome.TIMEOUT), resources=None, evaluate_s=None)
    write_space(tmp_path / "a.json", [hung])
    compiled = ReplayExecutor(tmp_path).compile(PROBLEM, candidate(0)).result(0)
    assert compiled.outcome is Outcome.TIMEOUT


def test_what_was_not_recorded_is_rejected(folder: Path) -> None:
    executor = ReplayExecutor(folder)
    for stranger, why in (
        (candidate(77), "not recorded"),
        (Candidate("hopper", config(0)), f"hopper was not recorded for {PROBLEM}"),
    ):
        compiled = executor.compile(PROBLEM, stranger).result(0)
        assert (compiled.outcome, compiled.reason) == (Outcome.REJECTED, why)
        assert executor.evaluate(PROBLEM, stranger, None).result(0).outcome is Outcome.REJECTED


def test_recordings_of_a_kernel_with_other_parameters_are_said_not_to_fit(tmp_path: Path) -> None:
    template = registry.get("portable")
    whole = template.default(PROBLEM, TARGET.hardware.capability)
    former = [
        replace(trial(number), candidate=Candidate("portable", Config(old=number)))
        for number in range(3)
    ]
    write_space(tmp_path / "a.json", former)
    wanted = Candidate("portable", whole)
    compiled = ReplayExecutor(tmp_path).compile(PROBLEM, wanted).result(0)
    assert compiled.outcome is Outcome.REJECTED
    assert compiled.reason == (
        "none of the 3 recorded configs of portable fits its present kernel: parameters are "
        f"['old'], but must be {sorted(whole)}"
    )
    one_fits = replace(trial(3), candidate=wanted)
    write_space(tmp_path / "a.json", [*former, one_fits])
    executor = ReplayExecutor(tmp_path)
    assert executor.compile(PROBLEM, wanted).result(0).outcome is Outcome.OK
    other = Candidate("portable", Config(old=9))
    assert executor.compile(PROBLEM, other).result(0).reason == "not recorded"


def test_a_race_draws_the_same_samples_every_time(folder: Path) -> None:
    numbers = Counter(t.outcome for t in one_of_each())
    assert numbers[Outcome.OK] == 1
    entrants = [candidate(0), candidate(77)]
    first = ReplayExecutor(folder).race(PROBLEM, entrants, 11).result(0)
    second = ReplayExecutor(folder).race(PROBLEM, entrants[::-1], 11).result(0)
    assert first.entrants == second.entrants
    measured = first.entrants[candidate(0)]
    assert len(measured.samples_ms) == 11
    assert set(measured.samples_ms) <= {0.294, 0.297, 0.3, 0.303, 0.306}
    assert first.dropped == {candidate(77): "not recorded"}
    assert {name: len(samples) for name, samples in first.peers.items()} == {"cudnn": 11, "fa2": 11}
    assert set(first.peers["fa2"]) <= set(PEERS["fa2"])


def test_of_hopefuls_those_that_were_the_fastest_race(tmp_path: Path) -> None:
    trials = [trial(number, ms=1.0 + number % 5) for number in range(8)]
    write_space(tmp_path / "a.json", trials)
    hopefuls = [each.candidate for each in trials]
    race = ReplayExecutor(tmp_path).race(PROBLEM, hopefuls[4:5], 3, hopefuls=hopefuls).result(0)
    assert set(race.entrants) == {hopefuls[number] for number in (4, 0, 5, 1, 6)}


def test_one_target_is_served_at_a_time(folder: Path) -> None:
    h200 = replace(TARGET, hardware=Hardware(90, 132, 140, 700), gpu_name="NVIDIA H200")
    write_space(folder / "h200.json", [trial(0, problem=OTHER, target=h200)])
    assert ReplayExecutor(folder).target == TARGET
    for number in range(3):  # now there are most of this one
        write_space(folder / f"h200-{number}.json", [trial(0, problem=OTHER, target=h200)])
    executor = ReplayExecutor(folder)
    assert (executor.target, executor.problems) == (h200, (OTHER,))


def test_nothing_to_replay_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="holds no recorded space"):
        ReplayExecutor(tmp_path)
    with pytest.raises(FileNotFoundError):
        ReplayExecutor(tmp_path / "nowhere")


def test_the_backend_by_name(folder: Path) -> None:
    assert isinstance(open_executor("replay", folder), ReplayExecutor)
    assert isinstance(open_executor(None, folder), ReplayExecutor)
    with pytest.raises(ValueError, match="backend is 'cpu', but must be one of cuda, replay"):
        open_executor("cpu")


def test_hundreds_of_trials_a_second(tmp_path: Path) -> None:
    write_space(tmp_path / "a.json.xz", [trial(number) for number in range(1000)])
    start = time.process_time()
    executor = ReplayExecutor(tmp_path)
    for number in range(1000):
        executor.compile(PROBLEM, candidate(number)).result(0)
        assert executor.evaluate(PROBLEM, candidate(number), None).result(0).measurement
    assert time.process_time() - start < 2


SCRIPT = """
import sys
sys.path[:] = sys.argv[2:]
from pathlib import Path
from tuner.evaluate.backend import open_executor
executor = open_executor("replay", Path(sys.argv[1]))
executor.announce()
assert executor.evaluate(executor.problems[0], None or __import__("recording").trial(0).candidate,
                         None).result().measurement
assert not {"torch", "triton"} & sys.modules.keys(), "imported"
"""


def test_neither_torch_nor_triton_is_imported(folder: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(folder), *sys.path]
    subprocess.run(command, check=True, timeout=60)


def test_a_race_is_decided_by_cycles_where_they_are(tmp_path: Path) -> None:
    at_a_higher_clock = trial(1, ms=0.28, cycles=4.4e5)
    write_space(tmp_path / "space.json", [trial(0, ms=0.30, cycles=4e5), at_a_higher_clock])
    with ReplayExecutor(tmp_path) as executor:
        race = executor.race(PROBLEM, [candidate(0)], 8, hopefuls=[candidate(1)]).result()
    assert race.deciding == {candidate(0): (4e5 / 1.5e6,) * 8, candidate(1): (4.4e5 / 1.5e6,) * 8}
    assert finals.decide(race.deciding, None, lambda _: 0).winner == candidate(0)
    # What is shown does not contradict it: all as at one clock.
    shown = race.entrants[candidate(1)]
    assert shown.median_ms == pytest.approx(4.4e5 / 1.5e6, rel=0.02)
    assert shown.tflops == pytest.approx(PROBLEM.tflops(4.4e5 / 1.5e6), rel=0.02)


@pytest.mark.parametrize("counted", [False, True])
def test_templates_are_compared_by_cycles_as_far_as_they_have_them(
    tmp_path: Path, counted: bool
) -> None:
    # At 2 GHz and at 1.6, so that the one that took less time takes more cycles.
    mine = [trial(0, ms=0.30, cycles=6e5), trial(1, ms=0.35, cycles=5.6e5)]
    theirs = trial(2, template="other", ms=0.32, cycles=4.8e5 if counted else None)
    write_space(tmp_path / "fake.json", mine)
    write_space(tmp_path / "other.json", [theirs])
    steady, rates = [], []
    with ReplayExecutor(tmp_path) as executor:
        for each in (*mine, theirs):
            measured = executor.evaluate(PROBLEM, each.candidate, None).result().measurement
            assert measured is not None
            steady.append(measured.steady_ms)
            rates.append(measured.tflops)
            assert median(measured.samples_ms) == pytest.approx(measured.median_ms)
    # As at 1.5 GHz, or beside what has no cycles at 1.8, the median of theirs.
    expected = [0.4, 0.56 / 1.5, 0.32] if counted else [0.6 / 1.8, 0.56 / 1.8, 0.32]
    assert steady == pytest.approx(expected)
    assert rates == pytest.approx([PROBLEM.tflops(ms) for ms in expected])
