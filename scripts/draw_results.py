"""Draw the README's picture and print its table, from the records of a database.

    python scripts/draw_results.py configs.db --dtype bf16 --output docs/tuned-bf16.svg

Needs matplotlib. Figures are medians of interleaved rounds in which ours and PyTorch's backends
took turns on one card; whiskers are interquartile ranges.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

# This folder for its modules: a package called `scripts` may be installed, and hides it.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (makes kernels.attention importable)
from kernels.attention.printable import shown
from kernels.attention.problem import GRID_SEQLENS, HEADDIMS, HEADLINE, Problem
from tuner.record import Record
from tuner.standing import standing
from tuner.store.database import Store
from tuner.store.errors import StoreError

if TYPE_CHECKING:
    from scripts import refusals
else:
    import refusals

PEERS = {
    "cudnn": "cuDNN",
    "fa2": "FlashAttention-2",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
}
COLOURS = {
    "ours": "#76b900",
    "cudnn": "#444444",
    "fa2": "#c4c4c4",
    "fa3": "#e08a2c",
    "fa4": "#7a5ba6",
}


def main(words: Sequence[str] | None = None) -> None:
    parser = refusals.Parser(__doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument("--output", type=Path, help="where the picture goes; none: the table only")
    parser.add_argument("--dtype", default="fp16", choices=("fp16", "bf16"))
    parser.add_argument("--gpu", default="H100", help="the GPU's name, or part of it")
    arguments = parser.parse_args(words)
    if arguments.output is not None:
        refusals.needs_matplotlib(parser)
        refusals.output(parser, arguments.output, refusals.PICTURES)
    try:
        with Store.read_only(arguments.database) as store:
            held = standing(store.records()).values()
    except StoreError as error:
        parser.error(str(error))
    records = [
        record
        for record in held
        if record.problem.dtype == arguments.dtype
        and record.origin == "cuda"
        and arguments.gpu in record.target.gpu_name
    ]
    if not records:
        parser.error(
            f"{arguments.database} holds no {arguments.dtype} records measured on {arguments.gpu}"
        )
    cards = {record.target.gpu_name for record in records}
    if arguments.gpu in cards:  # it may be part of another's name
        records = [record for record in records if record.target.gpu_name == arguments.gpu]
    elif len(cards) > 1:
        parser.error(
            f"--gpu is {shown(arguments.gpu)}, but must name one card: "
            f"{' or '.join(map(shown, sorted(cards)))}"
        )
    print(table(records))
    if arguments.output is not None:
        picture = draw(records, arguments.output.suffix[1:])
        refusals.write(parser, arguments.output, picture)


def table(records: Sequence[Record]) -> str:
    """Markdown: the headline shapes, causal, TFLOP/s, and what each ratio to the best peer is."""
    seen = {peer.name for record in records for peer in record.peers}
    names = [name for name in PEERS if name in seen]
    lines = [
        f"| shape | ours | {' | '.join(PEERS[n] for n in names)} | ours / best of them | config |",
        "| --- " * (len(names) + 4) + "|",
    ]
    for shape in HEADLINE:
        record = find(records, shape.headdim, shape.seqlen, shape.causal)
        if record is None:
            continue
        peers = {peer.name: peer for peer in record.peers}
        cells = [
            with_spread(record.problem, peers[name].median_ms, peers[name].spread)
            if name in peers
            else "–"
            for name in names
        ]
        ratio = f"{to_best(record):.2f}" if record.peers else "–"
        ours = with_spread(record.problem, record.measurement.median_ms, record.measurement.spread)
        lines.append(
            f"| {record.problem} | **{ours}** | {' | '.join(cells)} | {ratio} "
            f"| {record.candidate} |"
        )
    ratios = [to_best(record) for record in records if record.peers]
    if ratios:
        lines += [
            "",
            f"Over {len(ratios)} problems of the grid ours / best of them is in the geometric mean "
            f"{geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}).",
        ]
        lines += [
            f"In {count} of them {PEERS[name]} took no part."
            for name in names
            if (count := sum(name not in {p.name for p in r.peers} for r in records if r.peers))
        ]
    targets = {
        (r.target.gpu_name, r.target.triton, r.target.torch, r.target.driver) for r in records
    }
    for gpu, triton, torch, driver in sorted(targets):
        dates = sorted(r.measured_at[:10] for r in records)
        days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
        lines.append("")
        lines.append(
            f"{gpu}, Triton {triton}, torch {torch}, driver {driver}, {days}; "
            "TFLOP/s, median of interleaved rounds ± half the interquartile range."
        )
    return "\n".join(lines)


def to_best(record: Record) -> float:
    """Our rate over that of the best peer of the same rounds."""
    return min(peer.median_ms for peer in record.peers) / record.measurement.median_ms


def with_spread(problem: Problem, median_ms: float, spread: float) -> str:
    tflops = problem.tflops(median_ms)
    return f"{tflops:.0f} ± {tflops * spread / 2:.0f}"


def find(records: Sequence[Record], headdim: int, seqlen: int, causal: bool) -> Record | None:
    return next(
        (
            r
            for r in records
            if (r.problem.headdim, r.problem.seqlen, r.problem.causal) == (headdim, seqlen, causal)
        ),
        None,
    )


def draw(records: Sequence[Record], kind: str) -> bytes:
    """The picture, as a file of that kind."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "attention-tuner"  # the same records, the same file
    pyplot.rcParams["text.parse_math"] = False  # a name with two dollar signs is no formula
    pyplot.rcParams["font.size"] = 9
    figure, axes = pyplot.subplots(2, 3, figsize=(10, 5.2), sharex=True, sharey=True)
    for row, causal in enumerate((True, False)):
        for column, headdim in enumerate(HEADDIMS):
            panel(axes[row][column], records, headdim, causal)
    for axis in axes[1]:
        axis.set_xlabel("seqlen (16384 tokens, hidden size 2048)")
    for axis in axes[:, 0]:
        axis.set_ylabel("TFLOP/s")
    target = records[0].target
    figure.suptitle(
        f"Attention forward, {records[0].problem.dtype}, {target.gpu_name}, "
        f"Triton {target.triton}, torch {target.torch}"
    )
    # Of the panel with most peers: one without records has none.
    shown = max(
        (axis.get_legend_handles_labels() for axis in axes.flat), key=lambda each: len(each[0])
    )
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.legend(*shown, frameon=False, loc="lower center", ncols=len(shown[0]), fontsize=8)
    picture = BytesIO()
    figure.savefig(picture, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return picture.getvalue()


def panel(axis: Any, records: Sequence[Record], headdim: int, causal: bool) -> None:
    shown = [r for s in GRID_SEQLENS if (r := find(records, headdim, s, causal)) is not None]
    series: list[tuple[str, list[tuple[float, float] | None]]] = [
        ("ours", [(r.measurement.median_ms, r.measurement.spread) for r in shown])
    ]
    for name in PEERS:
        timings = [{p.name: (p.median_ms, p.spread) for p in r.peers}.get(name) for r in shown]
        series.append((name, timings))
    axis.set_title(f"headdim {headdim}, {'causal' if causal else 'full'}", fontsize=9)
    series = [(name, timings) for name, timings in series if any(timings)]
    if not series:
        axis.text(0.5, 0.5, "no records", transform=axis.transAxes, ha="center", va="center")
        return
    width = 0.82 / len(series)
    for index, (name, timings) in enumerate(series):
        offset = (index - (len(series) - 1) / 2) * width
        bars = [
            (position, record.problem.tflops(timing[0]), timing[1])
            for position, (record, timing) in enumerate(zip(shown, timings))
            if timing is not None
        ]
        axis.bar(
            [position + offset for position, _, _ in bars],
            [tflops for _, tflops, _ in bars],
            width,
            yerr=[tflops * spread / 2 for _, tflops, spread in bars],
            error_kw={"elinewidth": 0.6},
            color=COLOURS[name],
            label="attention-tuner" if name == "ours" else PEERS[name],
        )
    axis.set_xticks(range(len(shown)), [str(r.problem.seqlen) for r in shown])
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", linewidth=0.3)
    axis.set_axisbelow(True)


if __name__ == "__main__":
    main()
