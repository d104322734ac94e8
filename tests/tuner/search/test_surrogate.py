from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import BasicSamplerTestCase
from optuna.trial import TrialState

from tuner.search.features import parameter_features
from tuner.search.samplers import FAILED
from tuner.search.surrogate import SurrogateSampler

CHOICES: dict[str, tuple[Any, ...]] = {
    "tile": (16, 32, 64, 128, 256),
    "stages": (1, 2, 3, 4),
    "layout": ("row", "column", "both"),
    "flag": (False, True),
}
DISTRIBUTIONS = {name: CategoricalDistribution(values) for name, values in CHOICES.items()}
POINTS = [
    point
    for values in product(*CHOICES.values())
    if (point := dict(zip(CHOICES, values)))["tile"] * point["stages"] <= 512
]
FEATURES = parameter_features(POINTS)


def sampler(seed: int = 0, **more: Any) -> SurrogateSampler:
    return SurrogateSampler(POINTS, DISTRIBUTIONS, FEATURES, seed=seed, **more)


def study(**more: Any) -> optuna.Study:
    return optuna.create_study(sampler=sampler(**more))


def suggest(trial: optuna.Trial) -> dict[str, Any]:
    return {name: trial.suggest_categorical(name, values) for name, values in CHOICES.items()}


def value(point: dict[str, Any]) -> float:
    """Logarithm of a latency whose optimum is tile=128, stages=3, layout=both, flag=True."""
    ms = 1 + 0.2 * abs(math.log2(point["tile"]) - 7)
    ms *= 1 + 0.1 * abs(point["stages"] - 3)
    ms *= {"row": 1.3, "column": 1.2, "both": 1.0}[point["layout"]]
    return math.log(ms * (1.0 if point["flag"] else 1.05))


class TestConformance(BasicSamplerTestCase):
    """Optuna's own suite; the sampler has no points there and draws independently."""

    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return SurrogateSampler


class TestConformanceWithStrangers(BasicSamplerTestCase):
    """The same with points of other parameters than the objectives suggest."""

    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return sampler


def test_every_point_once_then_optimize_stops() -> None:
    tried = study()
    tried.optimize(lambda trial: value(suggest(trial)), n_trials=2 * len(POINTS))
    assert len(tried.trials) == len(POINTS)
    assert sorted(map(str, (t.params for t in tried.trials))) == sorted(map(str, POINTS))


def test_ask_and_tell_to_the_end() -> None:
    tried = study()
    for _ in POINTS:
        trial = tried.ask()
        tried.tell(trial, value(suggest(trial)))
    assert len({str(trial.params) for trial in tried.trials}) == len(POINTS)
    suggest(tried.ask())  # what is left is chance, not an error


@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_is_found_soon(seed: int) -> None:
    tried = study(seed=seed)
    tried.optimize(lambda trial: value(suggest(trial)), n_trials=25)
    assert tried.best_value == pytest.approx(0.0)


def test_a_maximum_is_found_too() -> None:
    tried = optuna.create_study(direction="maximize", sampler=sampler())
    tried.optimize(lambda trial: -value(suggest(trial)), n_trials=25)
    assert tried.best_value == pytest.approx(0.0)


def test_batches_have_no_repeats_and_look_elsewhere() -> None:
    tried = study()
    for _ in range(6):
        asked = [(trial, suggest(trial)) for trial in (tried.ask() for _ in range(4))]
        assert len({str(point) for _, point in asked}) == 4
        for trial, point in asked:
            tried.tell(trial, value(point))
    assert len({str(trial.params) for trial in tried.trials}) == 24
    assert tried.best_value < 0.1


def test_asked_together_before_any_parameter_is_suggested() -> None:
    tried = study()
    asked = [tried.ask() for _ in range(10)]
    assert len({str(suggest(trial)) for trial in asked}) == 10


def test_the_same_seed_proposes_the_same() -> None:
    runs = []
    for _ in range(2):
        tried = study(seed=3)
        tried.optimize(lambda trial: value(suggest(trial)), n_trials=30)
        runs.append([trial.params for trial in tried.trials])
    assert runs[0] == runs[1]


def test_what_waits_for_its_turn_is_not_proposed_to_others() -> None:
    few = [dict(zip(("tile", "stages"), values)) for values in product((16, 32), (1, 2, 3))]
    for seed in range(5):
        of = SurrogateSampler(few, DISTRIBUTIONS, parameter_features(few), seed=seed)
        tried = optuna.create_study(sampler=of)
        for fixed in ({"tile": 32}, {"tile": 32, "stages": 1}, {"tile": 32, "stages": 2}):
            tried.enqueue_trial(fixed)
        points = []
        for _ in few:
            trial = tried.ask()
            points.append({name: trial.suggest_categorical(name, CHOICES[name]) for name in few[0]})
            tried.tell(trial, float(len(points)))
        assert points[0] == {"tile": 32, "stages": 3}
        assert sorted(map(str, points)) == sorted(map(str, few))


def test_threads_are_proposed_different_points() -> None:
    for seed in range(5):
        tried = study(seed=seed)
        tried.optimize(lambda trial: value(suggest(trial)), n_trials=24, n_jobs=4)
        assert len({str(trial.params) for trial in tried.trials}) == 24


def test_a_sampler_can_be_sent_to_another_process() -> None:
    tried, copy = (optuna.create_study(sampler=s) for s in (sampler(), pickled(sampler())))
    for of in (tried, copy):
        of.optimize(lambda trial: value(suggest(trial)), n_trials=8)
    assert [t.params for t in copy.trials] == [t.params for t in tried.trials]


