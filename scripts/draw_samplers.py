"""Show what score_samplers.py wrote: a table, and how near the optimum each sampler is over time.

    python scripts/draw_samplers.py docs/samplers.json

Writes docs/samplers.md and docs/samplers.svg beside it. Needs matplotlib.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

# This folder for its modules: a package called `scripts` may be installed, and hides it.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (makes kernels.attention importable)
from kernels.attention.printable import printable, printable_sentence

if TYPE_CHECKING:
    from scripts import refusals
    from scripts.scores import BUDGETS, checked
else:
    import refusals
    from scores import BUDGETS, checked

Row = dict[str, Any]

STYLES = {"cold": ":", "default": "-", "neighbours": "--"}
COLOURS = {"surrogate": "#76b900", "tpe": "#1f77b4", "gp": "#9467bd", "random": "#7f7f7f"}


def main(words: Sequence[str] | None = None) -> None:
    parser = refusals.Parser(__doc__)
    parser.add_argument("scores", type=Path)
    path = parser.parse_args(words).scores
    refusals.needs_matplotlib(parser)
    report = refusals.written(parser, "SCORES", path, checked, "score_samplers.py")
    for suffix in (".md", ".svg"):
        if path.suffix == suffix:
            parser.error(f"{path} would be replaced by what is made of it: name it otherwise")
        refusals.output(parser, path.with_suffix(suffix), option="what is made")
    text = f"{heading(report)}\n\n{markdown(report['results'])}"
    picture = draw(report["results"])
    # First what is large and may find no room: the table is not replaced without its picture.
    refusals.write(parser, path.with_suffix(".svg"), picture)
    refusals.write(parser, path.with_suffix(".md"), text)


def heading(report: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    return printable_sentence(
        f"By scripts/score_samplers.py on {report['date'][:10]} ({versions}): "
        f"{len(report['spaces'])} recorded spaces, {report['seeds']} seeds."
    )


def markdown(results: Sequence[Row]) -> str:
    """One table over all spaces, then one per sampler and start."""
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for result in results:
        groups.setdefault((result["sampler"], result["start"], result["batch"]), []).append(result)
    lines = [
        "Evaluations to within a fraction of the best: the median over seeds, then over spaces "
        "(in brackets the worst space); share of the optimum and score: mean over spaces. A score "
        "counts up to as many evaluations as a run has at most: compare it among equals.",
        "",
        "| sampler | start | at most | to 5 % | to 2 % | share at 20 | at 40 | at 60 | score "
        "| of the mean | repeats | ms a proposal |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (sampler, start, batch), rows in sorted(groups.items()):
        most = sorted({row["evaluations"] for row in rows})
        cells = [titled(sampler, batch), start, ", ".join(map(str, most))]
        cells += [middle([row[f"to_{n}_percent"] for row in rows]) for n in (5, 2)]
        cells += [f"{fmean(row['share'][str(n)] for row in rows):.3f}" for n in BUDGETS]
        cells += [f"{fmean(row[name] for row in rows):.2f}" for name in ("score", "score_of_mean")]
        cells.append(str(sum(row["repeats"] for row in rows)))
        cells.append(f"{fmean(row['ms_per_proposal'] for row in rows):.1f}")
        lines.append(line(cells))
    lines += ["", "Each space: evaluations to 5 % / to 2 % (score).", ""]
    heads = [f"{titled(sampler, batch)}, {start}" for sampler, start, batch in sorted(groups)]
    lines += [line(["space", *heads]), f"| --- |{' --- |' * len(heads)}"]
    for space in dict.fromkeys(result["space"] for result in results):
        found = [
            next((row for row in rows if row["space"] == space), None)
            for _, rows in sorted(groups.items())
        ]
        lines.append(line([space, *map(of_space, found)]))
    return "\n".join(lines) + "\n"


def line(cells: Iterable[str]) -> str:
    """Of a table, whatever characters names have."""
    escaped = (printable(cell).replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def of_space(row: Row | None) -> str:
    if row is None:
        return ""
    reached = " / ".join(number(row[f"to_{n}_percent"]) for n in (5, 2))
    return f"{reached} ({row['score']:.2f})"


def titled(sampler: str, batch: int) -> str:
    return sampler if batch == 1 else f"{sampler}, batches of {batch}"


def middle(counts: Sequence[float | None]) -> str:
    known = [float("inf") if count is None else count for count in counts]
    return f"{number(median(known))} ({number(max(known))})"


def number(count: float | None) -> str:
    return "–" if count is None or count == float("inf") else f"{count:g}"


def draw(results: Sequence[Row]) -> bytes:
    """SVG: a curve per sampler and start, the mean over all spaces, of the smallest batches."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "samplers"  # the same results, the same bytes
    matplotlib.rcParams["text.parse_math"] = False  # a name with two dollar signs is no formula
    from matplotlib import pyplot

    batch = min(result["batch"] for result in results)
    groups: dict[tuple[str, str], list[list[float]]] = {}
    for result in (result for result in results if result["batch"] == batch):
        groups.setdefault((result["sampler"], result["start"]), []).append(result["curve"])
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (sampler, start), curves in groups.items():
        curve = [100 * fmean(column) for column in zip(*curves)]
        axes.plot(
            range(1, len(curve) + 1), curve, STYLES[start], color=COLOURS.get(sampler, "black"),
            label=printable(f"{titled(sampler, batch)}, {start}"),
        )  # fmt: skip
    axes.set_xlabel("evaluations")
    axes.set_ylabel("% of the optimum, mean over spaces and seeds")
    axes.set_ylim(bottom=50, top=100.5)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    picture = BytesIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue()


if __name__ == "__main__":
    main()
