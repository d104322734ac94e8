"""Pictures of a study: its history, which parameters matter, slices, and the space's distribution.

Into a file with matplotlib, or into the terminal with plotext.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.search.study import importances

if TYPE_CHECKING:
    import optuna

KINDS = ("history", "importances", "slices", "distribution")


def save(study: optuna.Study, kind: str, path: Path) -> None:
    """Draw one of KINDS into a file of any format that matplotlib writes.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: matplotlib writes no such format.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as drawn

    axes: Any
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna's, that its own pictures are experimental
        if kind == "history":
            axes = drawn.plot_optimization_history(study, target_name="TFLOP/s")
        elif kind == "slices":
            axes = drawn.plot_slice(study, target_name="TFLOP/s")
        elif kind == "distribution":
            axes = drawn.plot_edf(study, target_name="TFLOP/s")
        else:
            axes = _bars(importances(study), pyplot)
    figure = (axes.flat[0] if hasattr(axes, "flat") else axes).figure
    if kind == "slices":
        figure.set_size_inches(max(6.0, 2.2 * len(figure.axes)), 4.0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")
    pyplot.close("all")


def show(study: optuna.Study, kind: str) -> str:
    """One of KINDS as text.

    Raises:
        ImportError: plotext 5 is not installed.
    """
    import plotext

    if not hasattr(plotext, "clear_figure"):
        raise ImportError("plotext 6 has another interface")
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.limit_size(False, False)
    plotext.plotsize(90, 20)
    done = [t for t in study.get_trials(deepcopy=False) if t.value is not None]
    values = [float(t.value) for t in done if t.value is not None]
    plotext.title(f"{study.study_name}: {kind}")
    if kind == "history":
        plotext.scatter([t.number for t in done], values)
        plotext.plot([t.number for t in done], list(accumulate(values, max)))
        plotext.ylabel("TFLOP/s")
    elif kind == "distribution":
        plotext.hist(values, 30)
        plotext.xlabel("TFLOP/s")
    elif kind == "slices":
        rows = _slices(done)
        plotext.bar(list(rows), list(rows.values()), orientation="horizontal", width=0.3)
        plotext.plotsize(90, 2 * len(rows) + 4)
        plotext.xlabel("best TFLOP/s with this value")
    else:
        found = importances(study)
        names = list(found)[::-1]
        plotext.bar(names, [found[name] for name in names], orientation="horizontal", width=0.3)
        plotext.plotsize(90, 2 * len(names) + 4)
    return str(plotext.uncolorize(plotext.build()))


def _slices(done: list[Any]) -> dict[str, float]:
    """The best of each value of each parameter that varies."""
    best: dict[str, dict[Any, float]] = defaultdict(dict)
    for trial in done:
        for name, value in trial.params.items():
            best[name][value] = max(best[name].get(value, 0.0), trial.value)
    return {
        f"{name}={value}": best[name][value]
        for name in sorted(best, reverse=True)
        if len(best[name]) > 1
        for value in sorted(best[name], reverse=True)
    }


def _bars(found: dict[str, float], pyplot: Any) -> Any:
    _, axes = pyplot.subplots(figsize=(7, 0.4 * len(found) + 1.2))
    names = list(found)[::-1]
    axes.barh(names, [found[name] for name in names])
    axes.set_xlabel("importance for being among the fastest tenth")
    return axes
