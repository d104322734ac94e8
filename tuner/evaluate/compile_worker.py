"""What a compile process does: one candidate at a time, every refusal typed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernels.attention import registry
from kernels.attention.template import CompileError, OutOfResources, Template
from tuner.evaluate import screening, wire
from tuner.evaluate.child import Handler
from tuner.evaluate.executor import Compilation
from tuner.evaluate.failure import captured_stderr, describe
from tuner.trial import Outcome

# Beside compilers on all cores, launches of FlashAttention-3 of 0.15 ms were seen to take 0.24, as
# if its host code were not done in time.
_NICENESS = 5
_AUTOGROUP = Path("/proc/self/autogroup")


def handlers() -> Mapping[str, Handler]:
    """The handlers of a compile worker for the registered templates, which makes way for the
    process that measures."""
    screening.install()
    _make_way()
    return serve(registry.get)


def _make_way() -> None:
    os.nice(_NICENESS)
    # Where Linux schedules by session, of which each worker is one, niceness counts within it
    # alone. Of many who write at once only root is not put off (sched(7), "autogroup").
    for _ in range(20):
        try:
            _AUTOGROUP.write_text(str(_NICENESS), encoding="ascii")
            return
        except BlockingIOError:
            time.sleep(random.uniform(0.05, 0.15))
        except OSError:
            return


def serve(get: Callable[[str], Template]) -> Mapping[str, Handler]:
    """The handler `compile`, on the templates that `get` finds by name."""

    def compile_one(
        candidate: Mapping[str, Any], specialization: Mapping[str, Any], capability: int
    ) -> wire.Json:
        wanted = wire.candidate_from_json(candidate)
        template = get(wanted.template)
        start = time.perf_counter()
        resources = None
        error: Exception | None = None
        with captured_stderr() as printed:
            try:
                binary = template.compile(
                    wire.specialization_from_json(specialization), wanted.config, capability
                )
                resources = binary.resources
            except Exception as caught:
                error = caught
        seconds = time.perf_counter() - start
        reason = _reason(error, printed[0])
        return wire.compilation_to_json(
            Compilation(wanted, _outcome(error), reason, resources, seconds)
        )

    return {"compile": compile_one}


def _outcome(error: Exception | None) -> Outcome:
    if error is None:
        return Outcome.OK
    # Triton's own exception has the same name as the contract's.
    if isinstance(error, OutOfResources) or type(error).__name__ == "OutOfResources":
        return Outcome.OUT_OF_RESOURCES
    return Outcome.COMPILE_ERROR


def _reason(error: Exception | None, printed: str) -> str:
    if error is None:
        return ""
    text = describe(error, printed)
    if not isinstance(error, CompileError):
        return text
    # The outcome already says that it is a CompileError or OutOfResources; twice, if Triton's
    # exception of that name was wrapped.
    name = f"{type(error).__name__}: "
    return text.removeprefix(name).removeprefix(name)
