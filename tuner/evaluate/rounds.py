"""Interleaved rounds: every lane is sampled once per round, so that drift and power capping hit all
alike. What is compared is what happened within a round, by its cycles where they are counted (see
`cycles`), else by its time."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from statistics import median

from tuner.evaluate import paired
from tuner.evaluate.stopwatch import Launch, Sample, Stopwatch
from tuner.evaluate.timing import (
    DECIDE_S,
    HEAT_ROUNDS,
    HEAT_SAMPLE_MS,
    PLACES,
    balanced,
    cycle,
    launches_per_sample,
)

# Longer than in a first timing, since a few per cent are at stake.
SAMPLE_MS = 15.0
# A lane this many times slower than the fastest draws less power and leaves a higher clock to the
# next, which therefore runs so long before it is timed.
FAR_SLOWER = 1.7
SETTLE_MS = 60.0
# Load before the first round. The card is under its power cap by then, from trials or the runs of a
# benchmark just before: this is for the pause since, in which binaries were loaded and checked.
PAUSED_WARM_UP_MS = 400.0
# A round whose clock is further than this from that of most rounds is taken again, at most so many
# times a race: by then the clock is not odd, it is what there is.
ODD_CLOCK = 0.05
MOST_REPEATS = 4
# Rounds of the fastest alone between two looks at who is left.
_AT_ONCE = 8


@dataclass
class Lane:
    """One of those that are compared."""

    name: str
    launch: Launch
    launches: int = 0  # per sample
    samples: list[Sample] = field(default_factory=list)  # one per round

    @property
    def samples_ms(self) -> list[float]:
        """ms per launch, by round."""
        return [sample.ms for sample in self.samples]

    def prepare(self, stopwatch: Stopwatch) -> None:
        """Launch a few times and choose how many launches make a sample. May raise whatever the
        launch raises."""
        launch_ms = min(stopwatch(self.launch, 1) for _ in range(3))
        self.launches = launches_per_sample(launch_ms, SAMPLE_MS)


def compared(lanes: Sequence[Lane]) -> list[list[float]]:
    """What `lanes` are compared by, per round: the ms of a launch, at one clock if the cycles of
    all samples were counted."""
    if any(sample.cycles is None for lane in lanes for sample in lane.samples):
        return [lane.samples_ms for lane in lanes]
    return [[sample.steady_ms for sample in lane.samples] for lane in lanes]


def interleave(
    lanes: Sequence[Lane],
    rounds: int,
    stopwatch: Stopwatch,
    announce: Callable[[str], object] = lambda _: None,
    warm_up_ms: float = PAUSED_WARM_UP_MS,
    sample_ms: float = SAMPLE_MS,
) -> None:
    """Append one sample per round to every lane, each round in another order, each cycle beside
    other neighbours. Rounds at an odd clock are taken again.

    Args:
        lanes: prepared ones.
        rounds: how many at least. There are whole cycles of them, in which all are treated alike.
        announce: told a lane's name before it runs.
        warm_up_ms: how long all run before the first round, at least once each, unless it is 0:
            then they have just run, and have samples.
        sample_ms: what their samples were prepared to last.
    """
    if not lanes:
        return
    if warm_up_ms:
        bursts = max(1, round(warm_up_ms / (sample_ms * len(lanes))))
        launch_ms = []
        for lane in lanes:
            announce(lane.name)
            launch_ms.append(stopwatch(lane.launch, bursts * lane.launches))
    else:
        launch_ms = [median(lane.samples_ms) for lane in lanes]
    slow = [ms > FAR_SLOWER * min(launch_ms) for ms in launch_ms]
    sensor = stopwatch.sensor
    sensor.take()  # forget what was read during the warm-up
    before = len(lanes[0].samples)
    turn = cycle(len(lanes))
    rounds = -(-rounds // turn) * turn
    last = len(lanes) - 1

    def sample(index: int) -> float | None:
        """Run a round in place of its number; the SM clock meanwhile."""
        nonlocal last
        first, clocks = sensor.readings, []
        places = list(range(len(lanes)))
        random.Random((before + index) // turn).shuffle(places)
        for place in balanced(len(lanes), index):
            position = places[place]
            lane = lanes[position]
            announce(lane.name)
            if slow[last] and not slow[position]:
                stopwatch(lane.launch, max(1, round(SETTLE_MS / launch_ms[position])))
            taken = stopwatch.sample(lane.launch, lane.launches)
            if not 0.0 < taken.ms < math.inf:  # while we know whose it is
                raise ValueError(f"a round was timed at {taken.ms} ms")
            lane.samples[before + index : before + index + 1] = [taken]
            clocks += [taken.clock_mhz] if taken.clock_mhz else []
            last = position
        return median(clocks) if clocks else sensor.clock_since(first)

    clocks = [sample(index) for index in range(rounds)]
    for _ in range(MOST_REPEATS):
        odd = oddest(clocks)
        if odd is None:
            return
        clocks[odd] = sample(odd)


def heat(
    lanes: Sequence[Lane],
    stopwatch: Stopwatch,
    announce: Callable[[str], object] = lambda _: None,
    places: int = PLACES,
) -> list[Lane]:
    """The fastest `places` of `lanes`, fastest first. By short rounds: after some sixteen (whole
    cycles of them) the slower half leaves, until there is a place for each."""
    if len(lanes) <= places:
        return list(lanes)
    left = [(_short(lane, stopwatch, announce), lane) for lane in lanes]
    warm_up_ms = PAUSED_WARM_UP_MS
    while len(left) > places:
        running = [short for short, _ in left]
        interleave(running, HEAT_ROUNDS, stopwatch, announce, warm_up_ms, HEAT_SAMPLE_MS)
        warm_up_ms = 0.0
        rounds = compared(running)
        # By what the round took the others: rounds are not all at one clock.
        middles = [median(each) for each in zip(*rounds)]
        relative = [median(own / middle for own, middle in zip(of, middles)) for of in rounds]
        order = sorted(range(len(left)), key=relative.__getitem__)
        left = [left[place] for place in order[: max(places, len(left) // 2)]]
    return [lane for _, lane in left]


def _short(lane: Lane, stopwatch: Stopwatch, announce: Callable[[str], object]) -> Lane:
    """The lane for a heat, whose samples last HEAT_SAMPLE_MS or a launch with all that goes with
    it, such as emptying a cache before."""
    announce(lane.name)
    began = time.perf_counter()
    ms = min(stopwatch(lane.launch, 1) for _ in range(3))
    each_ms = max(ms, (time.perf_counter() - began) * 1e3 / 3)
    return Lane(lane.name, lane.launch, max(1, round(HEAT_SAMPLE_MS / each_ms)))


def decide(
    lanes: Sequence[Lane],
    stopwatch: Stopwatch,
    announce: Callable[[str], object] = lambda _: None,
    seconds: float = DECIDE_S,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Go on with those `lanes` that may be the fastest, after `interleave`, until it is told from
    each of the others or is known to be tied with it, for `seconds` at most. A lane that is beaten
    leaves: the samples of those that stay are still of the same rounds."""
    end = clock() + seconds
    left = list(lanes)
    while left:
        rounds = compared(left)
        fastest = min(rounds, key=median)
        stays = [not paired.slower(own, fastest) for own in rounds]
        left = list(compress(left, stays))
        if clock() >= end or paired.settled(list(compress(rounds, stays))):
            return
        interleave(left, _AT_ONCE, stopwatch, announce, warm_up_ms=0)


def oddest(clocks: Sequence[float | None]) -> int | None:
    """The round whose clock is furthest from the median, if that is too far."""
    known = [clock for clock in clocks if clock]
    if not known:
        return None
    middle = median(known)
    distances = [abs(clock / middle - 1) if clock else 0.0 for clock in clocks]
    worst = max(range(len(clocks)), key=distances.__getitem__)
    return worst if distances[worst] > ODD_CLOCK else None
