"""Candidates as points of the unit cube, for a surrogate: their parameters, and what the templates'
rules say of them before anything is compiled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kernels.attention import registry
from kernels.attention.capability import limits
from kernels.attention.config import Value
from kernels.attention.problem import Problem
from tuner.occupancy import blocks_per_sm
from tuner.target import Hardware
from tuner.trial import Candidate

Array = NDArray[np.float64]

_WIDE = 4  # largest over smallest choice from which on a number counts by its logarithm


def candidate_features(
    candidates: Sequence[Candidate], problem: Problem, hardware: Hardware
) -> Array:
    """One row per candidate. Parameters that templates share by name share a column."""
    templates = dict.fromkeys(candidate.template for candidate in candidates)
    rows = [
        {"template": c.template, **c.config} if len(templates) > 1 else dict(c.config)
        for c in candidates
    ]
    known = [_static(candidate, problem, hardware) for candidate in candidates]
    return np.hstack([parameter_features(rows), _unit(_filled(known))])


def parameter_features(points: Sequence[Mapping[str, Value]]) -> Array:
    """One row per point, from the values of its parameters alone: bools are 0 and 1, numbers are
    ordered, words get a column each. Where a point lacks a parameter it stands in the middle."""
    columns: list[Array] = []
    for name in dict.fromkeys(name for point in points for name in point):
        values = [point.get(name) for point in points]
        choices = {value for value in values if value is not None}
        if len(choices) > 1 or None in values:
            columns += _encoded(values)
    return np.column_stack(columns) if columns else np.zeros((len(points), 0))


def _encoded(values: Sequence[Value | None]) -> list[Array]:
    numbers = sorted({v for v in values if isinstance(v, (int, float))})
    words = sorted({v for v in values if isinstance(v, str)})
    if words:
        # Two words are as far apart as the ends of a number's range.
        return [_column([None if v is None else (v == w) / math.sqrt(2) for v in values])
                for w in words]  # fmt: skip
    if numbers[0] > 0 and numbers[-1] / numbers[0] >= _WIDE:
        columns = [_column([None if v is None else math.log2(float(v)) for v in values], True)]
        if len(numbers) > _WIDE and any(map(_odd_part, numbers)):
            # Sizes such as 96, 104, 112: what divides them decides more than their order.
            columns.append(_column([None if v is None else _twos(v) for v in values], True))
        return columns
    # By rank: 0 often stands for "no limit", and then its distance means nothing.
    rank = {number: float(index) for index, number in enumerate(numbers)}
    return [_column([None if v is None else rank[v] for v in values], True)]  # type: ignore[index]


def _odd_part(number: float) -> bool:
    """Whether a positive number is no power of two."""
    return not float(math.log2(number)).is_integer()


def _twos(number: Value) -> float:
    """How often 2 divides a whole number, up to 5 times."""
    return float(next((n for n in range(5) if int(number) % 2 ** (n + 1)), 5))


def _column(values: Sequence[float | None], unit: bool = False) -> Array:
    column = np.array([np.nan if value is None else value for value in values], dtype=float)
    if unit:
        column = _unit(column[:, None])[:, 0]
    return np.where(np.isnan(column), 0.5, column)


def _static(candidate: Candidate, problem: Problem, hardware: Hardware) -> list[float]:
    """What the rules say: NaN where the template says nothing."""
    template, config = registry.get(candidate.template), candidate.config
    estimate = template.estimate(problem.specialization, config, hardware.capability)
    if estimate is None:
        return [math.nan] * 6
    have, warps = limits(hardware.capability), template.block_warps(config)
    blocks = blocks_per_sm(estimate, warps, hardware.capability)
    waves = math.nan
    if hardware.sm_count:
        tiles = (
            problem.batch * problem.heads * math.ceil(problem.seqlen / template.block_rows(config))
        )
        waves = tiles / (hardware.sm_count * max(1, blocks))
    return [
        math.log2(max(1, estimate.registers)),
        math.log2(max(1, estimate.shared_memory)),
        float(blocks),
        32.0 * blocks * warps / have.threads_sm,  # occupancy
        math.log2(waves),
        math.ceil(waves) / waves if waves == waves else math.nan,  # what the last wave wastes
    ]


def _filled(rows: Sequence[Sequence[float]]) -> Array:
    table = np.array(rows, dtype=float)
    known = table[:, ~np.isnan(table).all(axis=0)]
    if known.size == 0:
        return np.zeros((len(rows), 0))
    return np.where(np.isnan(known), np.nanmean(known, axis=0), known)


def _unit(table: Array) -> Array:
    """Each column on [0, 1]; those that say nothing are dropped unless they are the only one."""
    if table.size == 0:
        return table
    low, high = np.nanmin(table, axis=0), np.nanmax(table, axis=0)
    if table.shape[1] > 1:
        varied = high > low
        table, low, high = table[:, varied], low[varied], high[varied]
    result: Array = (table - low) / np.where(high > low, high - low, 1.0)
    return result
