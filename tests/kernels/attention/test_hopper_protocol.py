"""The protocol of the Hopper kernel's barriers, on the model of it in hopper_protocol.py: that it
comes to its end in whatever order the warps go on, and that the model finds one that is broken."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kernels.attention.hopper import HopperTemplate
from kernels.attention.problem import HEADDIMS, Specialization
from tests.kernels.attention.hopper_protocol import WARPS, Block, Condition, Named, Ring, Who, run

ROWS = 64


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


# What the protocol depends on.
PARAMETERS = ("BLOCK_N", "consumers", "ping_pong", "q_buffers", "stages", "whole_loop")
CONFIGS = sorted(
    {
        (*((name, config[name]) for name in PARAMETERS), ("held", config["q_held"] == headdim))
        for headdim in HEADDIMS
        for config in HopperTemplate().feasible(Specialization(headdim, True, "fp16"), 90)
    }
)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_config_comes_to_its_end_and_reads_what_it_should(config):
    config = dict(config)
    for seed in range(24):
        random.seed(seed)
        lengths = [random.choice([1, 1, 2, 3, 5, 9]) for _ in range(random.randint(1, 7))]
        block = Block(config, tiles(config, lengths), config["whole_loop"], config["held"])
        run(block)
        for (me, _), computed in block.computed.items():
            expected = []
            for index, (blocks, skipped) in enumerate(block.tiles):
                # The first tile's are all computed: there is nothing to overlap them with.
                spare = skipped[me] if index else 0
                expected += [(index, b) for b in range(blocks - 1 - spare, -1, -1)]
            assert computed == expected
        for ring in (block.k, block.v, block.q):
            assert not any(ring.readers)
            assert not any(barrier.arrived for barrier in ring.empty)
        assert not any(barrier.arrived for barrier in (*block.turn, *block.group))


PLAIN = {"consumers": 2, "stages": 2, "q_buffers": 1, "ping_pong": False}
PING_PONG = {**PLAIN, "ping_pong": True}


def test_the_model_finds_a_stage_too_many_skipped():
    """More blocks skipped than there are stages: the consumer waits for keys that come after values
    whose stage it holds."""
    with pytest.raises(AssertionError, match="wait for ever"):
        run(Block(PING_PONG, [(2, [0, 0]), (6, [4, 0])], whole=False))


class Elected(Block):
    """Warp 0 of a consumer reports for all four."""

    gathered = False  # whether they wait for each other before that

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        for ring in (self.k, self.v, self.q):
            ring.empty = [Named(self.consumers + 1) for _ in ring.empty]

    def release(self, ring: Ring, stage: int, who: Who) -> Iterator[Condition | None]:
        if self.gathered:
            yield from self.gather(who)
        if who[1] == 0:
            ring.empty[stage].arrive(who)


class ElectedAndGathered(Elected):
    gathered = True


class OneForBoth(Block):
    """Consumer 0 reports for the other."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        for ring in (self.k, self.v, self.q):
            ring.empty = [Named(WARPS + 1) for _ in ring.empty]

    def release(self, ring: Ring, stage: int, who: Who) -> Iterator[Condition | None]:
        if who[0] == 0:
            ring.empty[stage].arrive(who)
        yield from ()


class TooEarly(Block):
    """A stage of keys is reported once the matmul that reads it is started, not waited for."""

    def begin(self, ring: Ring, stage: int, what: object, who: Who) -> None:
        super().begin(ring, stage, what, who)
        if ring is self.k:
            ring.empty[stage].arrive(who)

    def release(self, ring: Ring, stage: int, who: Who) -> Iterator[Condition | None]:
        if ring is not self.k:
            yield from super().release(ring, stage, who)


class FewerAtATurn(Block):
    """One warp of the other consumer is enough to let a consumer's four go on."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self.turn = [Named(WARPS + 1) for _ in self.turn]


class NobodyIsFirst(Block):
    """The first turn is not given to anybody."""

    def give_first_turn(self, who: Who) -> None:
        pass


def faults(kind: type[Block], config: dict[str, object], runs: int = 100) -> set[str]:
    """What a broken protocol was found to do."""
    found = set()
    for seed in range(runs):
        random.seed(seed)
        block = kind(config, [(5, [0, 0]), (3, [0, 0]), (1, [0, 0])], whole=seed % 2 == 0)
        try:
            run(block)
        except AssertionError as error:
            found.add(str(error).partition("\n")[0])
    return found


@pytest.mark.parametrize(
    ("kind", "config", "fault"),
    [
        (Elected, PLAIN, "filled while it is read"),
        (OneForBoth, PLAIN, "filled while it is read"),
        (TooEarly, PLAIN, "filled while it is read"),
        (FewerAtATurn, PING_PONG, "an arrival for the generation after this one"),
        (NobodyIsFirst, PING_PONG, "wait for ever"),
    ],
)
def test_the_model_finds_a_broken_protocol(kind, config, fault):
    assert any(fault in found for found in faults(kind, config))


def test_one_warp_may_speak_for_all_only_once_they_have_gathered():
    """Which drifting warps alone show: with them in step the two protocols are the same."""
    assert not faults(ElectedAndGathered, PLAIN)
    assert faults(Elected, PLAIN)
