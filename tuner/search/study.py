"""Trials as an Optuna study of their own, for Optuna's plots, importances and dashboard.

It is made anew from our trials each time and nothing reads it back: they are the only truth.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tuner.trial import Trial

if TYPE_CHECKING:
    import optuna


def together(trials: Iterable[Trial]) -> list[Trial]:
    """Those trials of one problem that can be compared: of one target and origin, and of one
    version of each template. The most there are of a kind, oldest first; of equals, those measured
    last."""
    kinds: dict[tuple[str, ...], dict[str, list[Trial]]] = defaultdict(lambda: defaultdict(list))
    for trial in sorted(trials, key=lambda trial: trial.measured_at):
        hardware, triton = trial.target.hardware.key, trial.target.triton
        versions = kinds[hardware, triton, trial.origin, trial.candidate.template]
        versions[trial.template_version].append(trial)
    groups: dict[tuple[str, ...], list[Trial]] = defaultdict(list)
    for (*kind, _), versions in kinds.items():
        groups[tuple(kind)] += _largest(versions.values())
    return _largest(sorted(group, key=lambda trial: trial.measured_at) for group in groups.values())


def _largest(groups: Iterable[list[Trial]]) -> list[Trial]:
    return max(groups, key=lambda group: (len(group), group[-1].measured_at), default=[])


def study_of(
    trials: Sequence[Trial], name: str, storage: optuna.storages.BaseStorage | None = None
) -> optuna.Study:
    """A study whose value is TFLOP/s. What failed is a FAIL, with its outcome and reason.

    Raises:
        ValueError: there are no trials.
        optuna.exceptions.DuplicatedStudyError: `storage` has a study of this name.
    """
    import optuna

    if not trials:
        raise ValueError("there are no trials to make a study of")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", study_name=name, storage=storage)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(["TFLOP/s"])
    templates = {trial.candidate.template for trial in trials}
    points = _comparable([_parameters(trial, len(templates) > 1) for trial in trials])
    choices: dict[str, dict[Any, None]] = defaultdict(dict)
    for point in points:
        for parameter, value in point.items():
            choices[parameter][value] = None
    distributions = {
        parameter: optuna.distributions.CategoricalDistribution(sorted(values))
        for parameter, values in choices.items()
    }
    for trial, point in zip(trials, points):
        right = trial.outcome.timed and trial.measurement is not None
        state = optuna.trial.TrialState.COMPLETE if right else optuna.trial.TrialState.FAIL
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=trial.steady_tflops if right else None,
                params=point,
                distributions={parameter: distributions[parameter] for parameter in point},
                user_attrs={"outcome": trial.outcome.value, "reason": trial.reason},
            )
        )
    return study


def _parameters(trial: Trial, prefixed: bool) -> dict[str, Any]:
    candidate = trial.candidate
    if not prefixed:
        return dict(candidate.config)
    mine = {f"{candidate.template}.{name}": value for name, value in candidate.config.items()}
    return {"template": candidate.template, **mine}


def _comparable(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`points`, but with texts for the values of a parameter that are of several types: those have
    no order, and Optuna takes True for 1."""
    types: dict[str, set[type]] = defaultdict(set)
    for point in points:
        for parameter, value in point.items():
            types[parameter].add(type(value))
    return [
        {name: repr(value) if len(types[name]) > 1 else value for name, value in point.items()}
        for point in points
    ]


def importances(study: optuna.Study) -> dict[str, float]:
    """How much each parameter decides whether a config is among the fastest tenth, largest first,
    1 in all: PED-ANOVA (Watanabe et al., 2023), which needs no scikit-learn. Empty where fewer than
    two configs succeeded."""
    import optuna

    done = [t for t in study.get_trials(deepcopy=False) if t.value is not None]
    if len(done) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
        )
