"""The table of `tuner bench`."""

from __future__ import annotations

from rich.console import Console

from tuner.bench import OURS, Report
from tuner.cli.tables import print_line, ratio, table


def print_bench(out: Console, report: Report) -> None:
    """The benchmark: the outside harness's figures, then those of the interleaved rounds."""
    on = report.target
    print_line(out, f"{on}, torch {on.torch}, driver {on.driver}, {report.measured_at}")
    peers = sorted({name for row in report.rows for name in row.rounds if name != OURS})
    rows = table(
        "",
        *("problem", "tflops", "latency_ms", "max_diff", "correct", "speedup_vs_sdpa"),
        *("in rounds", "spread"),
        *(f"vs {peer}" for peer in peers),
        left=("problem",),
    )
    for row in report.rows:
        ours = row.rounds[OURS]
        beside = {name: lap.median_ms for name, lap in row.rounds.items()}
        rows.add_row(
            str(row.problem),
            f"{row.tflops:.0f}",
            f"{row.latency_ms:.4g}",
            f"{row.max_diff:.1e}",
            "yes" if row.correct else "NO",
            f"{row.speedup_vs_sdpa:.2f}",
            f"{ours.tflops:.0f}",
            f"{ours.spread:.1%}",
            *(ratio(beside.get(peer), ours.median_ms) for peer in peers),
        )
    out.print(rows)
    for row in report.rows:
        for peer, reason in row.absent.items():
            print_line(out, f" {row.problem}: no {peer}: {reason}")
