"""Several evaluators in processes that replay: every trial once, the same winner, less time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from kernels.attention.problem import Problem
from tests.patience import in_one_of
from tuner.evaluate import rehearsal
from tuner.evaluate.executor import Executor
from tuner.evaluate.local import LocalExecutor
from tuner.evaluate.rehearsal import Rehearsal
from tuner.evaluate.replay import ReplayExecutor
from tuner.record import Record
from tuner.search import driver
from tuner.search.events import Event, TrialEnded
from tuner.search.options import Options
from tuner.store.database import Store

PROBLEM = Problem.on_grid(64, 4096, True)
TRIALS = 40


def rehearsed(evaluators: int, pace: float = 0.0) -> Rehearsal:
    recorded = ReplayExecutor()
    options = rehearsal.options(None, pace)
    processes = LocalExecutor(
        devices=range(evaluators), jobs=1, gpu_factory=rehearsal.GPU_FACTORY, gpu_options=options,
        compile_factory=rehearsal.COMPILE_FACTORY, compile_options=rehearsal.options(None),
    )  # fmt: skip
    return Rehearsal(processes, recorded)


def search(executor: Executor, path: Path, watch: driver.Observer) -> Record:
    options = Options(TRIALS, sampler="random", seed=3)
    with Store.open(path) as store:
        (found,) = driver.search([PROBLEM], executor, store, (), options, watch)
        assert len(store.trials()) == TRIALS
    assert found is not None
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """What a replay in this process finds."""
    path = tmp_path_factory.mktemp("alone") / "alone.db"
    return search(ReplayExecutor(), path, lambda _: None)


class Watch:
    """Sees all events, and how long after the first trial the last one ended: how long processes
    take to start is the machine's affair."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._ended: list[float] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, TrialEnded):
            self._ended.append(time.monotonic())

    @property
    def seconds(self) -> float:
        return self._ended[-1] - self._ended[0]


def told(events: list[Event]) -> Counter[object]:
    return Counter(e.trial.candidate for e in events if isinstance(e, TrialEnded))


def test_the_words_are_those_of_a_replay() -> None:
    with rehearsed(2) as executor:
        recorded = ReplayExecutor()
        assert executor.origin == "replay"
        assert executor.evaluate_slots == 2
        assert executor.announce().startswith(recorded.announce()[:-1])
        assert executor.announce().endswith("; rehearsed by 2 evaluators.")
        assert executor.refuse(PROBLEM) is None
        assert executor.refuse(Problem.on_grid(64, 77, True)) is not None
        version = recorded.template_version(PROBLEM, "portable")
        assert executor.template_version(PROBLEM, "portable") == version


def test_wall_clock_shrinks_with_evaluators_and_every_trial_is_told_once(
    tmp_path: Path, undisturbed: Record
) -> None:
    walls: list[float] = []

    def wall(evaluators: int) -> float:
        watch = Watch()
        with rehearsed(evaluators, pace=5.0) as executor:
            found = search(executor, tmp_path / f"{len(walls)}.db", watch)
        walls.append(watch.seconds)
        assert found.candidate == undisturbed.candidate
        assert found.measurement == undisturbed.measurement
        assert set(told(watch.events).values()) == {1}
        assert len(told(watch.events)) == TRIALS
        return watch.seconds

    alone = wall(1)
    assert in_one_of(3, lambda: wall(3) < 0.6 * alone), walls


def test_evaluators_killed_while_they_search_cost_nothing(
    tmp_path: Path, undisturbed: Record
) -> None:
    events: list[Event] = []
    with rehearsed(2, pace=4.0) as executor:
        local = executor._processes
        assert isinstance(local, LocalExecutor)
        done = threading.Event()
        killed = 0

        def kill_in_turn() -> None:
            nonlocal killed
            # Each evaluator once, far apart: what is killed under twice counts as a crash.
            while killed < 2 and not done.wait(0.05):
                ended = sum(isinstance(event, TrialEnded) for event in events)
                pid = local._evaluators[killed].pid
                if pid is not None and ended >= (6, 24)[killed]:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1

        killer = threading.Thread(target=kill_in_turn)
        killer.start()
        try:
            found = search(executor, tmp_path / "killed.db", events.append)
        finally:
            done.set()
            killer.join()
    assert killed == 2
    assert found.candidate == undisturbed.candidate
    assert set(told(events).values()) == {1}
    outcomes = {e.trial.candidate: e.trial.outcome for e in events if isinstance(e, TrialEnded)}
    recorded = ReplayExecutor()
    for candidate, outcome in outcomes.items():
        assert outcome is recorded.evaluate(PROBLEM, candidate, None).result().outcome
