"""The executor of this machine: a farm of compilers and one process per GPU."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from kernels.attention.problem import Problem
from tuner.evaluate import compile_farm, wire
from tuner.evaluate.compile_farm import CompileFarm, available_cpus
from tuner.evaluate.executor import Compilation, Evaluation, Executor, Race
from tuner.evaluate.process import HandlerError, Timeout, Worker, WorkerError
from tuner.target import Target
from tuner.trial import Candidate, Origin, Outcome

# Seconds without a sign of life from a GPU worker, which tells each step of an evaluation or race.
# The longest step makes the inputs and references of a problem, some seconds.
SILENCE_S = 20.0

FACTORY = "tuner.evaluate.gpu_worker:handlers"


class LocalExecutor(Executor):
    """Measures on the GPUs of this machine."""

    origin: Origin = "cuda"

    def __init__(
        self,
        devices: Sequence[int] = (0,),
        jobs: int | None = None,
        compile_deadline_s: float = compile_farm.DEADLINE_S,
        evaluate_deadline_s: float = SILENCE_S,
        spill_limit: int | None = compile_farm.SPILL_LIMIT,
        cold_l2: bool = False,
        gpu_factory: str = FACTORY,
        gpu_options: Mapping[str, Any] | None = None,
        compile_factory: str = compile_farm.FACTORY,
    ) -> None:
        """
        Args:
            devices: CUDA device numbers as this process counts them; all of one kind.
            jobs: compile processes; by default one per CPU core, less one core per GPU.
            compile_deadline_s: seconds before a compilation counts as hung.
            evaluate_deadline_s: seconds before a step of an evaluation or race counts as hung.
            spill_limit: see `CompileFarm`.
            cold_l2: empty the L2 cache before every timed launch.
            gpu_factory, gpu_options, compile_factory: what the processes run, see `Worker`.

        Raises:
            RuntimeError: a GPU cannot be used; says why.
            ValueError: the GPUs differ, so that a figure of one says nothing of another.
        """
        if not devices:
            raise ValueError("devices is empty, but at least one GPU is needed")
        if gpu_options is None and gpu_factory == FACTORY:
            gpu_options = {"cold_l2": cold_l2}
        self.cold = cold_l2
        self._deadline_s = evaluate_deadline_s
        self._workers = [
            Worker(gpu_factory, gpu_options, {"CUDA_VISIBLE_DEVICES": _visible(device)})
            for device in devices
        ]
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(len(devices), thread_name_prefix="gpu")
        jobs = jobs or max(1, available_cpus() - len(devices))
        self._farm = CompileFarm(jobs, compile_deadline_s, spill_limit, factory=compile_factory)
        self.compile_slots = self._farm.slots
        self.evaluate_slots = len(devices)
        try:
            self.target = self._greet()
        except BaseException:
            self.close()
            raise

    def announce(self) -> str:
        target = self.target
        count = f"{len(self._workers)}× " if len(self._workers) > 1 else ""
        return (
            f"Measuring on {count}{target.gpu_name} ({target.hardware}), "
            f"Triton {target.triton}, torch {target.torch}, driver {target.driver}"
            f"{', single launches with a cold L2' if self.cold else ''}."
        )

    def refuse(self, problem: Problem) -> str | None:
        # q, k, v, out, what they are drawn from in fp32, and one head's fp32 scores thrice.
        elements = problem.batch * problem.heads * problem.seqlen * problem.headdim
        need = 12 * elements + 3 * 4 * problem.seqlen**2
        have = self.target.hardware.memory_gib * 2**30
        if need > 0.9 * have:
            return (
                f"{problem} needs {need / 2**30:.0f} GiB to check and time, "
                f"but the GPU has {self.target.hardware.memory_gib} GiB"
            )
        return None

    def compile(self, problem: Problem, candidate: Candidate) -> Future[Compilation]:
        return self._farm.submit(candidate, problem.specialization, self.target.hardware.capability)

    def evaluate(
        self, problem: Problem, candidate: Candidate, best_ms: float | None
    ) -> Future[Evaluation]:
        return self._threads.submit(self._evaluate, problem, candidate, best_ms)

    def race(self, problem: Problem, entrants: Sequence[Candidate], rounds: int) -> Future[Race]:
        return self._threads.submit(self._race, problem, list(entrants), rounds)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._farm.close()
        for worker in self._workers:
            worker.close()
        self._threads.shutdown(wait=True)

    def _greet(self) -> Target:
        greetings = [self._threads.submit(self._hello, worker) for worker in self._workers]
        targets = [greeting.result() for greeting in greetings]
        for index, target in enumerate(targets):
            if target.hardware != targets[0].hardware:
                raise ValueError(
                    f"GPU {index} of those asked for is {target.hardware}, but the first is "
                    f"{targets[0].hardware}; tune them one kind at a time"
                )
        return targets[0]

    def _hello(self, worker: Worker) -> Target:
        try:
            return wire.target_from_json(worker.request("hello", {}, self._deadline_s))
        except (WorkerError, HandlerError) as error:
            raise RuntimeError(f"the GPU cannot be used: {error}") from None

    def _request(self, name: str, arguments: Mapping[str, Any]) -> Any:
        # As many threads as workers, so there is always an idle one.
        worker = self._idle.get()
        try:
            return worker.request(name, arguments, self._deadline_s)
        finally:
            self._idle.put(worker)

    def _evaluate(
        self, problem: Problem, candidate: Candidate, best_ms: float | None
    ) -> Evaluation:
        began = time.perf_counter()
        arguments = {
            "problem": wire.problem_to_json(problem),
            "candidate": wire.candidate_to_json(candidate),
            "best_ms": best_ms,
        }
        try:
            reply = self._request("evaluate", arguments)
        except (WorkerError, HandlerError) as error:
            seconds = time.perf_counter() - began
            step = getattr(error, "note", None)
            reason = f"{error}, during {step}" if step else str(error)
            return Evaluation(candidate, _outcome(error), reason, None, seconds, seconds)
        return Evaluation(
            candidate,
            Outcome(reply["outcome"]),
            reply["reason"],
            wire.measurement_from_json(reply["measurement"]),
            reply["seconds"],
            reply["checking"],
        )

    def _race(self, problem: Problem, entrants: list[Candidate], rounds: int) -> Race:
        """Race, and again without whoever killed the worker, until a race comes through."""
        began = time.perf_counter()
        left = list(dict.fromkeys(entrants))
        dropped: dict[Candidate, str] = {}
        absent: dict[str, str] = {}
        while True:
            arguments = {
                "problem": wire.problem_to_json(problem),
                "entrants": [wire.candidate_to_json(candidate) for candidate in left],
                "rounds": rounds,
                "without": list(absent),
            }
            try:
                reply = self._request("race", arguments)
                break
            except (WorkerError, HandlerError) as error:
                reason = f"{_outcome(error).value}: {error}"
                culprit = getattr(error, "note", None)
                if culprit is not None and culprit.isdigit():
                    dropped[left.pop(int(culprit))] = reason
                elif culprit is not None and culprit not in absent and culprit != "making inputs":
                    absent[culprit] = reason
                else:  # not one of them: the device itself fails
                    dropped.update(dict.fromkeys(left, reason))
                    return Race({}, {}, dropped, time.perf_counter() - began, absent)
        measurements = map(wire.measurement_from_json, reply["entrants"])
        return Race(
            entrants={c: m for c, m in zip(left, measurements) if m is not None},
            peers={name: tuple(samples) for name, samples in reply["peers"].items()},
            dropped={**dropped, **{c: r for c, r in zip(left, reply["dropped"]) if r}},
            seconds=time.perf_counter() - began,
            absent={**absent, **reply["absent"]},
            throttles=tuple(reply["throttles"]),
        )


def _outcome(error: Exception) -> Outcome:
    return Outcome.TIMEOUT if isinstance(error, Timeout) else Outcome.CRASHED


def _visible(device: int) -> str:
    """What CUDA_VISIBLE_DEVICES must be for a child to see only what we call `device`."""
    ours = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in ours.split(",") if name.strip()] if ours else []
    if not names:
        return str(device)
    if device >= len(names):
        raise ValueError(f"GPU {device} is asked for, but CUDA_VISIBLE_DEVICES is {ours}")
    return names[device]
