"""Draw what score_samplers.py wrote: how near the optimum each sampler is after each evaluation.

    python scripts/draw_samplers.py docs/samplers.json docs/samplers.svg

Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

STYLES = {"cold": ":", "default": "-", "neighbours": "--"}
COLOURS = {"surrogate": "#76b900", "tpe": "#1f77b4", "gp": "#9467bd", "random": "#7f7f7f"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scores", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    draw(json.loads(arguments.scores.read_text())["results"], arguments.picture)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """A curve per sampler and start, the mean over all spaces."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "samplers"  # the same results, the same bytes
    from matplotlib import pyplot

    groups: dict[tuple[str, str], list[list[float]]] = {}
    for result in (result for result in results if result["batch"] == 1):
        groups.setdefault((result["sampler"], result["start"]), []).append(result["curve"])
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (sampler, start), curves in groups.items():
        curve = [100 * fmean(column) for column in zip(*curves)]
        axes.plot(
            range(1, len(curve) + 1), curve, STYLES[start],
            color=COLOURS.get(sampler, "black"), label=f"{sampler}, {start}",
        )  # fmt: skip
    axes.set_xlabel("evaluations")
    axes.set_ylabel("% of the optimum, mean over spaces and seeds")
    axes.set_ylim(bottom=50, top=100.5)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
