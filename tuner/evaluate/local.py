"""The executor of this machine: a farm of compilers and one process per GPU."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from kernels.attention.problem import Problem
from tuner import cuda_driver
from tuner.evaluate import compiler
from tuner.evaluate.compile_farm import CompileFarm, available_cpus
from tuner.evaluate.evaluator import FACTORY, SILENCE_S, Evaluator
from tuner.evaluate.executor import Compilation, Evaluation, Executor, Opening, Race
from tuner.evaluate.memory import refuse_for_memory
from tuner.evaluate.timing import DECIDE_S
from tuner.target import Target
from tuner.trial import Candidate, Origin


class LocalExecutor(Executor):
    """Measures on the GPUs of this machine."""

    origin: Origin = "cuda"

    def __init__(
        self,
        devices: Sequence[int] = (0,),
        jobs: int | None = None,
        compile_deadline_s: float = compiler.DEADLINE_S,
        evaluate_deadline_s: float = SILENCE_S,
        cold_l2: bool = False,
        first: Opening | None = None,
        gpu_factory: str = FACTORY,
        gpu_options: Mapping[str, Any] | None = None,
        compile_factory: str = compiler.FACTORY,
        compile_options: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            devices: CUDA device numbers as this process counts them; all of one kind.
            jobs: compile processes; by default one per CPU core, less one core per GPU.
            compile_deadline_s: seconds before a compilation counts as hung.
            evaluate_deadline_s: seconds before a step of an evaluation or race counts as hung.
            cold_l2: empty the L2 cache before every timed launch.
            first: told the target, says what to compile while the GPU's process gets ready, which
                takes as long as a compilation.
            gpu_factory, gpu_options, compile_factory, compile_options: what the processes run, see
                `Worker`.

        Raises:
            RuntimeError: a GPU cannot be used; says why.
            ValueError: the GPUs differ, so that a figure of one says nothing of another.
        """
        if not devices:
            raise ValueError("devices is empty, but at least one GPU is needed")
        if gpu_options is None and gpu_factory == FACTORY:
            gpu_options = {"cold_l2": cold_l2}
        self.cold = cold_l2
        self.counts_cycles = gpu_factory == FACTORY and not cold_l2
        self._devices = tuple(devices)
        self._evaluators = [
            Evaluator(
                gpu_factory,
                gpu_options,
                {"CUDA_VISIBLE_DEVICES": _visible(device)},
                evaluate_deadline_s,
            )
            for device in devices
        ]
        self._idle: queue.SimpleQueue[Evaluator] = queue.SimpleQueue()
        for evaluator in self._evaluators:
            self._idle.put(evaluator)
        self._threads = ThreadPoolExecutor(len(devices), thread_name_prefix="gpu")
        jobs = jobs or max(1, available_cpus() - len(devices))
        self._farm = CompileFarm(
            jobs, compile_deadline_s, factory=compile_factory, options=compile_options
        )
        self.compile_slots = self._farm.slots
        self.evaluate_slots = len(devices)
        self._farm.warm_up()
        greetings = [self._threads.submit(each.hello) for each in self._evaluators]
        try:
            if first is not None and (seen := _seen_before(greetings)) is not None:
                for candidate, specialization in first(seen):
                    self._farm.submit(candidate, specialization, seen.hardware.capability)
            self.target = self._one_kind(greetings)
        except BaseException:
            self.close()
            raise

    def announce(self) -> str:
        target = self.target
        count = f"{len(self._evaluators)}× " if len(self._evaluators) > 1 else ""
        return (
            f"Measuring on {count}{target.gpu_name} ({target.hardware}), "
            f"Triton {target.triton}, torch {target.torch}, driver {target.driver}"
            f"{', single launches with a cold L2' if self.cold else ''}."
        )

    def refuse(self, problem: Problem) -> str | None:
        return refuse_for_memory(problem, self.target.hardware.memory_gib)

    def compile(self, problem: Problem, candidate: Candidate) -> Future[Compilation]:
        return self._farm.submit(candidate, problem.specialization, self.target.hardware.capability)

    def evaluate(
        self, problem: Problem, candidate: Candidate, best_ms: float | None
    ) -> Future[Evaluation]:
        return self._threads.submit(self._evaluate, problem, candidate, best_ms)

    def race(
        self,
        problem: Problem,
        entrants: Sequence[Candidate],
        rounds: int,
        decide_s: float = DECIDE_S,
        hopefuls: Sequence[Candidate] = (),
    ) -> Future[Race]:
        return self._threads.submit(
            self._race, problem, list(entrants), rounds, decide_s, list(hopefuls)
        )

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._farm.close()
        for evaluator in self._evaluators:
            evaluator.close()
        self._threads.shutdown(wait=True)

    def _one_kind(self, greetings: Sequence[Future[Target]]) -> Target:
        targets = [greeting.result() for greeting in greetings]
        for device, target in zip(self._devices, targets):
            if target.hardware != targets[0].hardware:
                raise ValueError(
                    f"GPU {device} is {target.hardware}, but GPU {self._devices[0]} is "
                    f"{targets[0].hardware}; tune them one kind at a time"
                )
        return targets[0]

    @contextmanager
    def _borrowed(self) -> Iterator[Evaluator]:
        # As many threads as evaluators, so there is always an idle one.
        evaluator = self._idle.get()
        try:
            yield evaluator
        finally:
            self._idle.put(evaluator)

    def _evaluate(
        self, problem: Problem, candidate: Candidate, best_ms: float | None
    ) -> Evaluation:
        with self._borrowed() as evaluator:
            return evaluator.evaluate(problem, candidate, best_ms)

    def _race(
        self,
        problem: Problem,
        entrants: list[Candidate],
        rounds: int,
        decide_s: float,
        hopefuls: list[Candidate],
    ) -> Race:
        with self._borrowed() as evaluator:
            return evaluator.race(problem, entrants, rounds, decide_s, hopefuls)


def _seen_before(greetings: Iterable[Future[Target]]) -> Target | None:
    """What the driver says that the GPU is, mostly long before the process that loads torch says
    the same; None if it does not, or if it hangs."""
    found: Future[Target | None] = Future()

    def ask() -> None:
        try:
            found.set_result(cuda_driver.target())
        except Exception:
            found.set_result(None)

    threading.Thread(target=ask, name="driver", daemon=True).start()
    futures: list[Future[Any]] = [found, *greetings]
    wait(futures, return_when=FIRST_COMPLETED)
    return found.result() if found.done() else None


def _visible(device: int) -> str:
    """What CUDA_VISIBLE_DEVICES must be for a child to see only what we call `device`."""
    ours = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in ours.split(",") if name.strip()] if ours else []
    if not names:
        return str(device)
    if device >= len(names):
        raise ValueError(f"GPU {device} is asked for, but CUDA_VISIBLE_DEVICES is {ours}")
    return names[device]
