"""The process that owns a GPU: evaluates and races for a driver that must outlive it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kernels.attention.problem import Problem
from tuner.evaluate import wire
from tuner.evaluate.child import Handler
from tuner.evaluate.executor import Evaluation, Race
from tuner.evaluate.laboratory import Laboratory
from tuner.target import Target
from tuner.trial import Candidate


class Bench(Protocol):
    """What measures: a laboratory, or whatever stands in for one."""

    def evaluate(
        self, problem: Problem, candidate: Candidate, best_ms: float | None
    ) -> Evaluation: ...

    def race(
        self,
        problem: Problem,
        entrants: Sequence[Candidate],
        rounds: int,
        decide_s: float,
        without: Sequence[str] = (),
        hopefuls: Sequence[Candidate] = (),
    ) -> Race: ...


def handlers(cold_l2: bool = False) -> Mapping[str, Handler]:
    """The handlers on CUDA device 0, the only one the driver lets this process see."""
    import torch

    from tuner import device
    from tuner.evaluate.sensor import Sensor
    from tuner.evaluate.stopwatch import CudaStopwatch

    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} finds no usable NVIDIA GPU")
    torch.cuda.set_device(0)
    torch.backends.cuda.matmul.allow_tf32 = False  # the reference is fp32
    target = device.detect(0)
    laboratory = Laboratory(
        device="cuda",
        capability=target.hardware.capability,
        stopwatch=CudaStopwatch(Sensor(device.uuid(0)), cold_l2),
        wait=torch.cuda.synchronize,
    )
    return serve(target, laboratory)


def serve(target: Target, bench: Bench) -> Mapping[str, Handler]:
    """The handlers `hello`, `evaluate` and `race` around a bench."""

    def hello() -> wire.Json:
        return wire.target_to_json(target)

    def evaluate(
        problem: Mapping[str, Any], candidate: Mapping[str, Any], best_ms: float | None
    ) -> wire.Json:
        wanted = wire.candidate_from_json(candidate)
        return wire.evaluation_to_json(
            bench.evaluate(wire.problem_from_json(problem), wanted, best_ms)
        )

    def race(
        problem: Mapping[str, Any],
        entrants: Sequence[Mapping[str, Any]],
        rounds: int,
        decide_s: float,
        without: Sequence[str],
        seeded: int,
    ) -> wire.Json:
        candidates = [wire.candidate_from_json(entrant) for entrant in entrants]
        asked = wire.problem_from_json(problem)
        hopefuls = candidates[seeded:]
        result = bench.race(asked, candidates[:seeded], rounds, decide_s, without, hopefuls)
        return {
            "entrants": [wire.measurement_to_json(result.entrants.get(c)) for c in candidates],
            "dropped": [result.dropped.get(c) for c in candidates],
            "peers": result.peers,
            "absent": result.absent,
            "throttles": result.throttles,
            "deciding": [result.deciding.get(c) for c in candidates],
        }

    return {"hello": hello, "evaluate": evaluate, "race": race}
