"""Interleaved rounds: in whose order, at which clock, and until when the fastest go on alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tuner.evaluate import paired
from tuner.evaluate.rounds import DECIDE_S, Lane, compared, decide, heat, interleave, oddest
from tuner.evaluate.sensor import Sensor
from tuner.evaluate.stopwatch import Sample, Stopwatch


def test_rounds_are_interleaved() -> None:
    ran: list[str] = []
    lanes = [Lane(name, lambda name=name: ran.append(name)) for name in ("a", "b", "c")]  # type: ignore[misc]

    class Timer(Stopwatch):
        sensor = Sensor(None)

        def __call__(self, launch: Callable[[], object], launches: int) -> float:
            launch()
            return 15.0

    announced: list[str] = []
    for lane in lanes:
        lane.prepare(Timer())
    ran.clear()
    interleave(lanes, 3, Timer(), announced.append)
    # A warm-up comes first. Three lanes are alike after four rounds.
    assert ran == announced == [*"abc", *"acb", *"bac", *"cab", *"bca"]
    assert all(lane.samples_ms == [15.0] * 4 for lane in lanes)
    interleave([], 3, Timer())


def test_after_a_far_slower_lane_the_next_one_runs_unmeasured_first() -> None:
    runs: list[tuple[str, int]] = []

    class Timer(Stopwatch):
        sensor = Sensor(None)

        def __call__(self, launch: Callable[[], object], launches: int) -> float:
            name = str(launch())
            runs.append((name, launches))
            return {"quick": 1.0, "like it": 1.5, "slow": 3.0}[name]

    names = ("quick", "like it", "slow")
    lanes = [Lane(name, lambda name=name: name, 7) for name in names]  # type: ignore[misc]
    interleave(lanes, 4, Timer())
    del runs[:3]  # the warm-up
    settling = {"quick": 60, "like it": 40}  # launches that last 60 ms
    follows = [(runs[i - 1][0], *runs[i]) for i in range(1, len(runs))]
    after_slow = [(name, launches) for before, name, launches in follows if before == "slow"]
    assert after_slow
    assert all(name == "slow" or launches == settling[name] for name, launches in after_slow)
    elsewhere = [launches for before, _, launches in follows if before != "slow"]
    assert set(elsewhere) == {7}
    assert [len(lane.samples_ms) for lane in lanes] == [4] * 3


class Powered(Stopwatch):
    """Launches take what they say, and the more the lower the clock is: each lasts for a while."""

    sensor = Sensor(None)

    def __init__(self, noise: float) -> None:
        self.noise, self.draw = noise, random.Random(0)
        self.runs: list[tuple[float, int]] = []

    def __call__(self, launch: Callable[[], object], launches: int) -> float:
        clock = 1 + 0.5 * ((len(self.runs) // 16) % 3)
        ms = float(launch())  # type: ignore[arg-type]
        self.runs.append((ms, launches))
        return ms * clock * (1 + self.draw.gauss(0, self.noise))


def field(times: Sequence[float]) -> list[Lane]:
    return [Lane(str(ms), lambda ms=ms: ms, 3) for ms in times]  # type: ignore[misc]


def test_a_heat_leaves_the_fastest_whatever_the_clock_and_the_noise() -> None:
    times = [1.0 + 0.02 * ((7 * place) % 16) for place in range(16)]
    for _ in range(5):
        lanes = field(times)
        through = heat(lanes, Powered(0.03), places=4)
        assert len(through) == 4
        assert {"1.0", "1.02"} <= {lane.name for lane in through}  # of 1 to 1.3
        assert all(lane.samples == [] and lane.launches == 3 for lane in lanes)


def test_in_a_heat_the_slower_half_leaves_and_samples_are_short() -> None:
    stopwatch, announced = Powered(0.0), list[str]()
    times = [1.0 + place / 40 for place in range(16)]
    through = heat(field(times), stopwatch, announced.append, 4)
    assert [lane.name for lane in through] == ["1.0", "1.025", "1.05", "1.075"]
    runs = {ms: [launches for each, launches in stopwatch.runs if each == ms] for ms in times}
    # Three launches and a warm-up; sixteen rounds of all, sixteen of half of them.
    assert [len(runs[ms]) for ms in times] == 8 * [3 + 1 + 32] + 8 * [3 + 1 + 16]
    # At the clock at which each was prepared, the lowest of which doubles its time.
    assert all(2.0 <= ms * launches <= 6.5 for ms in times for launches in runs[ms][4:])
    assert 200 < sum(ms * runs[ms][3] for ms in times) < 500  # the load before
    assert set(announced) == {str(ms) for ms in times}


def test_without_more_than_there_are_places_there_is_no_heat() -> None:
    stopwatch, lanes = Powered(0.0), field([1.0, 2.0, 3.0])
    assert heat(lanes, stopwatch, places=3) == lanes
    assert not stopwatch.runs


def test_a_launch_that_takes_long_runs_once_a_sample_in_a_heat() -> None:
    stopwatch = Powered(0.0)
    heat(field([20.0, 21.0, 22.0]), stopwatch, places=2)
    assert {launches for _, launches in stopwatch.runs[12:]} == {1}


class Clocked(Sensor):
    """Reads the clocks that a test gives it."""

    def __init__(self, clocks: list[int]) -> None:
        super().__init__(None)
        self._given = iter(clocks)

    def read(self) -> None:
        self._clocks.append(next(self._given))
        self._powers.append(600.0)


def test_a_round_at_an_odd_clock_is_taken_again() -> None:
    class Timer(Stopwatch):
        # Two lanes: a warm-up, six rounds of which the third is odd, and that once more.
        sensor = Clocked([1, 1, *[1500, 1510] * 2, 900, 905, *[1490, 1500] * 3, 1500, 1500])
        calls = 0

        def __call__(self, launch: Callable[[], object], launches: int) -> float:
            self.calls += 1
            self.sensor.read()
            return 100.0 + self.calls

    lanes = [Lane(name, lambda: None, 1) for name in "ab"]
    stopwatch = Timer()
    interleave(lanes, 5, stopwatch)
    assert stopwatch.calls == 2 + 2 * 6 + 2
    assert [len(lane.samples_ms) for lane in lanes] == [6, 6]
    assert {lane.samples_ms[2] for lane in lanes} == {115.0, 116.0}


def test_a_clock_that_stays_odd_does_not_hold_up_a_race() -> None:
    class Timer(Stopwatch):
        sensor = Clocked([1, *[1500, 900] * 50])

        def __call__(self, launch: Callable[[], object], launches: int) -> float:
            self.sensor.read()
            return 1.0

    (lane,) = lanes = [Lane("a", lambda: None, 1)]
    interleave(lanes, 6, Timer())
    assert len(lane.samples_ms) == 6


class Racetrack(Stopwatch):
    """Times lanes that take what their launch says, give or take, and counts the seconds."""

    sensor = Sensor(None)

    def __init__(self, noise: float, seed: int = 0) -> None:
        self.seconds = 0.0
        self._noise, self._random = noise, random.Random(seed)

    def __call__(self, launch: Callable[[], object], launches: int) -> float:
        ms = float(str(launch())) * (1 + self._random.gauss(0, self._noise))
        self.seconds += launches * ms / 1000
        return ms

    def lanes(self, *ms: float) -> list[Lane]:
        return [Lane(f"{each}", lambda each=each: each, 15) for each in ms]  # type: ignore[misc]


def test_the_fastest_go_on_alone_until_they_are_told_apart() -> None:
    track = Racetrack(noise=0.03)
    lanes = track.lanes(1.0, 1.02, 1.04, 1.3)
    interleave(lanes, 8, track)
    before, began = [list(lane.samples_ms) for lane in lanes], track.seconds
    decide(lanes, track, clock=lambda: track.seconds)
    counts = [len(lane.samples_ms) for lane in lanes]
    assert counts[0] == counts[1] > counts[2] >= counts[3] == 8  # the beaten leave
    assert [lane.samples_ms[:8] for lane in lanes] == before
    assert paired.slower(lanes[1].samples_ms, lanes[0].samples_ms)
    assert track.seconds - began < DECIDE_S


def test_those_that_are_alike_are_raced_for_some_seconds_only() -> None:
    track = Racetrack(noise=0.03)
    lanes = track.lanes(1.0, 1.0, 1.0)
    interleave(lanes, 8, track)
    began = track.seconds
    decide(lanes, track, clock=lambda: track.seconds)
    assert DECIDE_S <= track.seconds - began < 1.2 * DECIDE_S
    assert sum(len(lane.samples_ms) > 40 for lane in lanes) >= 2


def test_cycles_have_other_neighbours_also_when_some_go_on() -> None:
    ran: list[str] = []

    class Timer(Stopwatch):
        sensor = Sensor(None)

        def __call__(self, launch: Callable[[], object], launches: int) -> float:
            launch()
            return 15.0

    lanes = [Lane(name, lambda name=name: ran.append(name), 1) for name in "abcdef"]  # type: ignore[misc]
    interleave(lanes, 6, Timer())
    cycles = set()
    for _ in range(8):
        ran.clear()
        interleave(lanes, 6, Timer(), warm_up_ms=0)
        assert len(ran) == 36  # none of them to warm up
        cycles.add("".join(ran))
    assert len(cycles) > 4


def test_nothing_is_run_where_there_is_nothing_to_tell() -> None:
    track = Racetrack(noise=0.0)
    for lanes in ([], track.lanes(1.0), track.lanes(1.0, 1.0), track.lanes(1.0, 1.01)):
        interleave(lanes, 8, track)
        began = track.seconds
        decide(lanes, track)
        assert track.seconds == began


def test_unknown_clocks_are_not_odd() -> None:
    assert oddest([None, None]) is None
    assert oddest([1500.0, None, 1480.0]) is None
    assert oddest([1500.0, 1500.0, 1400.0]) == 2


class Capped(Racetrack):
    """A card whose clock goes up and down, which moves its times but not its cycles."""

    def sample(self, launch: Callable[[], object], launches: int) -> Sample:
        clock = 1500 * (1 + self._random.gauss(0, 0.03))
        cycles = float(str(launch())) * 1.5e6 * (1 + self._random.gauss(0, 0.003))
        self.seconds += launches * cycles / clock / 1e6
        return Sample(cycles / clock / 1e3, cycles)


def test_by_cycles_a_heat_and_few_rounds_tell_what_times_do_not() -> None:
    track = Capped(noise=0.03)
    times = [1.0, 1.01, *(1.02 + place / 200 for place in range(14))]
    assert [lane.name for lane in heat(track.lanes(*times), track, places=2)] == ["1.0", "1.01"]
    lanes = track.lanes(1.0, 1.01, 1.01)
    interleave(lanes, 24, track)
    began = track.seconds
    decide(lanes, track, clock=lambda: track.seconds)
    assert track.seconds == began  # there was nothing left to decide
    first, second, third = compared(lanes)
    assert paired.slower(second, first)
    assert not paired.slower(second, third)


def test_one_sample_without_cycles_is_enough_to_compare_all_by_time() -> None:
    lanes = [Lane(name, lambda: None, 1, [Sample(2.0, 3e6), Sample(1.0, 1e6)]) for name in "ab"]
    assert compared(lanes) == [[2.0, 2 / 3], [2.0, 2 / 3]]
    lanes[1].samples[1] = Sample(1.5)
    assert compared(lanes) == [[2.0, 1.0], [2.0, 1.5]]
