"""A sampler for spaces that can be enumerated: every point not tried yet is scored by a Gaussian
process, and the one with the largest expected improvement is tried next, never the same twice,
unless it is enqueued twice.

A batch is asked for by calling `ask` again: points under way count as if they had come out as
predicted (the kriging believer of Ginsbourger, Le Riche and Carraro, "Kriging is well-suited to
parallelize optimization", 2010), so that the next one looks elsewhere.

Some points fail, and some are slower than the best by factors. Neither may flatten the differences
among the good ones: values above the median of what succeeded count as that median, failures too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import TrialState

from tuner.search.gaussian_process import GaussianProcess, expected_improvement
from tuner.search.samplers import FAILED

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

Array = NDArray[np.float64]

_STARTUP = 4  # points drawn at random before there is a model
_LEAST_RANGE = 0.3  # above the best, what slow values keep of their differences at least
_NOISE_SHARE = 0.1  # of the spread of values, what is left of them beside a perfect prior
# Refit at every new value up to so many values, then at every so many per cent more.
_REFIT_ALWAYS, _REFIT_GROWTH = 30, 0.05

_Key = frozenset[tuple[str, str, Any]]


class SurrogateSampler(BaseSampler):
    """Proposes from `points` alone. Without points, or for parameters they do not have, it draws
    independently at random.

    Values should be logarithms where the objective is a time: what counts is then the factor.

    Args:
        points: the parameters of each feasible point, as an objective would be given them.
        distributions: those that the objective suggests from, by parameter.
        features: one row per point, each column on [0, 1].
        prior: per point, what the value is thought to be, but for a constant: such as the posterior
            of a similar study.
        seed: of all that is random here.
        startup: how many values there must be before the model is asked; fewer if there is a prior.

    Raises:
        ValueError: `features` or `prior` do not have a row per point, or are not finite.
    """

    def __init__(
        self,
        points: Sequence[Mapping[str, Any]] = (),
        distributions: Mapping[str, BaseDistribution] | None = None,
        features: ArrayLike | None = None,
        *,
        prior: ArrayLike | None = None,
        seed: int | None = None,
        startup: int = _STARTUP,
    ) -> None:
        self._points = [dict(point) for point in points]
        self._distributions = dict(distributions or {})
        self._index = {_key(point): index for index, point in enumerate(self._points)}
        count = len(self._points)
        self._features = _table("features", np.zeros((count, 0)) if features is None else features)
        self._has_prior = prior is not None
        self._prior = _table("prior", np.zeros(count) if prior is None else prior)
        for name, table in (("features", self._features), ("prior", self._prior)):
            if len(table) != count:
                raise ValueError(f"{name} has {len(table)} rows, but must have one per point")
        self._startup = 1 if self._has_prior else max(1, startup)
        self._random = np.random.default_rng(seed)
        self._independent = RandomSampler(seed=seed)
        self._process = GaussianProcess(self._features.shape[1])
        self._favoured: set[int] = set()  # points, by index
        self._favour = 1.0
        self._fitted = 0  # values that the hyperparameters were fitted to
        self._proposed: dict[tuple[str, int], int] = {}  # points of trials that still lack some
        self._asking = threading.RLock()  # `optimize` asks from several threads

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_asking"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _asking=threading.RLock())

    def reseed_rng(self) -> None:
        self._random = np.random.default_rng()
        self._independent.reseed_rng()

    def infer_relative_search_space(
        self,
        study: Study,
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        self._raise_error_if_multi_objective(study)
        return dict(self._distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not self._points or not search_space:
            return {}
        fixed = {**trial.params, **trial.system_attrs.get("fixed_params", {})}
        own = (study.study_name, trial.number)
        known = self._index.get(_key(fixed))
        if known is not None:  # all of it was enqueued
            self._proposed[own] = known
            return {}
        with self._asking:
            index = self._next(study, trial.number, fixed)
            if index is None:
                return {}
            self._proposed[own] = index
        return {name: v for name, v in self._points[index].items() if name in search_space}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        self._raise_error_if_multi_objective(study)
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,  # noqa: ARG002
        values: Sequence[float] | None,  # noqa: ARG002
    ) -> None:
        self._proposed.pop((study.study_name, trial.number), None)
        if not self._points or trial.number + 1 < len(self._points):
            return
        seen, _, _ = self._observed(study, but=-1)
        if len(seen) == len(self._points):
            with suppress(RuntimeError):  # outside `optimize` there is nothing to stop
                study.stop()

    def favour(self, points: Iterable[int], by: float) -> None:
        """Prefer `points`, by index, which cost nearly nothing to try, to others of up to `by`
        times their merit."""
        self._favoured, self._favour = set(points), by

    def outlook(self, study: Study, count: int) -> list[int]:
        """The points, by index, that the model thinks most of as things stand, best first; none
        where there is no model yet. Proposes nothing."""
        unseen, merit, _ = self._ranked(study, but=-1, fixed={})
        if merit is None:
            return []
        return [unseen[place] for place in np.argsort(-merit, kind="stable")[:count]]

    def _next(self, study: Study, number: int, fixed: Mapping[str, Any]) -> int | None:
        """The point to try next; None if every one that agrees with `fixed` was tried."""
        unseen, merit, modelled = self._ranked(study, but=number, fixed=fixed)
        if not unseen:
            return None
        if merit is None:
            return int(self._random.choice(unseen))
        if modelled:
            favoured = np.array([index in self._favoured for index in unseen])
            merit = np.where(favoured & (merit > 0), self._favour * merit, merit)
        return unseen[int(np.argmax(merit))]

    def _ranked(
        self, study: Study, but: int, fixed: Mapping[str, Any]
    ) -> tuple[list[int], Array | None, bool]:
        """The points that agree with `fixed` and were not tried, what each promises, and whether
        the model says so: until it can, the prior does, and without one nobody."""
        seen, done, pending = self._observed(study, but)
        seen |= self._enqueued(study)
        unseen = [
            index
            for index in range(len(self._points))
            if index not in seen and _agrees(self._points[index], fixed)
        ]
        if not unseen:
            return unseen, None, False
        prior = _sign(study) * self._prior
        if any(map(math.isfinite, done.values())) and len(done) + len(pending) >= self._startup:
            return unseen, self._merit(done, pending, unseen, prior), True
        return unseen, -prior[unseen] if self._has_prior else None, False

    def _merit(
        self, done: Mapping[int, float], pending: Sequence[int], unseen: list[int], prior: Array
    ) -> Array:
        """Expected improvement at each of `unseen`."""
        tried = list(done)
        level = levelled(np.array(list(done.values())))
        values = level - prior[tried]
        # Where the prior is right, what is left is noise, and not to be blown up.
        spread = max(float(values.std()), _NOISE_SHARE * float(level.std())) or 1.0
        centre = float(values.mean())
        values = (values - centre) / spread
        process, features = self._process, self._features
        if len(tried) >= max(self._fitted + 1, (1 + _REFIT_GROWTH) * self._fitted) or (
            len(tried) <= _REFIT_ALWAYS and len(tried) != self._fitted
        ):
            process.fit(features[tried], values)
            self._fitted = len(tried)
        process.condition(features[tried], values)
        if pending:
            believed, _ = process.predict(features[pending])
            process.condition(features[[*tried, *pending]], np.concatenate([values, believed]))
        mean, deviation = process.predict(features[unseen])
        mean = mean + prior[unseen] / spread
        best = float((values + prior[tried] / spread).min())
        merit = expected_improvement(mean, deviation, best)
        # Among equals, such as after an underflow to 0 everywhere, the best mean and then chance.
        order: Array = np.lexsort((self._random.random(len(unseen)), mean)).argsort()
        return merit * (1 + 1e-12) - 1e-300 * order

    def _observed(self, study: Study, but: int) -> tuple[set[int], dict[int, float], list[int]]:
        """Points not to propose again; the value of those that ended, inf for what failed; and
        those under way. Trial number `but` is left out."""
        seen: set[int] = set()
        done: dict[int, float] = {}
        pending: list[int] = []
        sign = _sign(study)
        for trial in study.get_trials(deepcopy=False):
            if trial.number == but:
                continue
            index = self._place(study, trial)
            if index is None:
                continue
            seen.add(index)
            if trial.state == TrialState.COMPLETE and FAILED not in trial.user_attrs:
                done[index] = sign * float(trial.values[0])
            elif trial.state.is_finished():
                done.setdefault(index, math.inf)
            elif trial.state == TrialState.RUNNING:
                pending.append(index)
        return seen, done, [index for index in pending if index not in done]

    def _enqueued(self, study: Study) -> set[int]:
        """Points that wait for their turn."""
        waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        fixed = (trial.system_attrs.get("fixed_params", {}) for trial in waiting)
        return {index for given in fixed if (index := self._index.get(_key(given))) is not None}

    def _place(self, study: Study, trial: FrozenTrial) -> int | None:
        """Which point a trial is at; None if at none of ours."""
        index = self._index.get(_key(trial.params))
        if index is None and not trial.state.is_finished():
            return self._proposed.get((study.study_name, trial.number))
        return index


def _sign(study: Study) -> float:
    return -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0


def levelled(values: Array) -> Array:
    """`values` with failures and the slow half at one level, see the module."""
    right = values[np.isfinite(values)]
    best = float(right.min())
    level = max(float(np.median(right)), best + _LEAST_RANGE)
    failed = level + (level - best)
    return np.where(np.isfinite(values), np.minimum(values, level), failed)


def _key(parameters: Mapping[str, Any]) -> _Key:
    # With the type: True == 1, but not in a config.
    return frozenset((name, type(value).__name__, value) for name, value in parameters.items())


def _agrees(point: Mapping[str, Any], fixed: Mapping[str, Any]) -> bool:
    return all(name not in point or point[name] == value for name, value in fixed.items())


def _table(name: str, values: ArrayLike) -> Array:
    table = np.asarray(values, dtype=float)
    if not np.isfinite(table).all():
        raise ValueError(f"{name} holds a value that is not finite")
    return table
