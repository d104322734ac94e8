"""Pictures of a study: its history, which parameters matter, slices, and the space's distribution.

Into a file with matplotlib, or into the terminal with plotext.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.files import replacing
from tuner.search.study import importances

if TYPE_CHECKING:
    import optuna

KINDS = ("history", "importances", "slices", "distribution")

_COLUMNS = 4  # of slices, so that a parameter's name is narrower than its own


def save(study: optuna.Study, kind: str, path: Path) -> None:
    """Draw one of KINDS into a file of any format that matplotlib writes, whole or not at all.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: matplotlib writes no such format.
        OSError: it cannot be written; an old file is as it was.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as drawn

    pyplot.style.use("ggplot")  # as Optuna's own
    axes: Any
    try:
        with warnings.catch_warnings():
            # Optuna's, that its own pictures are experimental; matplotlib's, that it lacks room.
            warnings.simplefilter("ignore")
            if kind == "history":
                axes = drawn.plot_optimization_history(study, target_name="TFLOP/s")
            elif kind == "slices":
                axes = _slices(study, pyplot)
            elif kind == "distribution":
                axes = drawn.plot_edf(study, target_name="TFLOP/s")
            else:
                axes = _bars(importances(study), pyplot)
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as part:
                format_ = path.suffix.removeprefix(".")
                axes.figure.savefig(part, format=format_, bbox_inches="tight")
    finally:
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
    done = _done(study)
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
        rows = _best_of_each(done)
        plotext.bar(list(rows), list(rows.values()), orientation="horizontal", width=0.3)
        plotext.plotsize(90, 2 * len(rows) + 4)
        plotext.xlabel("best TFLOP/s with this value")
    else:
        found = importances(study)
        names = list(found)[::-1]
        plotext.bar(names, [found[name] for name in names], orientation="horizontal", width=0.3)
        plotext.plotsize(90, 2 * len(names) + 4)
    return str(plotext.uncolorize(plotext.build()))


def _done(study: optuna.Study) -> list[Any]:
    return [trial for trial in study.get_trials(deepcopy=False) if trial.value is not None]


def _varied(done: list[Any]) -> dict[str, list[Any]]:
    """The values of each parameter that has several."""
    found: dict[str, set[Any]] = defaultdict(set)
    for trial in done:
        for name, value in trial.params.items():
            found[name].add(value)
    return {name: sorted(found[name]) for name in sorted(found) if len(found[name]) > 1}


def _best_of_each(done: list[Any]) -> dict[str, float]:
    """The best of each value of each parameter that varies, in the order that plotext draws: from
    below."""
    return {
        f"{name}={value}": max(t.value for t in done if t.params.get(name) == value)
        for name, values in reversed(_varied(done).items())
        for value in reversed(values)
    }


def _slices(study: optuna.Study, pyplot: Any) -> Any:
    """Every trial over each parameter that varies, later ones darker. Optuna's own picture has all
    parameters in one row, where the names of two templates' run into each other."""
    done = _done(study)
    varied = _varied(done)
    columns = min(_COLUMNS, max(1, len(varied)))
    rows = max(1, -(-len(varied) // columns))
    figure, grid = pyplot.subplots(
        rows,
        columns,
        figsize=(3.2 * columns, 2.6 * rows),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    for (name, values), axes in zip(varied.items(), grid.flat):
        given = [trial for trial in done if name in trial.params]
        axes.scatter(
            [values.index(trial.params[name]) for trial in given],
            [trial.value for trial in given],
            c=[trial.number for trial in given],
            cmap="Blues",
            edgecolors="grey",
        )
        axes.set_xticks(range(len(values)), [_plain(value) for value in values])
        axes.set_xlim(-0.5, len(values) - 0.5)  # no value's name reaches into the next picture
        axes.set_xlabel(_plain(name))
    for axes in grid.flat[len(varied) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("TFLOP/s")
    figure.suptitle(study.study_name)
    return grid.flat[0]


def _bars(found: dict[str, float], pyplot: Any) -> Any:
    _, axes = pyplot.subplots(figsize=(7, 0.4 * len(found) + 1.2))
    names = list(found)[::-1]
    axes.barh([_plain(name) for name in names], [found[name] for name in names])
    axes.set_xlabel("importance for being among the fastest tenth")
    return axes


def _plain(text: object) -> str:
    """Without what matplotlib takes for a formula."""
    return str(text).replace("$", r"\$")
