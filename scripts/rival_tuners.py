"""One tuner that is not ours, on one problem, in a process of its own. prove_search.py runs it.

    python scripts/rival_tuners.py autotune '{"headdim": 128, …}' 300
    python scripts/rival_tuners.py helion '{"headdim": 128, …}' 300 '{"template": …}'

Prints lines of JSON, each of which supersedes those before it, so that whoever ends this process
has what there was: evaluations, ms by its own measurement, the config as a candidate of ours where
it is one, and a note. The last word is a candidate of ours that Helion's kernel is timed beside.
Written against Triton 3.6 and Helion 1.1.0 and 1.5.1, which does not import beside torch 2.11.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import torch

# This folder for its modules: a package called `scripts` may be installed, and hides it.
sys.path.append(str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (makes kernels.attention importable)
from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.launching import strides_of
from kernels.attention.printable import shown
from kernels.attention.problem import Problem
from tuner.evaluate.failure import describe
from tuner.evaluate.inputs import Inputs, own_shape
from tuner.evaluate.sensor import Sensor
from tuner.evaluate.stopwatch import CudaStopwatch, Launch, Stopwatch
from tuner.evaluate.timing import launches_per_sample
from tuner.evaluate.wire import candidate_from_json, candidate_to_json
from tuner.trial import Candidate

if TYPE_CHECKING:
    from scripts import refusals
else:
    import refusals

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

# Helion looks at the clock between generations only, and compiles and times for a while after.
HELION_RESERVE_S = 90.0
LEAST_HELION_S = 30.0
# Of outputs that are about 0.02 at the headline shapes, and nowhere more than rounding differs.
TOLERANCE = {"fp16": 3e-3, "bf16": 24e-3}
# As the race of our own winners is timed.
ROUNDS, ROUND_MS, WARM_UP_MS = 100, 15.0, 400.0

Report = Callable[[dict[str, Any]], None]


def say(reply: dict[str, Any]) -> None:
    print(json.dumps(reply), flush=True)


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


class Tally:
    """What one autotuning has come to."""

    def __init__(self, configs: int) -> None:
        self.configs = configs
        self.timings: dict[Config, float] = {}
        self.tried = self.failed = 0
        self.seconds = 0.0  # that went to those tried
        self.trouble = ""  # after which nothing more is tried
        self.complaints: list[str] = []

    def reply(self) -> dict[str, Any]:
        notes = []
        if self.tried < self.configs:
            notes.append(f"tried {self.tried} of {self.configs} configs, in random order")
        if 0 < self.tried < self.configs:
            pace = self.seconds / self.tried
            notes.append(
                f"at {pace:.1f} s per config all would take {pace * self.configs:.0f} s "
                "(an extrapolation)"
            )
        if self.failed:
            notes.append(f"{self.failed} failed")
        notes += [complaint for complaint in (self.trouble, *self.complaints) if complaint]
        found: dict[str, Any] = {"evaluations": self.tried, "note": "; ".join(notes)}
        best = min(self.timings, key=lambda config: self.timings[config], default=None)
        if best is None:
            return {**found, "note": found["note"] or "nothing was tuned"}
        candidate = candidate_to_json(Candidate("portable", best))
        return {**found, "ms": self.timings[best], "candidate": candidate}


def broken() -> str:
    """What an error left of the CUDA context, after which every launch fails; empty if it lives."""
    try:
        torch.cuda.synchronize()
    except Exception as error:
        return f"the CUDA context broke: {describe(error)}"
    return ""


def autotune(problem: Problem, limit_s: float, report: Report = say) -> dict[str, Any]:
    """@triton.autotune over the portable template's feasible configs, as its documentation says:
    it compiles and times one after the other. Descriptors and pointers need a tuner each, which
    have equal shares of the time; the configs of each come in random order, so that those that were
    tried when time is up are a fair sample."""
    import triton
    from triton.tools.tensor_descriptor import TensorDescriptor

    from kernels.attention.portable_kernel import attention_forward

    end = time.monotonic() + limit_s
    inputs = own_shape(problem, "cuda")
    template = registry.get("portable")
    major, minor = torch.cuda.get_device_capability()
    configs = list(template.feasible(problem.specialization, 10 * major + minor))
    random.Random(0).shuffle(configs)
    kinds = {tma: [c for c in configs if c["tma"] is tma] for tma in (True, False)}
    kinds = {tma: of_kind for tma, of_kind in kinds.items() if of_kind}
    tally = Tally(len(configs))

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (-(-problem.seqlen // meta["BLOCK_M"]) * problem.batch * problem.heads,)

    for number, (tma, of_kind) in enumerate(kinds.items()):
        began = time.monotonic()
        until = began + (end - began) / (len(kinds) - number)
        # The decorator times them in the order in which it has them, and does not say which.
        coming = iter(of_kind)

        def bench(
            call: Callable[[], object],
            quantiles: Sequence[float],
            coming: Iterator[Config] = coming,
            until: float = until,
        ) -> Any:
            config, start = next(coming), time.monotonic()
            result = [math.inf] * len(quantiles)
            if tally.trouble or start > until:
                return result  # neither compiled nor run
            try:
                result = triton.testing.do_bench(call, quantiles=quantiles)
                tally.timings[config] = result[0]
            except Exception:  # the decorator itself forgives three kinds
                tally.failed += 1
                tally.trouble = broken()
            tally.tried += 1
            tally.seconds += time.monotonic() - start
            report(tally.reply())
            return result

        def hook(values: dict[str, Any], **_: Any) -> None:
            for name, block in zip("qkv", ("BLOCK_M", "BLOCK_N", "BLOCK_N")):
                values[name].block_shape = [1, 1, values[block], problem.headdim]

        choices = [
            triton.Config(
                constants(config), num_warps=config["num_warps"], num_stages=config["num_stages"],
                maxnreg=config["maxnreg"] or None, pre_hook=hook if tma else None,
            )
            for config in of_kind
        ]  # fmt: skip
        tensors: list[Any] = [inputs.q, inputs.k, inputs.v, inputs.out]
        if tma:
            block = [1, 1, 64, problem.headdim]
            tensors[:3] = [TensorDescriptor.from_tensor(t, list(block)) for t in tensors[:3]]
        tuned = triton.autotune(configs=choices, key=["seqlen_q"], do_bench=bench)(
            attention_forward
        )
        try:
            tuned[grid](**arguments(problem, tensors, tma))
        except Exception as error:
            # It launches its winner in the end, which fails where all did. The timings are here.
            tally.complaints.append(f"its last launch failed: {describe(error)}")
            tally.trouble = tally.trouble or broken()
    return tally.reply()


def helion(
    problem: Problem, limit_s: float, beside: Candidate | None = None, report: Report = say
) -> dict[str, Any]:
    """Helion's tuner on its attention kernel, at its quick effort."""
    end = time.monotonic() + limit_s
    for name, value in {
        "EFFORT": "quick",
        "BUDGET_SECONDS": str(int(max(LEAST_HELION_S, limit_s - HELION_RESERVE_S))),
        "COMPILE_TIMEOUT": "20",  # as it waits for what it compiles when its time is up
        "BENCHMARK_TIMEOUT": "60",
        "PROGRESS_BAR": "0",
    }.items():
        os.environ.setdefault(f"HELION_AUTOTUNE_{name}", value)
    os.environ["HELION_SKIP_CACHE"] = "1"  # from cold
    try:
        from helion import exc
        from helion.autotuner.metrics import register_post_autotune_hook
    except ImportError as error:
        return {"note": f"left out: Helion cannot be imported: {describe(error)}"}
    # Not from `scripts`: any package of that name that is installed would be found instead.
    import helion_attention  # type: ignore[import-not-found]

    found: dict[str, Any] = {"evaluations": 0, "note": "its tuning ended, its kernel was not timed"}

    def tuned(metrics: Any) -> None:
        found["evaluations"] += metrics.num_configs_tested
        if metrics.best_perf_ms:
            found["ms"] = metrics.best_perf_ms
        report(found)

    register_post_autotune_hook(tuned)
    kernel = helion_attention.causal_attention if problem.causal else helion_attention.attention
    inputs = own_shape(problem, "cuda")
    call = partial(kernel, inputs.q, inputs.k, inputs.v)
    try:
        out = call()
    except (exc.NoConfigFound, exc.TritonUnrecoverableRuntimeError) as error:
        again(problem, end - time.monotonic(), beside, error)
        raise
    expected = torch.nn.functional.scaled_dot_product_attention(
        inputs.q, inputs.k, inputs.v, is_causal=problem.causal
    )
    tolerance = TOLERANCE[problem.dtype]
    if not torch.allclose(out, expected, atol=tolerance, rtol=tolerance):
        return {"evaluations": found["evaluations"], "note": "what it tuned is wrong"}
    launches: list[Launch] = [call]
    if beside is not None:
        launches.append(launch_of(problem, beside, inputs))
    samples = interleaved(launches, CudaStopwatch(Sensor(None)))
    made_by = f"Helion {version('helion')} at its quick effort"
    found |= {"ms": median(samples[0]), "note": f"{made_by}; timed by itself"}
    if beside is not None:
        ratios = [math.log(theirs / ours) for theirs, ours in zip(*samples)]
        found |= {
            "note": f"{made_by}; timed in rounds with one winner of ours, in its own process",
            "beside": candidate_to_json(beside),
            "times": math.exp(fmean(ratios)),
        }
    return found