def pickled(of: SurrogateSampler) -> SurrogateSampler:
    again = pickle.loads(pickle.dumps(of))
    assert isinstance(again, SurrogateSampler)
    return again


def test_what_is_enqueued_comes_first_and_is_not_repeated() -> None:
    tried = study()
    tried.enqueue_trial(POINTS[7])
    tried.optimize(lambda trial: value(suggest(trial)), n_trials=20)
    assert tried.trials[0].params == POINTS[7]
    assert len({str(trial.params) for trial in tried.trials}) == 20


def test_a_partly_fixed_point_keeps_to_the_rest_of_a_point() -> None:
    tried = study()
    for _ in range(5):
        tried.enqueue_trial({"tile": 256})
    tried.optimize(lambda trial: value(suggest(trial)), n_trials=5)
    assert all(t.params["tile"] == 256 and t.params["stages"] <= 2 for t in tried.trials)


def test_trials_of_an_earlier_study_count() -> None:
    tried = study()
    for point in POINTS[:-3]:
        tried.add_trial(
            optuna.create_trial(params=point, distributions=DISTRIBUTIONS, value=value(point))
        )
    rest = [suggest(tried.ask()) for _ in range(3)]
    assert sorted(map(str, rest)) == sorted(map(str, POINTS[-3:]))


@pytest.mark.parametrize("how", ["failed", "pruned", "marked"])
def test_failures_are_avoided_and_do_not_hide_the_rest(how: str) -> None:
    """A quarter of the space fails, its optimum beside the failures."""
    tried = study(seed=1)
    failures = 0
    for _ in range(25):
        trial = tried.ask()
        point = suggest(trial)
        if point["stages"] != 4:
            tried.tell(trial, value(point))
            continue
        failures += 1
        if how == "marked":
            trial.set_user_attr(FAILED, True)
            tried.tell(trial, 1e6)
        else:
            tried.tell(trial, state=TrialState.FAIL if how == "failed" else TrialState.PRUNED)
    assert failures < 5
    complete = [t for t in tried.trials if t.state == TrialState.COMPLETE]
    assert min(t.value for t in complete if FAILED not in t.user_attrs) < 0.1
    assert len({str(trial.params) for trial in tried.trials}) == 25


def test_nothing_but_failures() -> None:
    tried = study()
    for _ in POINTS:
        trial = tried.ask()
        suggest(trial)
        tried.tell(trial, state=TrialState.FAIL)
    assert len({str(trial.params) for trial in tried.trials}) == len(POINTS)


def test_a_prior_is_followed_at_once_and_corrected() -> None:
    right = [value(point) for point in POINTS]
    tried = study(prior=right)
    tried.optimize(lambda trial: value(suggest(trial)), n_trials=3)
    assert tried.best_value == pytest.approx(0.0)
    wrong = study(prior=[-v for v in right])
    wrong.optimize(lambda trial: value(suggest(trial)), n_trials=40)
    assert wrong.best_value < 0.1


def test_constant_values() -> None:
    tried = study()
    tried.optimize(lambda trial: 1.0 if suggest(trial) else 0.0, n_trials=30)
    assert len({str(trial.params) for trial in tried.trials}) == 30


def test_several_objectives_are_refused() -> None:
    tried = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler())
    with pytest.raises(ValueError, match="multi-objective"):
        tried.ask(DISTRIBUTIONS)


def test_tables_must_fit_the_points() -> None:
    with pytest.raises(ValueError, match="features has 3 rows"):
        SurrogateSampler(POINTS, DISTRIBUTIONS, np.zeros((3, 2)))
    with pytest.raises(ValueError, match="prior holds a value that is not finite"):
        sampler(prior=[math.nan] * len(POINTS))


def test_a_proposal_takes_less_than_30_ms() -> None:
    random = np.random.default_rng(0)
    points = [
        dict(zip("abcdefgh", map(int, row))) for row in random.permutation(4**8)[:, None] // 4
        ** np.arange(8) % 4
    ][:700]  # fmt: skip
    distributions = {name: CategoricalDistribution((0, 1, 2, 3)) for name in "abcdefgh"}
    tried = optuna.create_study(
        sampler=SurrogateSampler(points, distributions, parameter_features(points), seed=0)
    )
    weights = random.normal(size=8)
    began = time.process_time()
    for _ in range(100):
        trial = tried.ask(distributions)
        tried.tell(trial, float(weights @ list(trial.params.values())))
    # On average over a whole search, which refits included; a third of that on an idle core.
    assert time.process_time() - began < 100 * 0.03


def test_what_is_favoured_is_preferred_up_to_so_many_times_its_merit() -> None:
    def proposed(by: float) -> dict[str, Any]:
        tried = study(prior=[value(point) for point in POINTS])
        tried.optimize(lambda trial: value(suggest(trial)) + 0.1, n_trials=1)
        slow = [index for index, point in enumerate(POINTS) if point["layout"] == "row"]
        assert isinstance(tried.sampler, SurrogateSampler)
        tried.sampler.favour(slow, by)
        return suggest(tried.ask())

    assert proposed(1.0)["layout"] != "row"
    assert proposed(1e9)["layout"] == "row"
    best_of_them = min((p for p in POINTS if p["layout"] == "row"), key=value)
    assert value(proposed(1e9)) == pytest.approx(value(best_of_them), abs=0.05)
