"""Interleaved rounds: every lane is sampled once per round, so that drift and power capping hit all
alike. What is compared is what happened within a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tuner.evaluate.stopwatch import Launch, Stopwatch
from tuner.evaluate.timing import launches_per_sample, rotated

# Longer than in a first timing, since a few per cent are at stake.
SAMPLE_MS = 15.0
# Load before the first round, so that the power cap has set in.
WARM_UP_MS = 400.0


@dataclass
class Lane:
    """One of those that are compared."""

    name: str
    launch: Launch
    launches: int = 0  # per sample
    samples_ms: list[float] = field(default_factory=list)  # per launch, one per round

    def prepare(self, stopwatch: Stopwatch, sample_ms: float = SAMPLE_MS) -> None:
        """Launch a few times and choose how many launches make a sample. May raise whatever the
        launch raises."""
        launch_ms = min(stopwatch(self.launch, 1) for _ in range(3))
        self.launches = launches_per_sample(launch_ms, sample_ms)


def interleave(
    lanes: Sequence[Lane],
    rounds: int,
    stopwatch: Stopwatch,
    announce: Callable[[str], object] = lambda _: None,
) -> None:
    """Append one sample per round to every lane, each round in a rotated order.

    Args:
        lanes: prepared ones.
        announce: told a lane's name before it runs.
    """
    if not lanes:
        return
    repeats = max(1, round(WARM_UP_MS / (SAMPLE_MS * len(lanes))))
    for lane in lanes:
        announce(lane.name)
        stopwatch(lane.launch, repeats * lane.launches)
    stopwatch.sensor.take()  # forget what was read during the warm-up
    for index in range(rounds):
        for position in rotated(len(lanes), index):
            lane = lanes[position]
            announce(lane.name)
            lane.samples_ms.append(stopwatch(lane.launch, lane.launches))
