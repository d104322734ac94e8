"""The barriers of the Hopper kernel as a model: the warps of producer and consumers go on in random
order, and neither wait for ever, nor read what has not landed, nor lose what is still read.

The model follows hopper_pipeline.produce and hopper_kernel.consume step by step: what they wait
for and arrive at, in their order. Each of a consumer's four warps goes on by itself: between two
barriers among them they drift apart. Matmuls in flight read until they are waited for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

WARPS = 4  # of a consumer

Condition = Callable[[], bool]
Who = tuple[int, int]  # consumer and warp
PRODUCER = (-1, 0)


class Named:
    """A hardware barrier: complete when so many warps have arrived, and then empty again."""

    def __init__(self, warps: int) -> None:
        self.warps = warps
        self.arrived: set[Who] = set()
        self.done = 0

    def arrive(self, who: Who) -> None:
        assert who not in self.arrived, "an arrival for the generation after this one"
        self.arrived.add(who)
        if len(self.arrived) == self.warps:
            self.arrived.clear()
            self.done += 1

    def sync(self, who: Who) -> Condition:
        """Arrive; what must hold before one goes on."""
        generation = self.done
        self.arrive(who)
        return lambda: self.done > generation


class Ring:
    """Stages with what is in them, how often each was filled, and who reads it."""

    def __init__(self, length: int, consumers: int) -> None:
        self.length = length
        self.content: list[object] = [None] * length
        self.filled = [0] * length
        self.readers = [0] * length
        self.empty = [Named(WARPS * consumers + 1) for _ in range(length)]

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

    def __init__(
        self, config, tiles: list[tuple[int, list[int]]], whole: bool, held: bool = False
    ) -> None:
        self.consumers, self.stages = config["consumers"], config["stages"]
        self.q_buffers, self.ping_pong = config["q_buffers"], config["ping_pong"]
        self.tiles, self.whole = tiles, whole
        self.held = held  # whether all of q is kept in registers
        self.k, self.v = (Ring(self.stages, self.consumers) for _ in range(2))
        self.q = Ring(self.q_buffers, self.consumers)
        self.turn = [Named(2 * WARPS) for _ in range(self.consumers)]
        self.group = [Named(WARPS) for _ in range(self.consumers)]
        self.at_once: dict[tuple[int, int, int], int] = {}
        everyone = [(me, warp) for me in range(self.consumers) for warp in range(WARPS)]
        self.computed: dict[Who, list[tuple[int, int]]] = {who: [] for who in everyone}

    def begin(self, ring: Ring, stage: int, what: object, who: Who) -> None:
        """Start a matmul that reads a stage."""
        assert ring.content[stage] == what, (ring.content[stage], what)
        ring.readers[stage] += 1

    def end(self, ring: Ring, stage: int) -> None:
        """The matmul has been waited for."""
        ring.readers[stage] -= 1

    def begin_scores(self, q_stage: int, k_stage: int, what: tuple[int, int], who: Who) -> None:
        """Start q·kᵀ."""
        if not self.held:
            self.begin(self.q, q_stage, what[0], who)
        self.begin(self.k, k_stage, what, who)

    def end_scores(self, q_stage: int, k_stage: int) -> None:
        if not self.held:
            self.end(self.q, q_stage)
        self.end(self.k, k_stage)

    def take(self, who: Who) -> Iterator[Condition | None]:
        if self.ping_pong:
            yield self.turn[who[0]].sync(who)

    def give(self, who: Who) -> None:
        if self.ping_pong:
            self.turn[(who[0] + 1) % self.consumers].arrive(who)

    def give_first_turn(self, who: Who) -> None:
        """To the first consumer, by the last."""
        if who[0] == self.consumers - 1:
            self.give(who)

    def release(self, ring: Ring, stage: int, who: Who) -> Iterator[Condition | None]:
        """Report that this warp is done reading a stage."""
        ring.empty[stage].arrive(who)
        yield from ()

    def gather(self, who: Who) -> Iterator[Condition | None]:
        """A barrier among the warps of a consumer."""
        yield self.group[who[0]].sync(who)

    def whole_blocks(self, me: int, index: int, left: int) -> int:
        """How many of a tile's last blocks have the loop without a mask: all or none."""
        if not self.whole:
            return 0
        share = left if random.random() < 0.7 else 0
        return self.at_once.setdefault((me, index, left), share)  # the same for all its warps

    def produce(self) -> Iterator[Condition | None]:
        """Yields a condition to wait for, or None."""

        def fill(ring: Ring, number: int, what: object) -> Iterator[Condition | None]:
            stage = number % ring.length
            if number >= ring.length:
                yield ring.empty[stage].sync(PRODUCER)
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
            yield self.k.empty[stage].sync(PRODUCER)
            yield self.v.empty[stage].sync(PRODUCER)
        for stage in range(min(len(self.tiles), self.q_buffers)):
            yield self.q.empty[stage].sync(PRODUCER)

    def consume(self, who: Who) -> Iterator[Condition | None]:
        """One warp of a consumer; as `produce`."""
        me, _ = who

        def following(position: tuple[int, int], length: int) -> tuple[int, int]:
            stage, phase = position
            return (0, phase ^ 1) if stage == length - 1 else (stage + 1, phase)

        def hold(tile: int) -> Iterator[Condition | None]:
            """hold, release: this warp's own rows."""
            if self.held:
                self.begin(self.q, q_at[0], tile, who)
                yield None
                self.end(self.q, q_at[0])
                yield from self.release(self.q, q_at[0], who)

        self.give_first_turn(who)
        at = q_at = (0, 0)
        index, left = 0, self.tiles[0][0]
        yield partial(self.q.full, *q_at)
        yield partial(self.k.full, *at)
        yield from hold(0)
        left -= 1
        self.begin_scores(0, 0, (0, left), who)
        yield None
        self.end_scores(0, 0)
        yield from self.release(self.k, 0, who)
        if left == 0 and not self.held:
            yield from self.release(self.q, 0, who)
        self.computed[who].append((0, left))
        held = (0, left)  # whose weights p are
        yield from self.gather(who)

        def step(
            at: tuple[int, int], before: tuple[int, int], scored: tuple[int, int]
        ) -> Iterator[Condition | None]:
            """start_matmuls, finish_scores."""
            yield partial(self.k.full, *at)
            yield from self.take(who)
            self.begin_scores(q_at[0], at[0], scored, who)
            yield partial(self.v.full, *before)
            self.begin(self.v, before[0], held, who)
            self.give(who)
            yield from self.gather(who)
            yield None
            self.end_scores(q_at[0], at[0])
            yield from self.release(self.k, at[0], who)

        def finish(before: tuple[int, int]) -> Iterator[Condition | None]:
            """finish_product."""
            yield None
            self.end(self.v, before[0])
            yield from self.release(self.v, before[0], who)

        while left > 0 or index + 1 < len(self.tiles):
            before, spare, ends = at, 0, left == 0
            if ends:
                index += 1
                left, skipped = self.tiles[index]
                q_at = following(q_at, self.q_buffers)
                yield partial(self.q.full, *q_at)
                yield from hold(index)
                spare = skipped[me]
                left -= spare
                for _ in range(spare):
                    at = following(at, self.stages)
                    yield partial(self.k.full, *at)
                    yield from self.take(who)
                    self.give(who)
                    yield from self.release(self.k, at[0], who)
                yield from self.gather(who)
            left -= 1
            at = following(at, self.stages)
            yield from step(at, before, (index, left))
            if not self.whole and left == 0 and not self.held:
                yield from self.release(self.q, q_at[0], who)
            self.computed[who].append((index, left))
            yield from finish(before)
            held = (index, left)
            if ends:
                for _ in range(spare):
                    before = following(before, self.stages)
                    yield partial(self.v.full, *before)
                    yield from self.release(self.v, before[0], who)
                yield from self.gather(who)
            for _ in range(self.whole_blocks(me, index, left)):
                before, left = at, left - 1
                at = following(at, self.stages)
                yield from step(at, before, (index, left))
                self.computed[who].append((index, left))
                yield from finish(before)
                held = (index, left)
            if self.whole and left == 0 and not self.held:
                yield from self.release(self.q, q_at[0], who)
        yield from self.take(who)
        yield partial(self.v.full, *at)
        self.begin(self.v, at[0], held, who)
        self.give(who)
        yield from finish(at)
        if me == 0:
            yield from self.take(who)


def run(block: Block) -> None:
    """All of them to their ends. The first that can go on does, in an order that changes at every
    step, or so rarely that some get as far ahead of the others as anything lets them."""
    actors = {PRODUCER: block.produce()} | {who: block.consume(who) for who in block.computed}
    waits: dict[Who, Condition | None] = dict.fromkeys(actors)
    order = list(actors)
    random.shuffle(order)
    restless = random.choice([1.0, 0.1, 0.01])
    while order:
        if random.random() < restless:
            random.shuffle(order)
        for who in order:
            wait = waits[who]
            if wait is None or wait():
                break
        else:
            raise AssertionError(f"{sorted(order)} wait for ever")
        try:
            waits[who] = next(actors[who])
        except StopIteration:
            order.remove(who)
