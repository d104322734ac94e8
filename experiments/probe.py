"""On a card: are clusters of two blocks right, and what do they gain?

    python experiments/probe.py FOLDER [right|time] [D256 …]

Run from a checkout of the package; FOLDER is what build.py wrote.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, ".")
from functools import partial
from statistics import median

import torch

import tuner  # noqa: F401
from kernels.attention import compiler, hopper, registry
from kernels.attention.config import Config
from kernels.attention.launching import DirectLaunch
from kernels.attention.problem import Problem
from kernels.attention.reference import attention_reference

template = registry.get("hopper")
KEPT = []  # modules, which must not be unloaded


def launches(meta, cubin):
    """(q, k, v, out) -> a launch, by the cubin; by the package's own kernel for None."""
    headdim, causal, dtype = meta["problem"]
    problem = Problem.on_grid(headdim, 4096, causal, dtype)
    config = Config(meta["config"], cluster=1)
    kernel = compiler.Loaded(template.compile(problem.specialization, config, 90).kernel)
    if cubin is not None:
        from triton.runtime import driver

        config = Config(meta["config"])
        packed = tuple(meta["packed"])
        found = driver.active.utils.load_binary("attention_forward", cubin, packed[2], 0)
        KEPT.append(found)
        kernel._head = (found[1], *kernel._head[1:])
        kernel._metadata = packed

    def launch(q, k, v, out):
        work = hopper.work_out(config, causal, q, k, v, out, headdim**-0.5, 0)
        direct = DirectLaunch(kernel, work)
        stream = torch.cuda.current_stream().cuda_stream
        run = partial(direct, *(t.data_ptr() for t in (q, k, v, out)), None, stream)
        run()
        return run

    return launch


def draw(batch, heads, heads_kv, seqlen_q, seqlen_k, headdim, dtype):
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    q = torch.randn(batch, heads, seqlen_q, headdim, device="cuda", dtype=kind)
    k, v = (
        torch.randn(batch, heads_kv, seqlen_k, headdim, device="cuda", dtype=kind) for _ in "kv"
    )
    return q, k, v, torch.full_like(q, float("nan"))


SHAPES = [
    (1, 1, 1, 256, 256),
    (1, 2, 2, 1, 1),
    (2, 3, 3, 300, 300),
    (1, 4, 2, 1000, 1000),
    (2, 8, 1, 129, 777),
    (1, 16, 16, 4097, 4097),
    (3, 5, 5, 64, 2048),
    (1, 40, 8, 700, 300),
    (4, 32, 32, 2048, 2048),
]


def right(name, meta, cubin):
    headdim, causal, dtype = meta["problem"]
    run, own, worst = launches(meta, cubin), launches(meta, None), 0.0
    for shape in SHAPES:
        if causal and shape[3] > shape[4]:
            continue
        torch.manual_seed(0)
        q, k, v, out = draw(*shape, headdim, dtype)
        mine = torch.full_like(q, float("nan"))
        run(q, k, v, out)
        own(q, k, v, mine)
        torch.cuda.synchronize()
        difference = (out.float() - mine.float()).abs().max().item()
        if shape[0] * shape[1] * shape[3] * shape[4] < 2**27:
            expected, _ = attention_reference(q, k, v, headdim**-0.5, causal)
            difference = max(difference, (out.float() - expected.float()).abs().max().item())
        assert difference == difference, (name, shape)
        worst = max(worst, difference)
    print(name, "right", worst, flush=True)


def timed(name, meta, cubin, others):
    from tuner import device
    from tuner.evaluate.rounds import Lane, interleave
    from tuner.evaluate.sensor import Sensor
    from tuner.evaluate.stopwatch import CudaStopwatch

    headdim, causal, dtype = meta["problem"]
    problem = Problem.on_grid(headdim, {64: 4096, 128: 8192, 256: 16384}[headdim], causal, dtype)
    q, k, v, out = draw(
        problem.batch, problem.heads, problem.heads, problem.seqlen, problem.seqlen, headdim, dtype
    )
    stopwatch = CudaStopwatch(Sensor(device.uuid(0)))
    lanes = [
        Lane("two", launches(meta, cubin)(q, k, v, out)),
        Lane("own", launches(meta, None)(q, k, v, out)),
    ]
    lanes += [Lane(label, launches(m, c)(q, k, v, out)) for label, (m, c) in others.items()]
    for lane in lanes:
        lane.prepare(stopwatch)
    interleave(lanes, 24, stopwatch)
    rates = {lane.name: round(problem.tflops(median(lane.samples_ms))) for lane in lanes}
    sustained = {}
    for _ in range(2):
        for lane in lanes:
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < 0.7:
                stopwatch(lane.launch, lane.launches)
                count += lane.launches
            ms = (time.perf_counter() - began) * 1e3 / count
            sustained.setdefault(lane.name, []).append(round(problem.tflops(ms)))
    print(name, problem, "rounds", rates, "sustained", sustained, flush=True)


def main():
    folder, what, wanted = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    for path in sorted(folder.glob("*-2.json")):
        name = path.stem
        if wanted and not any(name.startswith(each) for each in wanted):
            continue
        meta, cubin = json.loads(path.read_text()), path.with_suffix(".cubin").read_bytes()
        one = folder / f"{name[:-1]}1.json"
        others = {"one, 3.9": (json.loads(one.read_text()), one.with_suffix(".cubin").read_bytes())}
        if what == "right":
            right(name, meta, cubin)
        else:
            timed(name, meta, cubin, others)


main()
