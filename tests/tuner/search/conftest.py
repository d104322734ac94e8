"""A toy template with a known landscape, and an executor that measures it without a GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import Problem, Specialization
from kernels.attention.template import Binary, Resources, Space, Template
from tuner.evaluate.executor import Compilation, Evaluation, Executor, Race
from tuner.evaluate.timing import PLACES
from tuner.record import Record
from tuner.search import candidates
from tuner.store.database import Store
from tuner.target import Hardware, Target
from tuner.trial import Candidate, Measurement, Origin, Outcome

from .virtual_time import VirtualTime

H100 = Target(Hardware(90, 132, 80, 700), "NVIDIA H100 80GB HBM3", "3.6.0", "2.11.0", "580.1")


# Of a space so small that every search tries all of it.
SMALL = {"BLOCK_M": (64, 128), "BLOCK_N": (32, 64), "num_stages": (2, 3), "flag": (False, True)}


class ToyTemplate(Template):
    name = "toy"
    version = "0123456789ab"

    def space(self, specialization: Specialization) -> Space:
        return {
            "BLOCK_M": (16, 32, 64, 128, 256),
            "BLOCK_N": (16, 32, 64, 128),
            "num_stages": (1, 2, 3, 4),
            "flag": (False, True),
        }

    def reject(self, specialization: Specialization, config: Config, capability: int) -> str | None:
        space = self.space(specialization)
        if list(config) != sorted(space) or any(config[n] not in space[n] for n in space):
            return "not in the space"
        if int(config["BLOCK_M"]) * int(config["BLOCK_N"]) > 8192:
            return "the tile is too large"
        return None

    def default(self, problem: Problem, capability: int) -> Config:
        return Config(BLOCK_M=64, BLOCK_N=32, num_stages=2, flag=False)

    def supports(self, specialization: Specialization, capability: int) -> str | None:
        return None if capability >= 80 else "needs sm_80"

    def compile(self, specialization: Specialization, config: Config, capability: int) -> Binary:
        return Binary(None, config, specialization, lambda _: Resources(64, 0, 1024))

    def prepare(self, *arguments: Any) -> None:
        raise AssertionError("a toy is never launched")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ToyTemplate:
    template = ToyTemplate()
    monkeypatch.setattr(registry, "names", lambda: ("toy",))
    real = registry.get
    monkeypatch.setattr(registry, "get", lambda name: template if name == "toy" else real(name))
    candidates.enumerate_candidates.cache_clear()
    yield template
    candidates.enumerate_candidates.cache_clear()


def latency(problem: Problem, config: Config) -> float:
    """A smooth landscape whose optimum is BLOCK_M=128, BLOCK_N=64, num_stages=3, flag=True."""
    ms = problem.seqlen / 4096
    ms *= 1 + abs(int(config["BLOCK_M"]).bit_length() - 8) * 0.2
    ms *= 1 + abs(int(config["BLOCK_N"]).bit_length() - 7) * 0.15
    ms *= 1 + abs(int(config["num_stages"]) - 3) * 0.1
    return ms * (1.0 if config["flag"] else 1.05)


class ToyExecutor(Executor):
    """Counts what it is asked; `faults` maps candidates to the outcome they end in."""

    target = H100
    origin: Origin = "cuda"
    compile_slots = 4
    evaluate_slots = 1

    def __init__(self, noise: float = 0.002, seed: int = 0) -> None:
        self.noise = noise
        self.random = random.Random(seed)
        self.compiled: list[Candidate] = []
        self.evaluated: list[Candidate] = []
        self.raced: list[Candidate] = []
        self.faults: dict[Candidate, Outcome] = {}
        self.stop_after: int | None = None
        self.latency = latency

    def announce(self) -> str:
        return "a toy"

    def refuse(self, problem: Problem) -> str | None:
        return "not this one" if problem.seqlen == 7 else None

    def compile(self, problem: Problem, candidate: Candidate) -> Future[Compilation]:
        self.compiled.append(candidate)
        outcome = self.faults.get(candidate, Outcome.OK)
        if outcome not in (Outcome.COMPILE_ERROR, Outcome.SPILLS, Outcome.REJECTED):
            outcome = Outcome.OK
        reason = "" if outcome is Outcome.OK else "the compiler said no"
        return done(Compilation(candidate, outcome, reason, Resources(64, 0, 1024), 0.5))

    def evaluate(
        self, problem: Problem, candidate: Candidate, best_ms: float | None
    ) -> Future[Evaluation]:
        self.evaluated.append(candidate)
        if self.stop_after is not None and len(self.evaluated) > self.stop_after:
            raise KeyboardInterrupt
        outcome = self.faults.get(candidate, Outcome.OK)
        if outcome is not Outcome.OK:
            return done(Evaluation(candidate, outcome, f"it was {outcome.value}", None, 0.1))
        return done(Evaluation(candidate, Outcome.OK, "", self.measure(problem, candidate, 5), 0.1))

    def race(
        self,
        problem: Problem,
        entrants: Sequence[Candidate],
        rounds: int,
        decide_s: float = 0.0,
        hopefuls: Sequence[Candidate] = (),
    ) -> Future[Race]:
        fastest = sorted(hopefuls, key=lambda c: self.latency(problem, c.config))[:PLACES]
        raced = [*entrants, *fastest]
        self.raced += raced
        return done(
            Race(
                {c: self.measure(problem, c, rounds) for c in raced},
                {"cudnn": tuple(0.9 for _ in range(rounds))},
            )
        )

    def measure(self, problem: Problem, candidate: Candidate, rounds: int) -> Measurement:
        base = self.latency(problem, candidate.config)
        samples = tuple(base * (1 + self.random.gauss(0, self.noise)) for _ in range(rounds))
        middle = sorted(samples)[rounds // 2]
        return Measurement(middle, 0.01, samples, problem.flops / middle / 1e9, 1e-4)

    def close(self) -> None:
        pass


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@pytest.fixture
def executor(toy: ToyTemplate) -> ToyExecutor:
    return ToyExecutor()


def problem(seqlen: int = 4096, headdim: int = 128, causal: bool = True, **more: Any) -> Problem:
    return Problem.on_grid(headdim, seqlen, causal, **more)


def record(
    what: Problem,
    config: Config | None = None,
    target: Target = H100,
    ms: float = 1.0,
    **more: Any,
) -> Record:
    config = config or Config(BLOCK_M=128, BLOCK_N=64, num_stages=3, flag=True)
    more = {"template_version": ToyTemplate.version, "origin": "cuda", **more}
    return Record(
        problem=what,
        target=target,
        candidate=Candidate("toy", config),
        measurement=Measurement(ms, 0.01, (ms, ms, ms), what.flops / ms / 1e9, 1e-4),
        measured_at="2026-11-28T00:00:00+00:00",
        **more,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "configs.db") as opened:
        yield opened


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    """What searches take for the time."""
    time = VirtualTime()
    time.rule(monkeypatch)
    return time