def again(problem: Problem, limit_s: float, beside: Candidate | None, error: Exception) -> None:
    """Start anew, once, with each compilation in a process of its own, as Helion itself advises:
    a kernel of its may have broken this process. Returns where that was so already, or if there is
    no time."""
    if "HELION_AUTOTUNE_PRECOMPILE" in os.environ or limit_s < LEAST_HELION_S + HELION_RESERVE_S:
        return
    print(f"once more, with spawned compilers: {error}", file=sys.stderr, flush=True)
    os.environ["HELION_AUTOTUNE_PRECOMPILE"] = "spawn"
    del os.environ["HELION_AUTOTUNE_BUDGET_SECONDS"]
    sys.stdout.flush()
    words = [json.dumps(asdict(problem)), str(limit_s)]
    if beside is not None:
        words.append(json.dumps(candidate_to_json(beside)))
    os.execv(sys.executable, [sys.executable, __file__, "helion", *words])


def launch_of(problem: Problem, candidate: Candidate, inputs: Inputs) -> Launch:
    """A launch of a candidate of ours, compiled here."""
    template = registry.get(candidate.template)
    major, minor = torch.cuda.get_device_capability()
    binary = template.compile(problem.specialization, candidate.config, 10 * major + minor)
    q, k, v, out = inputs.q, inputs.k, inputs.v, inputs.out
    return partial(template.launch, binary, q, k, v, out, None, inputs.sm_scale)


