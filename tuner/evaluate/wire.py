"""How what travels between driver and worker is spelled in JSON. No pickle: a file or a pipe can
only ever yield the types named here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kernels.attention.config import Config
from kernels.attention.problem import Problem, Specialization
from kernels.attention.template import Resources
from tuner.evaluate.executor import Compilation, Evaluation
from tuner.target import Hardware, Target
from tuner.trial import Candidate, Measurement, Outcome

Json = dict[str, Any]


def problem_to_json(problem: Problem) -> Json:
    return asdict(problem)


def problem_from_json(data: Mapping[str, Any]) -> Problem:
    return Problem(**data)


def specialization_to_json(specialization: Specialization) -> Json:
    return asdict(specialization)


def specialization_from_json(data: Mapping[str, Any]) -> Specialization:
    return Specialization(**data)


def candidate_to_json(candidate: Candidate) -> Json:
    return {"template": candidate.template, "config": dict(candidate.config)}


def candidate_from_json(data: Mapping[str, Any]) -> Candidate:
    return Candidate(str(data["template"]), Config(data["config"]))


def target_to_json(target: Target) -> Json:
    return asdict(target)


def target_from_json(data: Mapping[str, Any]) -> Target:
    return Target(**{**data, "hardware": Hardware(**data["hardware"])})


def resources_to_json(resources: Resources | None) -> Json | None:
    return None if resources is None else asdict(resources)


def resources_from_json(data: Mapping[str, Any] | None) -> Resources | None:
    return None if data is None else Resources(**data)


def compilation_to_json(compilation: Compilation) -> Json:
    """Without the candidate, which whoever asks knows."""
    return {
        "outcome": compilation.outcome.value,
        "reason": compilation.reason,
        "resources": resources_to_json(compilation.resources),
        "seconds": compilation.seconds,
    }


def compilation_from_json(data: Mapping[str, Any], candidate: Candidate) -> Compilation:
    return Compilation(
        candidate,
        Outcome(data["outcome"]),
        data["reason"],
        resources_from_json(data["resources"]),
        data["seconds"],
    )


def measurement_to_json(measurement: Measurement | None) -> Json | None:
    return None if measurement is None else asdict(measurement)


def measurement_from_json(data: Mapping[str, Any] | None) -> Measurement | None:
    if data is None:
        return None
    return Measurement(**{**data, "samples_ms": tuple(data["samples_ms"])})


def evaluation_to_json(evaluation: Evaluation) -> Json:
    """Without the candidate, which whoever asks knows."""
    return {
        "outcome": evaluation.outcome.value,
        "reason": evaluation.reason,
        "measurement": measurement_to_json(evaluation.measurement),
        "seconds": evaluation.seconds,
        "checking": evaluation.checking,
    }


def evaluation_from_json(data: Mapping[str, Any], candidate: Candidate) -> Evaluation:
    return Evaluation(
        candidate,
        Outcome(data["outcome"]),
        data["reason"],
        measurement_from_json(data["measurement"]),
        data["seconds"],
        data["checking"],
    )
