"""One compile process: a candidate at a time, under a deadline, every end typed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kernels.attention.problem import Specialization
from tuner.evaluate import wire
from tuner.evaluate.executor import Compilation
from tuner.evaluate.process import HandlerError, Timeout, Worker, WorkerError
from tuner.trial import Candidate, Outcome

# Seconds for Triton's part of a compilation, and for that of ptxas, which has no limit of its own
# and can take for ever. Ten times what a slow one takes on a busy machine.
DEADLINE_S = 60.0

# Bytes of spilled registers per thread that are still worth timing: at headdim 256 the fastest
# configs spill 48 to 104 outside their loops, and are up to 29 % ahead of those that spill none.
SPILL_LIMIT = 256

FACTORY = "tuner.evaluate.compile_worker:handlers"


class Compiler:
    """Compiles in a process of its own, which is started when needed and after each death."""

    def __init__(
        self,
        deadline_s: float = DEADLINE_S,
        spill_limit: int | None = SPILL_LIMIT,
        factory: str = FACTORY,
        options: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            deadline_s: seconds for one compilation until ptxas, and for ptxas.
            spill_limit: bytes per thread; what spills more ends as `spills`. None: never.
            factory, options, environment: what the process runs, see `Worker`.
        """
        self._deadline_s = deadline_s
        self._spill_limit = spill_limit
        self._worker = Worker(factory, options, environment)

    def start(self) -> None:
        """Start the process, unless it runs. Where that fails, the first compilation says so."""
        with suppress(WorkerError):
            self._worker.start()

    def compile(
        self, candidate: Candidate, specialization: Specialization, capability: int
    ) -> Compilation:
        """How compiling `candidate` ends. Blocks; raises for nothing that it does."""
        start = time.perf_counter()
        arguments = {
            "candidate": wire.candidate_to_json(candidate),
            "specialization": wire.specialization_to_json(specialization),
            "capability": capability,
        }
        try:
            reply = self._worker.persist("compile", arguments, self._deadline_s)
        except (WorkerError, HandlerError) as error:
            outcome = Outcome.TIMEOUT if isinstance(error, Timeout) else Outcome.CRASHED
            seconds = time.perf_counter() - start
            who = getattr(error, "note", None) or "the compiler"
            return Compilation(candidate, outcome, f"{who}: {error}", None, seconds)
        compilation = wire.compilation_from_json(reply, candidate)
        resources, limit = compilation.resources, self._spill_limit
        if resources is not None and limit is not None and resources.spills > limit:
            reason = f"spills {resources.spills} bytes per thread, more than {limit}"
            return replace(compilation, outcome=Outcome.SPILLS, reason=reason)
        return compilation

    def close(self) -> None:
        """Kill the process and all it started. Safe to call twice, and from any thread."""
        self._worker.close()
