"""Compile many candidates at once, each in a process that may crash or hang alone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from kernels.attention.problem import Specialization
from tuner.evaluate import wire
from tuner.evaluate.executor import Compilation
from tuner.evaluate.process import HandlerError, Timeout, Worker, WorkerError
from tuner.trial import Candidate, Outcome

# Seconds for one compilation. Ten times what a slow one takes on a busy machine; ptxas, which has
# no limit of its own, can take for ever.
DEADLINE_S = 60.0

# Bytes of spilled registers per thread that are still worth timing: at headdim 256 the fastest
# configs spill 48 to 104 outside their loops, and are up to 29 % ahead of those that spill none.
SPILL_LIMIT = 256

FACTORY = "tuner.evaluate.compile_worker:handlers"

_Key = tuple[Candidate, Specialization, int]


def available_cpus() -> int:
    """The CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class CompileFarm:
    """Compilations as futures. Equal ones share a future: a binary serves every seqlen, batch and
    number of heads, so a search over several problems compiles each config once."""

    def __init__(
        self,
        jobs: int | None = None,
        deadline_s: float = DEADLINE_S,
        spill_limit: int | None = SPILL_LIMIT,
        factory: str = FACTORY,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            jobs: processes; by default one per CPU core this process may use.
            deadline_s: seconds for one compilation.
            spill_limit: bytes per thread; what spills more ends as `spills`. None: never.
            factory: where the processes get their handlers from, see `Worker`.
            options: keyword arguments of the factory.
        """
        cores = available_cpus()
        self.slots = max(1, min(jobs or cores, cores))
        self._deadline_s = deadline_s
        self._spill_limit = spill_limit
        self._factory = factory
        self._options = options
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="compile")
        self._own = threading.local()
        self._workers: list[Worker] = []
        self._lock = threading.Lock()
        self._known: dict[_Key, Future[Compilation]] = {}
        self._closed = False

    def submit(
        self, candidate: Candidate, specialization: Specialization, capability: int
    ) -> Future[Compilation]:
        """The future of a compilation, started now unless an equal one was before."""
        key = candidate, specialization, capability
        with self._lock:
            future = self._known.get(key)
            if future is None or future.cancelled():
                future = self._threads.submit(self._compile, *key)
                self._known[key] = future
            return future

    def close(self) -> None:
        """Kill the processes and cancel what waits. Safe to call twice."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.close()
        self._threads.shutdown(wait=True)

    def _compile(
        self, candidate: Candidate, specialization: Specialization, capability: int
    ) -> Compilation:
        start = time.perf_counter()
        try:
            reply = self._worker().request(
                "compile",
                {
                    "candidate": wire.candidate_to_json(candidate),
                    "specialization": wire.specialization_to_json(specialization),
                    "capability": capability,
                },
                self._deadline_s,
            )
        except (WorkerError, HandlerError) as error:
            outcome = Outcome.TIMEOUT if isinstance(error, Timeout) else Outcome.CRASHED
            seconds = time.perf_counter() - start
            return Compilation(candidate, outcome, f"the compiler: {error}", None, seconds)
        resources = wire.resources_from_json(reply["resources"])
        outcome, reason = Outcome(reply["outcome"]), reply["reason"]
        limit = self._spill_limit
        if resources is not None and limit is not None and resources.spills > limit:
            outcome = Outcome.SPILLS
            reason = f"spills {resources.spills} bytes per thread, more than {limit}"
        return Compilation(candidate, outcome, reason, resources, reply["seconds"])

    def _worker(self) -> Worker:
        worker: Worker | None = getattr(self._own, "worker", None)
        if worker is None:
            worker = self._own.worker = Worker(self._factory, self._options)
            with self._lock:
                self._workers.append(worker)
                if self._closed:
                    worker.close()
        return worker
