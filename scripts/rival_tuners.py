"""One tuner that is not ours, on one problem, in a process of its own. prove_search.py runs it.

    python scripts/rival_tuners.py autotune '{"headdim": 128, …}' 300

Prints one line of JSON: evaluations, ms by its own measurement, the config as a candidate of ours
where it is one, and a note. Written against Triton 3.6 and Helion 1.2.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (makes kernels.attention importable)
from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.launching import strides_of
from kernels.attention.problem import Problem
from tuner.evaluate.inputs import own_shape
from tuner.evaluate.sensor import Sensor
from tuner.evaluate.stopwatch import CudaStopwatch
from tuner.evaluate.timing import take_samples
from tuner.evaluate.wire import candidate_to_json
from tuner.trial import Candidate

# Of the kernel's constexprs, those that a config decides, and the parameter they are called there.
TUNED = {
    "BLOCK_M": "BLOCK_M",
    "BLOCK_N": "BLOCK_N",
    "STAGES": "num_stages",
    "DEFER": "defer_rescale",
    "SUM_LATE": "sum_late",
    "DIAGONAL_FIRST": "diagonal_first",
    "HEADS_TOGETHER": "heads_together",
}


def constants(config: Config) -> dict[str, Any]:
    """The constexprs of the portable kernel that `config` decides, but for TMA."""
    return {name: config.get(parameter, False) for name, parameter in TUNED.items()}


def arguments(problem: Problem, tensors: Sequence[Any], tma: bool) -> dict[str, Any]:
    """All other arguments of the portable kernel, as a caller of the JIT passes them.

    Args:
        tensors: q, k, v and out; q, k and v may be descriptors.
    """
    shape = (problem.batch, problem.heads, problem.seqlen, problem.headdim)
    strides = strides_of(torch.empty(shape, device="meta"))[:3]
    scale = problem.headdim**-0.5 * math.log2(math.e)
    found: dict[str, Any] = dict(zip(("q", "k", "v", "out"), tensors), lse=None)
    for name in ("q", "k", "v", "out"):
        used = strides if name == "out" or not tma else (0, 0, 0)
        found |= {f"{name}_{part}": n for part, n in zip(("batch", "head", "row"), used)}
    return found | {
        "heads": problem.heads, "group": 1, "seqlen_q": problem.seqlen, "seqlen_k": problem.seqlen,
        "causal_offset": 0, "scale": scale, "coarse": math.ldexp(1.0, math.frexp(scale)[1]),
        "HEADDIM": problem.headdim, "CAUSAL": problem.causal, "LSE": False, "TMA": tma,
    }  # fmt: skip


def autotune(problem: Problem, limit_s: float) -> dict[str, Any]:
    """@triton.autotune over the portable template's feasible configs, as its documentation says:
    it compiles and times one after the other. Descriptors and pointers need a tuner each."""
    import triton
    from triton.compiler.errors import CompilationError
    from triton.tools.tensor_descriptor import TensorDescriptor

    from kernels.attention.portable_kernel import attention_forward

    end = time.monotonic() + limit_s
    inputs = own_shape(problem, "cuda")
    template = registry.get("portable")
    major, minor = torch.cuda.get_device_capability()
    configs = list(template.feasible(problem.specialization, 10 * major + minor))
    timings: dict[Config, float] = {}
    tried = failed = 0

    def bench(call: Callable[[], object], quantiles: Sequence[float]) -> Any:
        nonlocal tried, failed
        if time.monotonic() > end:
            return [math.inf] * len(quantiles)  # neither compiled nor run
        tried += 1
        try:
            return triton.testing.do_bench(call, quantiles=quantiles)
        except (CompilationError, RuntimeError):  # the decorator itself forgives three others
            failed += 1
            return [math.inf] * len(quantiles)

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (-(-problem.seqlen // meta["BLOCK_M"]) * problem.batch * problem.heads,)

    for tma in (True, False):
        of_kind = [config for config in configs if config["tma"] is tma]
        if not of_kind:
            continue

        def hook(values: dict[str, Any], **_: Any) -> None:
            for name, block in zip("qkv", ("BLOCK_M", "BLOCK_N", "BLOCK_N")):
                values[name].block_shape = [1, 1, values[block], problem.headdim]

        choices = {
            triton.Config(
                constants(config), num_warps=config["num_warps"], num_stages=config["num_stages"],
                maxnreg=config["maxnreg"] or None, pre_hook=hook if tma else None,
            ): config
            for config in of_kind
        }  # fmt: skip
        tensors: list[Any] = [inputs.q, inputs.k, inputs.v, inputs.out]
        if tma:
            block = [1, 1, 64, problem.headdim]
            tensors[:3] = [TensorDescriptor.from_tensor(t, list(block)) for t in tensors[:3]]
        tuned = triton.autotune(configs=list(choices), key=["seqlen_q"], do_bench=bench)(
            attention_forward
        )
        tuned[grid](**arguments(problem, tensors, tma))
        for choice, ms in tuned.configs_timings.items():
            timings[choices[choice]] = ms[0] if isinstance(ms, (list, tuple)) else ms
    notes = []
    if tried < len(configs):
        notes.append(f"its time was up after {tried} of {len(configs)}")
    if failed:
        notes.append(f"{failed} failed")
    note = "; ".join(notes)
    best = min(timings, key=lambda config: timings[config], default=None)
    if best is None or math.isinf(timings[best]):
        return {"note": note or "nothing was tuned"}
    return {
        "evaluations": tried,
        "ms": timings[best],
        "candidate": candidate_to_json(Candidate("portable", best)),
        "note": note,
    }


def helion(problem: Problem, limit_s: float) -> dict[str, Any]:
    """Helion's tuner on its attention kernel, which has no mask, at its quick effort. Its ms are of
    this process: it does not race with ours."""
    if problem.causal:
        return {"note": "left out: its attention example has no causal mask"}
    os.environ.setdefault("HELION_AUTOTUNE_EFFORT", "quick")
    os.environ.setdefault("HELION_AUTOTUNE_BUDGET_SECONDS", str(int(limit_s)))
    os.environ["HELION_SKIP_CACHE"] = "1"  # from cold
    try:
        import helion  # noqa: F401
    except ImportError:
        return {"note": "left out: Helion is not installed"}
    from scripts.helion_attention import attention

    inputs = own_shape(problem, "cuda")

    def call() -> object:
        return attention(inputs.q, inputs.k, inputs.v)

    tuned = call()
    expected = torch.nn.functional.scaled_dot_product_attention(inputs.q, inputs.k, inputs.v)
    if not torch.allclose(tuned, expected, atol=0.02, rtol=0.02):  # type: ignore[arg-type]
        return {"note": "what it tuned is wrong"}
    # As ours are timed: launch after launch, in a warm L2.
    stopwatch = CudaStopwatch(Sensor(None))
    timing = take_samples(lambda launches: stopwatch(call, launches), None)
    return {"ms": timing.median_ms, "note": "timed by itself"}


if __name__ == "__main__":
    name, form, limit = sys.argv[1:]
    tuners = {"autotune": autotune, "helion": helion}
    print(json.dumps(tuners[name](Problem(**json.loads(form)), float(limit))))
