"""A few configs that stand for a whole space."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import combinations

from kernels.attention.config import Config


def spread(configs: Iterable[Config], seed: str, least: int = 8) -> list[Config]:
    """Some of `configs`, always the same: every choice of every parameter appears in them, and of
    the pairs of choices as many as so few can show. Another seed gives others."""
    left = sorted(configs, key=str)
    random.Random(seed).shuffle(left)
    unseen = set().union(*map(_choices, left))
    chosen: list[Config] = []
    while left and (len(chosen) < least or any(len(choices) == 1 for choices in unseen)):
        best = max(left, key=lambda config: _gain(_choices(config) & unseen))
        left.remove(best)
        unseen -= _choices(best)
        chosen.append(best)
    return chosen


def _choices(config: Config) -> set[tuple[tuple[str, object], ...]]:
    """What a config chooses, and every pair of that."""
    items = sorted(config.items())
    return {(item,) for item in items} | set(combinations(items, 2))


def _gain(choices: set[tuple[tuple[str, object], ...]]) -> tuple[int, int]:
    singles = sum(len(choice) == 1 for choice in choices)
    return singles, len(choices)
