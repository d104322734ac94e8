"""Our attention beside every peer installed, on an NVIDIA GPU: tables, and JSON of all samples.

    python scripts/compare_peers.py [--dtype fp16,bf16] [--grid] [--flex] [--output FILE]

Peers are cuDNN and FlashAttention-2 through PyTorch's SDPA, FlashAttention-3 (pip install fa3-fwd;
27 MB, bf16 alone) and FlashAttention-4 (pip install flash-attn-4) where they can be imported, and
with --flex compiled FlexAttention, which takes some ten seconds a problem. All take turns in
interleaved rounds. After that each runs by itself, so that the clock is what its own power leaves:
25 warm-ups and the median of 100 runs, in turns ("short"; some 65 ms where launches are shortest),
and back to back for a quarter second ("sustained"). Some 20 s a problem. --grid measures the 36
problems a dtype of the benchmark grid, in rounds alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

# This folder for its modules: a package called `scripts` may be installed, and hides it.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (makes kernels.attention importable)
from kernels.attention.problem import DTYPES, HEADLINE, Problem
from tuner.bench import OURS, Lap, Report, Row, bench
from tuner.device import has_gpu
from tuner.evaluate.inputs import Inputs
from tuner.evaluate.stopwatch import Launch
from tuner.evaluate.timing import spread
from tuner.search.plan import plan

if TYPE_CHECKING:
    from scripts import refusals
else:
    import refusals


def main(words: Sequence[str] | None = None) -> int:
    parser = refusals.Parser(__doc__)
    parser.add_argument("--dtype", default="fp16,bf16")
    parser.add_argument("--grid", action="store_true", help="instead of the headline shapes")
    parser.add_argument("--flex", action="store_true", help="FlexAttention, too")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--output", type=Path, help="everything measured, as JSON")
    options = parser.parse_args(words)
    dtypes = refusals.one_of(parser, "--dtype", options.dtype, DTYPES)
    refusals.at_least(parser, 1, rounds=options.rounds)
    if options.output is not None:
        refusals.output(parser, options.output)
    if not has_gpu():
        parser.error("this measures, but there is no NVIDIA GPU here")
    report = bench(
        problems=plan(dtypes=dtypes) if options.grid else headline(dtypes),
        rounds=options.rounds,
        alone=not options.grid,
        further=flex if options.flex else None,
    )
    print("\n".join(text(report)))
    if options.output is not None:
        refusals.write(parser, options.output, json.dumps(report.to_json(), indent=1) + "\n")
    return 0 if all(row.correct for row in report.rows) else 1


def headline(dtypes: Sequence[str]) -> list[Problem]:
    return [replace(problem, dtype=dtype) for dtype in dtypes for problem in HEADLINE]


@cache
def _compiled_flex() -> tuple[Any, Any]:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    return torch.compile(flex_attention, dynamic=False), create_block_mask


def _sees(_batch: Any, _head: Any, row: Any, key: Any) -> Any:
    return row >= key


def flex(inputs: Inputs) -> Mapping[str, Launch]:
    """FlexAttention as torch.compile makes it, with a block mask if causal."""
    attention, create_block_mask = _compiled_flex()
    mask = None
    if inputs.causal:
        seqlen, device = inputs.q.shape[2], inputs.q.device
        mask = create_block_mask(_sees, None, None, seqlen, seqlen, device=device)
    return {"flex": partial(attention, inputs.q, inputs.k, inputs.v, block_mask=mask)}


def text(report: Report) -> list[str]:
    """What was measured on, and Markdown tables: of rounds, and of what else was measured."""
    on = report.target
    lines = [
        f"{on}, torch {on.torch}, driver {on.driver}, {report.measured_at}",
        "",
        *table(report, in_rounds, lambda lap: with_spread(lap.tflops, lap.spread)),
    ]
    ratios = [ratio for row in report.rows if (ratio := to_best(row, in_rounds)) is not None]
    if len(ratios) > 1:
        lines += [
            "",
            f"Ours / best peer over {len(ratios)} problems: {geometric_mean(ratios):.3f} in the "
            f"geometric mean, {min(ratios):.3f} to {max(ratios):.3f}.",
        ]
    if all(row.rounds[OURS].short_ms for row in report.rows):
        cells = table(report, short, lambda lap: with_spread(short(lap), spread(lap.short_ms)))
        lines += ["", "Short:", "", *cells]
    if all(row.rounds[OURS].sustained_tflops is not None for row in report.rows):
        cells = table(report, sustained, lambda lap: f"{sustained(lap):.0f}")
        lines += ["", "Sustained:", "", *cells]
    lines += [f"{row.problem}: no {peer}: {why}" for row in report.rows
              for peer, why in row.absent.items()]  # fmt: skip
    return lines


def in_rounds(lap: Lap) -> float:
    return lap.tflops


def short(lap: Lap) -> float:
    return lap.short_tflops or 0.0


def sustained(lap: Lap) -> float:
    return lap.sustained_tflops or 0.0


def with_spread(tflops: float, share: float) -> str:
    """A median and half its interquartile range, which is that share of it."""
    return f"{tflops:.0f} ± {tflops * share / 2:.0f}"


def table(report: Report, rate: Callable[[Lap], float], cell: Callable[[Lap], str]) -> list[str]:
    peers = sorted({name for row in report.rows for name in row.rounds if name != OURS})
    lines = [
        f"| problem | ours | {' | '.join(peers)} | ours / best | SM MHz | W | harness | max diff |",
        "| --- " * (len(peers) + 7) + "|",
    ]
    for row in report.rows:
        laps: Mapping[str, Lap] = row.rounds
        cells = [cell(laps[name]) if name in laps else "–" for name in (OURS, *peers)]
        ratio = to_best(row, rate)
        lines.append(
            f"| {row.problem} | {' | '.join(cells)} | {'–' if ratio is None else f'{ratio:.2f}'} "
            f"| {row.sm_clock_mhz} | {row.power_w} | {row.tflops:.0f} | {row.max_diff:.1e} |"
        )
    return lines


def to_best(row: Row, rate: Callable[[Lap], float]) -> float | None:
    """Our rate over that of the best peer."""
    peers = [rate(lap) for name, lap in row.rounds.items() if name != OURS]
    return rate(row.rounds[OURS]) / max(peers) if peers else None


if __name__ == "__main__":
    sys.exit(main())