def interleaved(
    launches: Sequence[Launch], stopwatch: Stopwatch, rounds: int = ROUNDS
) -> list[list[float]]:
    """ms per launch in each of `rounds`, in which all are timed after each other, every other time
    in the reverse order."""
    counts = []
    for launch in launches:
        ms = min(stopwatch(launch, 1) for _ in range(3))
        stopwatch(launch, launches_per_sample(ms, WARM_UP_MS))
        counts.append(launches_per_sample(ms, ROUND_MS))
    samples: list[list[float]] = [[] for _ in launches]
    for index in range(rounds):
        order = range(len(launches))
        for lane in order if index % 2 else reversed(order):
            samples[lane].append(stopwatch(launches[lane], counts[lane]))
    return samples


def main(words: Sequence[str] | None = None) -> None:
    parser = refusals.Parser(__doc__)
    parser.add_argument("rival", choices=("autotune", "helion"))
    parser.add_argument("problem", help="JSON")
    parser.add_argument("seconds", type=float, help="until it must have ended")
    parser.add_argument("beside", nargs="?", help="JSON; for helion")
    given = parser.parse_args(words)
    try:
        of = Problem(**json.loads(given.problem))
    except (TypeError, ValueError, RecursionError) as error:
        parser.error(f"PROBLEM is {shown(given.problem)}, but must be a problem in JSON: {error}")
    if not (math.isfinite(given.seconds) and given.seconds > 0):
        parser.error(f"SECONDS is {given.seconds}, but must be a number above zero")
    beside = None
    try:
        if given.beside is not None:
            beside = candidate_from_json(json.loads(given.beside))
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError):
        parser.error(f"BESIDE is {shown(given.beside)}, but must be a candidate in JSON")
    if not torch.cuda.is_available():
        parser.error("this measures, but there is no NVIDIA GPU here")
    if given.rival == "autotune":
        say(autotune(of, given.seconds))
    else:
        say(helion(of, given.seconds, beside))


if __name__ == "__main__":
    main()
