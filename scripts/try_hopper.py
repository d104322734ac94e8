"""Try variants of the Hopper template on an H100: numerics, then rates beside its peers.

    python scripts/try_hopper.py [--only 64,128,256] [--budget 170] [--output FILE]
    python scripts/try_hopper.py --compile-only

Compiles every variant, for which no GPU is needed, and prints what spills or is refused. Then, for
each headdim, compares with the reference over odd shapes, and times the variants that pass in
interleaved rounds with cuDNN, the portable template and, where it is installed, FlashAttention-3.

A wrong barrier makes a kernel wait for ever. So each headdim has a process of its own, which says
in one line of JSON what it is at; if it is silent for 25 s, it is killed, and another one goes on
without the candidate it hung at. Exits with 1 if anything hung, was wrong, or failed to compile.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from subprocess import PIPE, STDOUT, Popen
from threading import Timer
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (lets Hugging Face's `kernels`, if installed, share its name with ours)
from kernels.attention import registry
from kernels.attention.config import Config, Value
from kernels.attention.hopper import HopperTemplate
from kernels.attention.problem import DTYPES, Problem, Specialization
from kernels.attention.reference import attention_reference
from kernels.attention.template import Binary, CompileError, Template

CAPABILITY = 90
SILENCE, START = 25.0, 60.0  # seconds a worker may say nothing: later, and while it imports torch
ATTEMPTS = 4  # workers for one headdim
HEADLINES = {64: 4096, 128: 8192, 256: 16384}  # headdim -> seqlen, as in the README
SEQLENS = ((True, 512), (True, 1024), (True, 2048), (False, 512), (False, 2048), (False, 8192))
HOPPER = HopperTemplate()
PEERS = ("portable", "cudnn", "fa3")

# label -> what differs from the default config, for every headdim and for one
Changes = dict[str, dict[str, Value]]
COMMON: Changes = {
    "default": {}, "no-ping-pong": {"ping_pong": False}, "mbarrier": {"hardware_release": False},
    "1-q": {"q_buffers": 1},
}  # fmt: skip
VARIANTS: dict[int, Changes] = {
    64: COMMON | {
        "defer": {"defer_rescale": True}, "2-stages": {"stages": 2},
        "mbarrier-4-stages": {"hardware_release": False, "stages": 4},
        "4-stages-1-q": {"stages": 4, "q_buffers": 1},
        "2-consumers": {"consumers": 2, "stages": 4}, "n64": {"BLOCK_N": 64},
        "2-consumers-defer": {"consumers": 2, "stages": 4, "defer_rescale": True},
        "4-stages-1-q-defer": {"stages": 4, "q_buffers": 1, "defer_rescale": True},
    },
    128: COMMON | {
        "no-defer": {"defer_rescale": False}, "n64": {"BLOCK_N": 64, "stages": 4},
        "3-consumers-n64": {"consumers": 3, "BLOCK_N": 64, "stages": 3},
        "3-consumers-n64-1-q": {"consumers": 3, "BLOCK_N": 64, "stages": 3, "q_buffers": 1},
    },
    256: COMMON | {"no-defer": {"defer_rescale": False}, "n32": {"BLOCK_N": 32, "stages": 4}},
}  # fmt: skip

# batch, heads, heads_kv, seqlen_q, seqlen_k, and whether the mask is aligned at the bottom right
ODD_SHAPES = (
    (1, 1, 1, 1, 1, False), (1, 2, 1, 7, 7, False), (2, 4, 2, 100, 100, False),
    (1, 3, 3, 127, 127, False), (1, 2, 2, 1000, 1000, False), (2, 2, 1, 300, 77, False),
    (2, 2, 1, 300, 77, True), (1, 2, 2, 77, 300, True), (1, 2, 2, 77, 300, False),
    (1, 1, 1, 4097, 4097, False), (3, 60, 5, 513, 513, False), (2, 17, 17, 640, 640, False),
)  # fmt: skip
TOLERANCE = {"fp16": 4e-3, "bf16": 3e-2}

Event = dict[str, Any]
Run = Callable[[], object]
Tensors = tuple[Tensor, Tensor, Tensor]


def compiled(label: str, of: Specialization) -> tuple[Template, Binary]:
    """Raises CompileError also where a static rule rejects the config."""
    template = registry.get("portable") if label == "portable" else HOPPER
    problem = Problem.on_grid(of.headdim, HEADLINES[of.headdim], of.causal, of.dtype)
    config = Config(template.default(problem, CAPABILITY), **VARIANTS[of.headdim].get(label, {}))
    reason = template.reject(of, config, CAPABILITY)
    if reason is not None:
        raise CompileError(f"rejected: {reason}")
    return template, template.compile(of, config, CAPABILITY)


def jobs(headdims: Sequence[int]) -> Iterator[tuple[str, Specialization]]:
    for headdim in headdims:
        for dtype in DTYPES:
            for label in (*VARIANTS[headdim], "portable"):
                yield label, Specialization(headdim, True, dtype)
            for causal, lse in ((True, True), (False, True), (False, False)):
                yield "default", Specialization(headdim, causal, dtype, lse)


def compile_one(job: tuple[str, Specialization]) -> Event:
    event: Event = {"label": job[0], **asdict(job[1])}
    try:
        return event | asdict(compiled(*job)[1].resources)
    except Exception as error:
        return event | {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def compile_all(headdims: Sequence[int]) -> list[Event]:
    with ProcessPoolExecutor() as pool:
        events = list(pool.map(compile_one, jobs(headdims)))
    for event in events:
        if "error" in event or event["spills"]:
            print("compile", json.dumps(event))
    print(f"{sum('error' not in x for x in events)} of {len(events)} compile", flush=True)
    return events


# The worker: one process, one headdim


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def work(headdim: int, skip: frozenset[str], deadline: float) -> None:
    """All that is done on the card. Says `at` before whatever may hang; `skip` has what hung in an
    earlier worker, or was done there."""
    torch.manual_seed(0)
    for dtype in DTYPES:
        for causal in (True, False):
            key = f"odd {dtype} {'causal' if causal else 'full'}"
            if key not in skip:
                with_errors("odd", key, partial(check_odd, key, headdim, causal, dtype))
    for dtype in DTYPES:
        if f"race {dtype}" not in skip:
            race(headdim, dtype, skip, deadline)
    for causal, seqlen in SEQLENS:
        problem = Problem.on_grid(headdim, seqlen, causal, "fp16")
        if str(problem) not in skip and time.time() < deadline:
            with_errors("grid", str(problem), partial(race_cudnn, problem))


def with_errors(kind: str, key: str, what: Callable[[], Run | None]) -> Run | None:
    """What it makes; None, and said so, if it raises."""
    say(at=key)
    try:
        return what()
    except Exception as error:
        say(kind=kind, key=key, error=f"{type(error).__name__}: {str(error)[:300]}")
    torch.cuda.synchronize()  # ends this worker if the context is broken, for another to go on
    return None


def inputs(of: Problem, heads_kv: int | None = None, keys: int | None = None) -> Tensors:
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[of.dtype]
    q = torch.randn(of.batch, of.heads, of.seqlen, of.headdim, device="cuda")
    shape = (2, of.batch, heads_kv or of.heads, keys or of.seqlen, of.headdim)
    k, v = torch.randn(shape, device="cuda").to(dtype)
    return q.to(dtype), k, v


def check_odd(key: str, headdim: int, causal: bool, dtype: str) -> None:
    """The default config over odd shapes, every other one with spikes among the scores."""
    _, binary = compiled("default", Specialization(headdim, causal, dtype, lse=True))
    scale = headdim**-0.5
    worst, worst_lse, bad = 0.0, 0.0, []
    for number, (batch, heads, heads_kv, rows, keys, bottom_right) in enumerate(ODD_SHAPES):
        if bottom_right and not causal:
            continue
        say(at=key, shape=number)
        offset = keys - rows if bottom_right else 0
        problem = Problem(headdim, rows, causal, dtype, batch, heads)
        q, k, v = inputs(problem, heads_kv, keys)
        if number % 2:
            q *= 3
            k[:, :, keys // 3] *= 6
            k[:, :, -1] *= 8
        expected, expected_lse = attention_reference(q, k, v, scale, causal, offset)
        outs = [torch.full_like(q, math.nan) for _ in range(2)]
        logs = [torch.full(q.shape[:3], math.nan, device=q.device) for _ in range(2)]
        for out, lse in zip(outs, logs):
            HOPPER.launch(binary, q, k, v, out, lse, scale, offset)
        torch.cuda.synchronize()
        difference = float((outs[0].float() - expected).abs().max())
        seen = expected_lse.isfinite()
        difference_lse = float((logs[0] - expected_lse).where(seen, 0.0).abs().max())
        fine = (
            difference <= TOLERANCE[dtype] * max(1.0, float(expected.abs().max()))
            and difference_lse <= 2e-3
            and torch.equal(logs[0].isneginf(), expected_lse.isneginf())
            and all(torch.equal(*both) for both in (outs, logs))
        )
        if not fine:
            bad.append([batch, heads, heads_kv, rows, keys, offset, difference, difference_lse])
        worst, worst_lse = max(worst, difference), max(worst_lse, difference_lse)
    say(kind="odd", key=key, difference=worst, lse=worst_lse, bad=bad)


def race(headdim: int, dtype: str, skip: frozenset[str], deadline: float) -> None:
    """Check the variants at the headline shape; time those that pass, and peers, in rounds."""
    say(at=f"race {dtype}")
    problem = Problem.on_grid(headdim, HEADLINES[headdim], True, dtype)
    tensors = inputs(problem)
    q, k, v = (tensor[:, :2] for tensor in tensors)
    expected = attention_reference(q, k, v, headdim**-0.5, causal=True)[0]
    runs: dict[str, Run] = {}
    for label in (*VARIANTS[headdim], *PEERS):
        key = f"{label} {dtype}"
        if key not in skip:
            what = partial(checked, label, problem, tensors, expected)
            if label in ("cudnn", "fa3"):
                what = partial(peer, label, tensors)
            run = with_errors("peer" if label in PEERS else "check", key, what)
            if run is not None:
                runs[label] = run
    ms = rounds(runs, f"{{}} {dtype}", count=7, times=15)
    say(kind="short", key=f"race {dtype}", rates={x: problem.flops / ms[x] / 1e9 for x in runs})
    if time.time() > deadline:
        return
    best = sorted((label for label in runs if label not in PEERS), key=lambda x: ms[x])[:2]
    sustained = {}
    for label in (x for x in (*best, "cudnn", "fa3") if x in runs):
        got = []  # each by itself, for long enough that the clock settles
        for _ in range(3):
            say(at=f"{label} {dtype}")
            timed(runs[label], max(1, int(120 / ms[label])))
            got.append(timed(runs[label], max(1, int(250 / ms[label]))))
        sustained[label] = problem.flops / median(got) / 1e9
    say(kind="sustained", key=f"race {dtype}", rates=sustained)


def checked(label: str, problem: Problem, tensors: Tensors, expected: Tensor) -> Run | None:
    """A candidate of ours; None if it is wrong, or not the same in six launches."""
    key = f"{label} {problem.dtype}"
    outs = [torch.full_like(tensors[0], math.nan) for _ in range(6)]
    for out in outs:
        run = launcher(label, problem, tensors, out)
        run()
    torch.cuda.synchronize()
    say(at=key, step="launched")
    difference = float((outs[0][:, :2].float() - expected).abs().max())
    same = all(torch.equal(outs[0], out) for out in outs[1:])
    right = difference <= TOLERANCE[problem.dtype] and bool(outs[0].isfinite().all())
    say(kind="check", key=key, difference=difference, ok=right and same, same=same)
    return run if right and same else None


def peer(label: str, tensors: Tensors) -> Run | None:
    """cuDNN or FlashAttention-3, causal; None if it is not installed."""
    try:
        fa3 = None if label == "cudnn" else import_module("fa3_fwd_interface").flash_attn_func
    except ImportError:
        return None
    run: Run = partial(cudnn, *tensors, True)
    if fa3 is not None:
        run = partial(fa3, *(x.transpose(1, 2).contiguous() for x in tensors), causal=True)
    timed(run, 5)
    return run


def race_cudnn(problem: Problem) -> None:
    """The default config beside cuDNN on a point of the benchmark grid."""
    tensors = inputs(problem)
    ours = launcher("default", problem, tensors, torch.empty_like(tensors[0]))
    runs: dict[str, Run] = {"default": ours, "cudnn": partial(cudnn, *tensors, problem.causal)}
    ms = rounds(runs, str(problem), count=5, times=20)
    say(kind="grid", key=str(problem), rates={x: problem.flops / ms[x] / 1e9 for x in runs})


def rounds(runs: Mapping[str, Run], at: str, count: int, times: int) -> dict[str, float]:
    """Median milliseconds of each, over so many rounds in which they take turns."""
    ms: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(count):
        for label, run in runs.items():
            say(at=at.format(label))
            timed(run, 3)
            ms[label].append(timed(run, times))
    return {label: median(got) for label, got in ms.items()}


def launcher(label: str, problem: Problem, tensors: Tensors, out: Tensor) -> Run:
    template, binary = compiled(label, problem.specialization)
    return partial(template.launch, binary, *tensors, out, None, problem.headdim**-0.5)


def cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> None:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        scaled_dot_product_attention(q, k, v, is_causal=causal)


def timed(run: Run, times: int) -> float:
    """Milliseconds of one run, over so many."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        run()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / times


