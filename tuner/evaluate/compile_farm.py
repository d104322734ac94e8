"""Compile many candidates at once, each in a process that may crash or hang alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from kernels.attention.problem import Specialization
from tuner.evaluate.compiler import DEADLINE_S, FACTORY, SPILL_LIMIT, Compiler
from tuner.evaluate.executor import Compilation
from tuner.trial import Candidate

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
            deadline_s, spill_limit, factory, options: see `Compiler`.
        """
        cores = available_cpus()
        self.slots = max(1, min(jobs or cores, cores))
        self._make = partial(Compiler, deadline_s, spill_limit, factory, options)
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="compile")
        self._own = threading.local()
        self._compilers: list[Compiler] = []
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

    def warm_up(self) -> None:
        """Start the processes, which takes seconds, before there is anything to compile."""
        for _ in range(self.slots):
            self._threads.submit(lambda: self._compiler().start())

    def close(self) -> None:
        """Kill the processes and cancel what waits. Safe to call twice."""
        with self._lock:
            self._closed = True
            compilers = list(self._compilers)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for compiler in compilers:
            compiler.close()
        self._threads.shutdown(wait=True)

    def _compile(
        self, candidate: Candidate, specialization: Specialization, capability: int
    ) -> Compilation:
        return self._compiler().compile(candidate, specialization, capability)

    def _compiler(self) -> Compiler:
        compiler: Compiler | None = getattr(self._own, "compiler", None)
        if compiler is None:
            compiler = self._own.compiler = self._make()
            with self._lock:
                self._compilers.append(compiler)
                if self._closed:
                    compiler.close()
        return compiler
