"""A measurement that is none costs its candidate or its peer, and nobody else."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernels.attention.config import Config
from tuner.evaluate.executor import Evaluation, Race
from tuner.record import Record
from tuner.search import finals
from tuner.search.credible import credible_race
from tuner.search.driver import search
from tuner.search.options import Options
from tuner.store.database import Store
from tuner.trial import Candidate, Measurement, Outcome

from .conftest import ToyExecutor, ToyTemplate, done, problem

PROBLEMS = [problem(1024), problem(2048)]
DEFAULT = Candidate("toy", ToyTemplate().default(problem(), 90))


class Mad(ToyExecutor):
    """Changes what it measures of some."""

    def __init__(
        self,
        trial: Callable[[int, Evaluation], Evaluation] = lambda _, evaluated: evaluated,
        race: Callable[[Race], Race] = lambda race: race,
    ) -> None:
        super().__init__()
        self.change_trial, self.change_race = trial, race

    def evaluate(self, *asked: Any) -> Future[Evaluation]:
        return done(self.change_trial(len(self.evaluated), super().evaluate(*asked).result()))

    def race(self, *asked: Any) -> Future[Race]:
        return done(self.change_race(super().race(*asked).result()))


def searched(executor: ToyExecutor, store: Store) -> list[Record]:
    records = search(PROBLEMS, executor, store, [], Options(20, sampler="random"))
    assert None not in records
    return [record for record in records if record is not None]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("median_ms", value) for value in (0.0, math.nan, math.inf, -1.0)),
        *(("cycles", value) for value in (0.0, math.nan)),
        ("max_diff", math.nan),
        ("tflops", math.inf),
        ("samples_ms", (0.1, math.nan)),
    ],
)
def test_a_trial_without_a_figure_crashed(
    toy: ToyTemplate, store: Store, field: str, value: Any
) -> None:
    def fifth(number: int, evaluated: Evaluation) -> Evaluation:
        if number != 5:
            return evaluated
        assert evaluated.measurement is not None
        return replace(evaluated, measurement=replace(evaluated.measurement, **{field: value}))

    searched(executor := Mad(fifth), store)
    for of in PROBLEMS:
        trials = {trial.candidate: trial for trial in store.trials(of)}
        assert len(trials) == 20
        if of == PROBLEMS[0]:
            mad = trials.pop(executor.evaluated[5])
            assert (mad.outcome, mad.measurement) == (Outcome.CRASHED, None)
            assert mad.reason.startswith(f"measurement.{field}")
        assert {trial.outcome for trial in trials.values()} == {Outcome.OK}


@pytest.mark.parametrize(
    "changes",
    [
        *({"median_ms": value} for value in (0.0, math.nan)),
        *({"samples_ms": value} for value in ((), (0.0,) * 16, (math.nan,) * 16)),
    ],
)
def test_a_finalist_without_figures_is_dropped(
    toy: ToyTemplate, store: Store, tmp_path: Path, changes: dict[str, Any]
) -> None:
    def spoiled(race: Race) -> Race:
        mad = next(candidate for candidate in race.entrants if candidate != DEFAULT)
        measured = replace(race.entrants[mad], **changes)
        return replace(race, entrants={**race.entrants, mad: measured})

    with Store.open(tmp_path / "sound.db") as other:
        sound = searched(ToyExecutor(), other)
    for record, whole in zip(searched(Mad(race=spoiled), store), sound):
        assert len(record.rivals) == len(whole.rivals) - 1
        assert record.measurement.median_ms > 0


def test_what_was_timed_has_a_measurement(toy: ToyTemplate, store: Store) -> None:
    def fifth(number: int, evaluated: Evaluation) -> Evaluation:
        return replace(evaluated, measurement=None) if number == 5 else evaluated

    searched(executor := Mad(fifth), store)
    (mad,) = (t for t in store.trials(PROBLEMS[0]) if t.candidate == executor.evaluated[5])
    assert (mad.outcome, mad.reason) == (Outcome.CRASHED, "nothing was measured")


FAST, SLOW, MIDDLING = (Candidate("toy", Config(a=number)) for number in range(3))


def raced(deciding: dict[Candidate, tuple[float, ...]], **ms: float) -> Race:
    """Sixteen rounds beside the peers, and what decides."""
    entrants = {
        candidate: Measurement(1.0, 0.01, (ms.get(name, 1.0),) * 16, 100.0, 1e-4)
        for name, candidate in (("fast", FAST), ("slow", SLOW), ("middling", MIDDLING))
    }
    return Race(entrants, deciding=deciding)


def test_rounds_after_one_that_is_none_decide_nothing() -> None:
    deciding = {
        FAST: (1.0,) * 39 + (math.nan,),
        SLOW: (1.1,) * 16,
        MIDDLING: (1.03,) * 40,
    }
    race = credible_race(raced(deciding))
    assert not race.dropped
    assert {len(race.compared(candidate)) for candidate in race.entrants} == {16}
    assert finals.decide({c: race.compared(c) for c in race.entrants}, None, hash).winner == FAST


def test_who_left_leaves_the_others_with_the_same_rounds() -> None:
    deciding = {FAST: (1.0,) * 40, SLOW: (1.01,) * 16, MIDDLING: (1.03,) * 40}
    race = credible_race(raced(deciding, fast=math.inf))
    assert set(race.dropped) == {FAST}
    assert race.deciding == {SLOW: (1.01,) * 16, MIDDLING: (1.03,) * 16}


def test_where_no_round_that_decides_is_sound_those_beside_the_peers_decide() -> None:
    race = credible_race(raced({FAST: (0.0,) * 8, SLOW: (1.1,) * 8, MIDDLING: (1.2,) * 8}))
    assert race.deciding == {}
    assert race.compared(FAST) == (1.0,) * 16


def test_a_sound_race_stays_as_it_is() -> None:
    race = raced({FAST: (1.0,) * 40, SLOW: (1.01,) * 16, MIDDLING: (1.03,) * 40})
    assert credible_race(race) == race


@pytest.mark.parametrize("rounds", [(0.0,) * 16, (math.nan,) * 16, ()])
def test_a_peer_without_figures_is_left_out(
    toy: ToyTemplate, store: Store, rounds: tuple[float, ...]
) -> None:
    def spoiled(race: Race) -> Race:
        return replace(race, peers={"cudnn": rounds, "fa2": (1.0,) * 16})

    for record in searched(Mad(race=spoiled), store):
        assert [peer.name for peer in record.peers] == ["fa2"]


def test_where_no_finalist_has_figures_there_is_no_record(toy: ToyTemplate, store: Store) -> None:
    def spoiled(race: Race) -> Race:
        mad = {c: replace(m, samples_ms=(math.nan,)) for c, m in race.entrants.items()}
        return replace(race, entrants=mad)

    assert search(PROBLEMS, Mad(race=spoiled), store, [], Options(20)) == [None, None]
    assert len(store.trials(PROBLEMS[1])) == 20
