"""Our attention beside its peers on the headline shapes: the figures that we publish.

Two methods, side by side in each row. First that of the harness that others measure us with: 25
warm-ups, then 100 runs with a pair of CUDA events each, the median counts. Then interleaved rounds,
in which we and every peer run in turn, so that drift and power capping hit all alike: differences
of a few per cent can be told from these alone. All lanes of such rounds share the clock that their
mean power leaves, so what a lane saves of it helps all alike. On request therefore two more, in
which each lane comes nearer to the clock that its own power leaves: short, the harness's way for
every lane in turns, and sustained, a quarter second of launches back to back, for which the power
cap has time to settle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from kernels.attention.problem import HEADLINE, Problem
from tuner import moments
from tuner.evaluate.rounds import Lane, interleave
from tuner.evaluate.timing import balanced, cycle, spread
from tuner.target import Target

if TYPE_CHECKING:
    from torch import Tensor

    from tuner.evaluate.inputs import Inputs
    from tuner.evaluate.stopwatch import Launch, Stopwatch

    Attention = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
    Peers = Callable[[Inputs], Mapping[str, Launch]]

SEED = 42
WARM_UPS = 25
RUNS = 100
ROUNDS = 7
RUNS_PER_ROUND = 20
SUSTAINED_WARM_UP_MS, SUSTAINED_MS, SUSTAINED_TIMES = 120.0, 250.0, 3

# Largest difference to SDPA that counts as correct. bf16 rounds outputs eight times as coarsely.
TOLERANCE = {"fp16": 1e-2, "bf16": 4e-2}

OURS = "ours"


@dataclass(frozen=True)
class Lap:
    """One lane of the interleaved rounds."""

    median_ms: float
    spread: float  # interquartile range over the median
    tflops: float
    samples_ms: tuple[float, ...]  # one per round
    short_tflops: float | None = None
    short_ms: tuple[float, ...] = ()  # a median of the harness's way for each turn
    sustained_tflops: float | None = None


@dataclass(frozen=True)
class Row:
    """One problem."""

    problem: Problem
    latency_ms: float  # the harness's way, as are the next four
    tflops: float
    sdpa_ms: float  # SDPA with the backend it chooses itself
    speedup_vs_sdpa: float
    max_diff: float  # largest |ours − SDPA|
    correct: bool
    rounds: Mapping[str, Lap]  # interleaved: `ours` and every peer by name
    absent: Mapping[str, str] = field(default_factory=dict)  # peers that cannot run: the reason
    sm_clock_mhz: int | None = None  # over the rounds, where NVML answers
    power_w: int | None = None


@dataclass(frozen=True)
class Report:
    """All rows, and what they were measured on."""

    target: Target
    measured_at: str  # UTC, ISO 8601, seconds
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """The report in JSON's types."""
        return asdict(self)


def bench(
    attention: Attention | None = None,
    problems: Sequence[Problem] = HEADLINE,
    rounds: int = ROUNDS,
    device: str = "cuda",
    stopwatch: Stopwatch | None = None,
    target: Target | None = None,
    alone: bool = False,
    further: Peers | None = None,
) -> Report:
    """Measure `attention` and its peers.

    Args:
        attention: called as `attention(q, k, v, causal)`; None: custom_attention_forward.
        rounds: of the interleaved comparison, 20 runs of each lane a round.
        device: torch's name of the device.
        stopwatch, target: None: CUDA events on `device`, and what it is.
        alone: whether to measure every lane by itself, too; some seconds a lane.
        further: more peers than those of tuner.evaluate.peers, from the inputs they run on.
    """
    if attention is None:
        from tuner.runtime import custom_attention_forward as attention
    assert attention is not None
    if stopwatch is None or target is None:
        import torch

        from tuner.device import detect, uuid
        from tuner.evaluate.sensor import Sensor
        from tuner.evaluate.stopwatch import CudaStopwatch

        index = torch.device(device).index or 0
        torch.cuda.set_device(index)
        stopwatch = stopwatch or CudaStopwatch(Sensor(uuid(index)))
        target = target or detect(index)
    now = moments.now()
    rows = tuple(
        _row(attention, problem, rounds, device, stopwatch, alone, further) for problem in problems
    )
    return Report(target, now, rows)