# The parent: starts workers, watches them, shows what they find


def follow(headdim: int, skip: set[str], deadline: float, events: list[Event]) -> bool:
    """Run one worker, and add to `events`, and to `skip` what it finished and what it hung at.
    Whether it came to its end."""
    todo = (str(headdim), json.dumps(sorted(skip)), str(deadline))
    command = [sys.executable, __file__, "--worker", *todo]
    worker = Popen(command, stdout=PIPE, stderr=STDOUT, text=True)
    at, other = {"at": "start"}, ""
    watchdog = Timer(START, worker.kill)
    watchdog.start()
    for line in worker.stdout or ():
        if not line.startswith("{"):
            other = line.strip() or other  # the last line of a traceback says most
            continue
        watchdog.cancel()
        watchdog = Timer(SILENCE, worker.kill)
        watchdog.start()
        event: Event = json.loads(line)
        if "at" in event:
            at = event
        else:
            events.append(event)
            show(headdim, event)
            if event["kind"] in ("odd", "sustained", "grid"):
                skip.add(event["key"])
    code = worker.wait()
    watchdog.cancel()
    if code == 0:
        return True
    why = "killed in silence" if code == -signal.SIGKILL else f"exit code {code}: {other}"
    skip.add(at["at"])
    events.append({"kind": "stopped", "key": at.pop("at"), **at, "error": why})
    show(headdim, events[-1])
    return False


