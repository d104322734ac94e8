"""Checking, timing and racing candidates on one device, inside the process that may die of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from statistics import median

from kernels.attention import registry
from kernels.attention.problem import Problem, Specialization
from kernels.attention.template import Binary, CompileError, OutOfResources, Template
from tuner.evaluate import peers
from tuner.evaluate.child import FatalError, note
from tuner.evaluate.executor import Evaluation, Race
from tuner.evaluate.failure import describe
from tuner.evaluate.gate import Gate
from tuner.evaluate.inputs import Inputs
from tuner.evaluate.rounds import Lane, compared, decide, heat, interleave
from tuner.evaluate.stopwatch import Launch, Sample, Stopwatch
from tuner.evaluate.timing import spread, take_samples
from tuner.trial import Candidate, Measurement, Outcome


class Laboratory:
    """Keeps the inputs of the last problem and the binaries of the last candidates."""

    def __init__(
        self,
        device: str,
        capability: int,
        stopwatch: Stopwatch,
        wait: Callable[[], object],
        get: Callable[[str], Template] = registry.get,
        peer_launches: Callable[[Inputs], Mapping[str, Launch]] = peers.launches,
    ) -> None:
        """
        Args:
            device: torch's name of the device.
            wait: blocks until the device is idle; raises if its context is broken.
            get: finds a template by name.
            peer_launches: the peers' launches on some inputs.
        """
        self._device = device
        self._capability = capability
        self._stopwatch = stopwatch
        self._wait = wait
        self._get = get
        self._peer_launches = peer_launches
        self._gates: dict[Problem, Gate] = {}
        self._busy_until = -math.inf  # by time.perf_counter
        self._binary = lru_cache(maxsize=64)(self._compile)

    def evaluate(self, problem: Problem, candidate: Candidate, best_ms: float | None) -> Evaluation:
        """Gate, timing, and the gate once more on what the last timed launch left.

        Args:
            best_ms: Measurement.steady_ms of the best so far.

        Raises:
            FatalError: the device's context is broken.
        """
        began = time.perf_counter()
        timed = 0.0
        samples: list[Sample] = []

        def ended(outcome: Outcome, reason: str, result: Measurement | None = None) -> Evaluation:
            seconds = time.perf_counter() - began
            return Evaluation(candidate, outcome, reason, result, seconds, seconds - timed)

        def sample(launches: int) -> float:
            nonlocal timed
            note("timing")
            start = time.perf_counter()
            try:
                samples.append(self._stopwatch.sample(partial(launch, gate.own), launches))
                return samples[-1].steady_ms
            finally:
                self._busy_until = time.perf_counter()
                timed += self._busy_until - start

        try:
            note("making inputs")
            gate = self._gate(problem)
            note("loading")
            launch = self._launcher(problem, candidate)
            note("the correctness gate")
            verdict = gate.check(launch)
            if verdict.wrong:
                return ended(Outcome.WRONG, verdict.wrong)
            self._stopwatch.sensor.take()
            rested_s = time.perf_counter() - self._busy_until
            timing = take_samples(sample, best_ms, rested_s)
            for ms in timing.samples_ms:
                if not 0.0 < ms < math.inf:
                    return ended(Outcome.CRASHED, f"its launches were timed at {ms} ms")
            last = gate.check_last()
        except Exception as error:
            return ended(*self._blame(error))
        if last.wrong:
            return ended(Outcome.WRONG, f"after many launches: {last.wrong}")
        clock, power = self._stopwatch.sensor.take()
        counted = samples[-len(timing.samples_ms) :]  # what came before was to warm up
        measurement = _measurement(problem, counted, verdict.max_diff, clock, power)
        if timing.pruned and best_ms is not None:
            ratio = min(timing.samples_ms) / best_ms
            return ended(Outcome.PRUNED, f"{ratio:.2f} times the best so far", measurement)
        return ended(Outcome.OK, "", measurement)

    def race(
        self,
        problem: Problem,
        entrants: Sequence[Candidate],
        rounds: int,
        decide_s: float,
        without: Sequence[str] = (),
        hopefuls: Sequence[Candidate] = (),
    ) -> Race:
        """Interleaved rounds of `entrants` and all peers but those in `without`, at least as many
        as asked for; then of the fastest entrants alone until they are told apart or known to be
        tied, for `decide_s` at most. First comes a heat of `hopefuls`, of whom the fastest few join
        the entrants.

        All pass the gate before. What fails in an orderly way is left out with its reason. Before
        anything that can crash or hang, a note names it: the number of an entrant, with hopefuls
        counted after them, or the name of a peer.

        Raises:
            FatalError: the device's context is broken.
        """
        note("making inputs")
        gate = self._gate(problem)
        self._stopwatch.sensor.take_throttles()
        ours: dict[Candidate, Lane] = {}
        differences: dict[Candidate, float] = {}
        dropped: dict[Candidate, str] = {}
        for index, candidate in enumerate([*entrants, *hopefuls]):
            note(str(index))
            try:
                launch = self._launcher(problem, candidate)
                verdict = gate.check(launch)
                if verdict.wrong:
                    dropped[candidate] = verdict.wrong
                    continue
                lane = Lane(str(index), partial(launch, gate.own))
                lane.prepare(self._stopwatch)
            except Exception as error:
                dropped[candidate] = self._blame(error)[1]
                continue
            ours[candidate], differences[candidate] = lane, verdict.max_diff
        hoping = {c: lane for c, lane in ours.items() if c not in entrants}
        try:
            through = {lane.name for lane in heat(list(hoping.values()), self._stopwatch, note)}
        except Exception as error:
            # It ran before, as those of the rounds below.
            raise FatalError(describe(error)) from error
        for candidate, lane in hoping.items():
            if lane.name not in through:
                del ours[candidate]
        theirs: dict[str, Lane] = {}
        absent: dict[str, str] = {}
        for name, peer in self._peer_launches(gate.own).items():
            if name in without:
                continue
            note(name)
            lane = Lane(name, peer)
            try:
                lane.prepare(self._stopwatch)
            except Exception as error:
                absent[name] = self._blame(error)[1]
                continue
            theirs[name] = lane
        try:
            interleave([*ours.values(), *theirs.values()], rounds, self._stopwatch, note)
            clock, power = self._stopwatch.sensor.take()
            beside_peers = {c: tuple(lane.samples) for c, lane in ours.items()}
            decide(list(ours.values()), self._stopwatch, note, decide_s)
            self._busy_until = time.perf_counter()
        except Exception as error:
            # Whatever it is, the last note says whose it is.
            raise FatalError(describe(error)) from error
        return Race(
            entrants={
                candidate: _measurement(problem, samples, differences[candidate], clock, power)
                for candidate, samples in beside_peers.items()
            },
            deciding=dict(zip(ours, map(tuple, compared(list(ours.values()))))),
            peers={name: tuple(lane.samples_ms) for name, lane in theirs.items()},
            dropped=dropped,
            absent=absent,
            throttles=self._stopwatch.sensor.take_throttles(),
        )

    def _gate(self, problem: Problem) -> Gate:
        if problem not in self._gates:
            self._gates.clear()  # first, so that both problems' tensors are never there at once
            self._gates[problem] = Gate(problem, self._device)
        return self._gates[problem]

    def _compile(self, candidate: Candidate, specialization: Specialization) -> Binary:
        template = self._get(candidate.template)
        return template.compile(specialization, candidate.config, self._capability)

    def _launcher(self, problem: Problem, candidate: Candidate) -> Callable[[Inputs], None]:
        binary = self._binary(candidate, problem.specialization)
        template = self._get(candidate.template)

        def launch(inputs: Inputs) -> None:
            q, k, v, out = inputs.q, inputs.k, inputs.v, inputs.out
            template.launch(binary, q, k, v, out, None, inputs.sm_scale)

        return launch

    def _blame(self, error: Exception) -> tuple[Outcome, str]:
        """What an exception says of the candidate that was running.

        Raises:
            FatalError: it broke the device's context, which then fails whatever comes next.
        """
        reason = describe(error)
        try:
            self._wait()
        except Exception as broken:
            # What broke it; a library that noticed first may have called it by another name.
            raise FatalError(describe(broken)) from error
        name = type(error).__name__  # Triton and torch have exceptions of their own for these
        if isinstance(error, OutOfResources) or name in ("OutOfResources", "OutOfMemoryError"):
            return Outcome.OUT_OF_RESOURCES, reason
        if isinstance(error, CompileError):
            return Outcome.COMPILE_ERROR, reason
        return Outcome.CRASHED, reason


def _measurement(
    problem: Problem,
    samples: Sequence[Sample],
    max_diff: float,
    clock: int | None,
    power: int | None,
) -> Measurement:
    samples_ms = tuple(sample.ms for sample in samples)
    cycles = [sample.cycles for sample in samples if sample.cycles is not None]
    clocks = [sample.clock_mhz for sample in samples if sample.clock_mhz is not None]
    counted = 2 * len(cycles) > len(samples)  # a sample in which they were not is no reason
    median_ms = median(samples_ms)
    return Measurement(
        median_ms=median_ms,
        spread=spread(samples_ms),
        samples_ms=samples_ms,
        tflops=problem.tflops(median_ms),
        max_diff=max_diff,
        # NVML's reading is of another moment, and may be a third off.
        sm_clock_mhz=round(median(clocks)) if counted else clock,
        power_w=power,
        cycles=median(cycles) if counted else None,
    )