def _row(
    attention: Attention,
    problem: Problem,
    rounds: int,
    device: str,
    stopwatch: Stopwatch,
    alone: bool,
    further: Peers | None,
) -> Row:
    import torch

    from tuner.evaluate import peers
    from tuner.evaluate.inputs import TORCH_DTYPES, Inputs

    shape = (problem.batch, problem.heads, problem.seqlen, problem.headdim)
    torch.manual_seed(SEED)
    q, k, v = (
        torch.randn(shape, device=device, dtype=TORCH_DTYPES[problem.dtype]) for _ in range(3)
    )
    ours = partial(attention, q, k, v, problem.causal)
    theirs = partial(peers.sdpa, None, q, k, v, problem.causal)
    max_diff = float((ours().float() - theirs().float()).abs().max())

    latency_ms, sdpa_ms = (_as_the_harness(launch, stopwatch) for launch in (ours, theirs))
    lanes = [Lane(OURS, ours, RUNS_PER_ROUND)]
    absent = {}
    inputs = Inputs("the harness's", q, k, v, torch.empty_like(q), problem.causal)
    beside = {**peers.launches(inputs), **(further(inputs) if further else {})}
    for name, peer in beside.items():
        try:
            peer()
        except RuntimeError as error:
            absent[name] = str(error).splitlines()[0]
        else:
            lanes.append(Lane(name, peer, RUNS_PER_ROUND))
    interleave(lanes, rounds, stopwatch)
    clock, power = stopwatch.sensor.take()
    short = _short(lanes, stopwatch) if alone else {}
    sustained = {lane.name: _sustained(lane, stopwatch) for lane in lanes} if alone else {}
    return Row(
        problem=problem,
        latency_ms=latency_ms,
        tflops=problem.tflops(latency_ms),
        sdpa_ms=sdpa_ms,
        speedup_vs_sdpa=sdpa_ms / latency_ms,
        max_diff=max_diff,
        correct=max_diff < TOLERANCE[problem.dtype],
        rounds={
            lane.name: _lap(problem, lane, short.get(lane.name, ()), sustained.get(lane.name))
            for lane in lanes
        },
        absent=absent,
        sm_clock_mhz=clock,
        power_w=power,
    )


def _as_the_harness(launch: Callable[[], object], stopwatch: Stopwatch) -> float:
    stopwatch.each(launch, WARM_UPS)
    return median(stopwatch.each(launch, RUNS))


def _short(lanes: Sequence[Lane], stopwatch: Stopwatch) -> dict[str, tuple[float, ...]]:
    """Milliseconds by the harness's way, by lane: a median for each of the turns that they take, in
    which every lane follows every other equally often."""
    medians: dict[str, list[float]] = {lane.name: [] for lane in lanes}
    for turn in range(cycle(len(lanes))):
        for place in balanced(len(lanes), turn):
            lane = lanes[place]
            medians[lane.name].append(_as_the_harness(lane.launch, stopwatch))
    return {name: tuple(each) for name, each in medians.items()}


def _sustained(lane: Lane, stopwatch: Stopwatch) -> float:
    """Milliseconds of one launch among many, the median of several trains of them."""
    once = median(lane.samples_ms)
    trains = []
    for _ in range(SUSTAINED_TIMES):
        stopwatch(lane.launch, max(1, round(SUSTAINED_WARM_UP_MS / once)))
        trains.append(stopwatch(lane.launch, max(1, round(SUSTAINED_MS / once))))
    return median(trains)


def _lap(
    problem: Problem, lane: Lane, short_ms: tuple[float, ...], sustained_ms: float | None
) -> Lap:
    middle = median(lane.samples_ms)
    samples = tuple(lane.samples_ms)
    return Lap(
        median_ms=middle,
        spread=spread(samples),
        tflops=problem.tflops(middle),
        samples_ms=samples,
        short_tflops=problem.tflops(median(short_ms)) if short_ms else None,
        short_ms=short_ms,
        sustained_tflops=None if sustained_ms is None else problem.tflops(sustained_ms),
    )