def show(headdim: int, event: Event) -> None:
    if "rates" in event:
        text = "  ".join(f"{label} {rate:.0f}" for label, rate in event["rates"].items())
    else:
        rest = {name: x for name, x in event.items() if name not in ("kind", "key")}
        text = json.dumps({n: round(x, 5) if isinstance(x, float) else x for n, x in rest.items()})
    print(f"D{headdim} {event['kind']:9} {event['key']}: {text}", flush=True)


def is_wrong(event: Event) -> bool:
    wrong = "error" in event or bool(event.get("bad")) or event.get("ok") is False
    return wrong and event.get("kind") != "peer"  # what a peer refuses is no fault of ours


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="64,128,256", help="headdims")
    parser.add_argument("--budget", type=float, default=170, help="seconds, roughly, in all")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--output", type=Path, help="where everything found goes, as JSON")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        headdim, skip, deadline = options.worker
        work(int(headdim), frozenset(json.loads(skip)), float(deadline))
        return 0
    headdims = [int(headdim) for headdim in options.only.split(",")]
    if not set(headdims) <= set(VARIANTS):
        parser.error(
            f"--only is {options.only}, but must be some of {', '.join(map(str, VARIANTS))}"
        )
    end = time.time() + options.budget
    found = {"compile": compile_all(headdims)}
    if options.compile_only:
        headdims = []
    try:
        for number, headdim in enumerate(headdims):
            deadline = time.time() + (end - time.time()) / (len(headdims) - number) - 5
            skipped: set[str] = set()
            events = found[f"D{headdim}"] = []
            for _ in range(ATTEMPTS):
                ended = follow(headdim, skipped, deadline, events)
                if ended or "start" in skipped or time.time() > end:
                    break
    finally:
        if options.output:
            options.output.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if any(is_wrong(event) for events in found.values() for event in events) else 0


if __name__ == "__main__":
    sys.exit(main())
