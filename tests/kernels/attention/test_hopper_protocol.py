"""The barriers of the Hopper kernel as a model: producer and consumers take their steps in random
order, and neither wait for ever, nor read what has not landed, nor lose what is still read.

The model follows hopper_pipeline.produce and hopper_kernel.consume step by step: what they wait
for and arrive at, in their order. Matmuls in flight read until they are waited for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import pytest

from kernels.attention.hopper import HopperTemplate
from kernels.attention.problem import HEADDIMS, Specialization

ROWS = 64


class Named:
    """A hardware barrier: `consumers` arrive, one waits; complete when all have come."""

    def __init__(self, needed: int) -> None:
        self.needed, self.arrived, self.done = needed, 0, 0

    def arrive(self) -> None:
        self.arrived += 1
        assert self.arrived <= self.needed, "an arrival for the generation after this one"

    def complete(self) -> bool:
        """The one who waits counts in, too."""
        if self.arrived < self.needed:
            return False
        self.arrived = 0
        self.done += 1
        return True


class Ring:
    """Stages with what is in them, how often each was filled, and who reads it."""

    def __init__(self, length: int, consumers: int) -> None:
        self.length = length
        self.content: list[object] = [None] * length
        self.filled = [0] * length
        self.readers = [0] * length
        self.empty = [Named(consumers) for _ in range(length)]

    def fill(self, stage: int, what: object) -> None:
        assert not self.readers[stage], "filled while it is read"
        self.content[stage] = what
        self.filled[stage] += 1

    def full(self, stage: int, phase: int) -> bool:
        """As an mbarrier: whether the phase of this parity is over."""
        return self.filled[stage] > 0 and (self.filled[stage] - 1) % 2 == phase


class Block:
    """What a program works on: tiles with so many key blocks, and how many of them each consumer
    skips."""

    def __init__(self, config, tiles: list[tuple[int, list[int]]], whole: bool) -> None:
        self.consumers, self.stages = config["consumers"], config["stages"]
        self.q_buffers, self.ping_pong = config["q_buffers"], config["ping_pong"]
        self.tiles, self.whole = tiles, whole
        self.k, self.v = (Ring(self.stages, self.consumers) for _ in range(2))
        self.q = Ring(self.q_buffers, self.consumers)
        self.turn = [Named(1) for _ in range(self.consumers)]
        self.computed: list[list[tuple[int, int]]] = [[] for _ in range(self.consumers)]

    def produce(self) -> Iterator[object]:
        """Yields a condition to wait for, or None."""

        def fill(ring: Ring, number: int, what: object) -> Iterator[object]:
            stage = number % ring.length
            if number >= ring.length:
                yield ring.empty[stage].complete
            ring.fill(stage, what)
            yield None

        fills = 0
        for index, (blocks, _) in enumerate(self.tiles):
            if index == 0:
                yield from fill(self.q, 0, 0)
            yield from fill(self.k, fills, (index, blocks - 1))
            if index > 0:
                yield from fill(self.v, fills - 1, (index - 1, 0))
                yield from fill(self.q, index, index)
            for block in range(blocks - 1, 0, -1):
                fills += 1
                yield from fill(self.k, fills, (index, block - 1))
                yield from fill(self.v, fills - 1, (index, block))
            fills += 1
        yield from fill(self.v, fills - 1, (len(self.tiles) - 1, 0))
        for stage in range(min(fills, self.stages)):
            yield self.k.empty[stage].complete
            yield self.v.empty[stage].complete
        for stage in range(min(len(self.tiles), self.q_buffers)):
            yield self.q.empty[stage].complete

    def consume(self, me: int) -> Iterator[object]:
        def take() -> Iterator[object]:
            if self.ping_pong:
                yield self.turn[me].complete

        def give() -> None:
            if self.ping_pong:
                self.turn[(me + 1) % self.consumers].arrive()

        def begin(ring: Ring, stage: int, what: object) -> None:
            assert ring.content[stage] == what, (ring.content[stage], what)
            ring.readers[stage] += 1

        def end(ring: Ring, stage: int) -> None:
            ring.readers[stage] -= 1

        def following(position: tuple[int, int], length: int) -> tuple[int, int]:
            stage, phase = position
            return (0, phase ^ 1) if stage == length - 1 else (stage + 1, phase)

        if me == self.consumers - 1:
            give()
        at = q_at = (0, 0)
        index, left = 0, self.tiles[0][0]
        yield partial(self.q.full, *q_at)
        yield partial(self.k.full, *at)
        left -= 1
        begin(self.q, 0, 0)
        begin(self.k, 0, (0, left))
        yield None
        end(self.q, 0)
        end(self.k, 0)
        self.k.empty[0].arrive()
        if left == 0:
            self.q.empty[0].arrive()
        self.computed[me].append((0, left))
        held = (0, left)  # whose weights p are

        def step(
            at: tuple[int, int], before: tuple[int, int], scored: tuple[int, int]
        ) -> Iterator[object]:
            """start_matmuls, finish_scores."""
            yield partial(self.k.full, *at)
            yield from take()
            begin(self.q, q_at[0], scored[0])
            begin(self.k, at[0], scored)
            yield partial(self.v.full, *before)
            begin(self.v, before[0], held)
            give()
            yield None
            end(self.q, q_at[0])
            end(self.k, at[0])
            self.k.empty[at[0]].arrive()

        while left > 0 or index + 1 < len(self.tiles):
            before, spare = at, 0
            if left == 0:
                index += 1
                left, skipped = self.tiles[index]
                q_at = following(q_at, self.q_buffers)
                yield partial(self.q.full, *q_at)
                spare = skipped[me]
                left -= spare
                for _ in range(spare):
                    at = following(at, self.stages)
                    yield partial(self.k.full, *at)
                    yield from take()
                    give()
                    self.k.empty[at[0]].arrive()
            left -= 1
            at = following(at, self.stages)
            yield from step(at, before, (index, left))
            if not self.whole and left == 0:
                self.q.empty[q_at[0]].arrive()
            self.computed[me].append((index, left))
            yield None
            end(self.v, before[0])
            self.v.empty[before[0]].arrive()
            held = (index, left)
            for _ in range(spare):
                before = following(before, self.stages)
                yield partial(self.v.full, *before)
                self.v.empty[before[0]].arrive()
            if self.whole:
                for _ in range(left if random.random() < 0.7 else 0):
                    before, left = at, left - 1
                    at = following(at, self.stages)
                    yield from step(at, before, (index, left))
                    self.computed[me].append((index, left))
                    yield None
                    end(self.v, before[0])
                    self.v.empty[before[0]].arrive()
                    held = (index, left)
                if left == 0:
                    self.q.empty[q_at[0]].arrive()
        yield from take()
        yield partial(self.v.full, *at)
        begin(self.v, at[0], held)
        give()
        yield None
        end(self.v, at[0])
        self.v.empty[at[0]].arrive()
        if me == 0:
            yield from take()


def run(block: Block) -> None:
    """All of them to their ends, whoever can go on being picked at random."""
    actors = {"producer": block.produce()}
    actors |= {f"consumer {me}": block.consume(me) for me in range(block.consumers)}
    waits: dict[str, object] = dict.fromkeys(actors)
    while actors:
        ready = []
        names = list(actors)
        random.shuffle(names)
        for name in names:
            wait = waits[name]
            if wait is None or wait():  # type: ignore[operator]
                waits[name] = None
                ready.append(name)
                break
        assert ready, f"{sorted(actors)} wait for ever"
        for name in ready:
            try:
                waits[name] = next(actors[name])
            except StopIteration:
                del actors[name]


def tiles(config, lengths: list[int]) -> list[tuple[int, list[int]]]:
    """Tiles of so many blocks, as a causal mask makes them: the lower a consumer's number, the more
    of the last blocks it may skip (hopper_schedule.Plan.spare)."""
    made = []
    for blocks in lengths:
        end = blocks * config["BLOCK_N"] - random.randrange(config["BLOCK_N"])
        skipped = []
        for me in range(config["consumers"]):
            last = end - ROWS * (config["consumers"] - 1 - me)
            seen = -(-last // config["BLOCK_N"])
            skipped.append(max(0, min(blocks - max(seen, 1), 2)))
        made.append((blocks, skipped))
    return made


CONFIGS = sorted(
    {
        tuple(sorted(config.items()))
        for headdim in HEADDIMS
        for config in HopperTemplate().feasible(Specialization(headdim, True, "fp16"), 90)
        if config["defer_rescale"]
    }
)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_config_comes_to_its_end_and_reads_what_it_should(config):
    config = dict(config)
    for seed in range(12):
        random.seed(seed)
        lengths = [random.choice([1, 1, 2, 3, 5, 9]) for _ in range(random.randint(1, 7))]
        block = Block(config, tiles(config, lengths), config["whole_loop"])
        run(block)
        for me, computed in enumerate(block.computed):
            expected = []
            for index, (blocks, skipped) in enumerate(block.tiles):
                # The first tile's are all computed: there is nothing to overlap them with.
                spare = skipped[me] if index else 0
                expected += [(index, b) for b in range(blocks - 1 - spare, -1, -1)]
            assert computed == expected
        for ring in (block.k, block.v, block.q):
            assert not any(ring.readers)
            assert not any(barrier.arrived for barrier in ring.empty)
        assert not any(barrier.arrived for barrier in block.turn)


def test_the_model_finds_a_stage_too_many_skipped():
    """More blocks skipped than there are stages: the consumer waits for keys that come after values
    whose stage it holds."""
    config = {"consumers": 2, "stages": 2, "q_buffers": 1, "ping_pong": True}
    with pytest.raises(AssertionError, match="wait for ever"):
        run(Block(config, [(2, [0, 0]), (6, [4, 0])], whole=False))


def test_the_model_finds_a_reader_that_lets_go_too_early():
    config = {"consumers": 2, "stages": 2, "q_buffers": 1, "ping_pong": False}
    found = 0
    for seed in range(200):
        random.seed(seed)
        block = Block(config, [(5, [0, 0])], whole=False)
        for ring in (block.k, block.v):
            for barrier in ring.empty:
                barrier.needed = 1  # as if one consumer spoke for both
        try:
            run(block)
        except AssertionError:
            found += 1
    assert found
