"""What each parameter of a template is worth, from recorded spaces: a Markdown table a space.

    python scripts/show_effects.py tuner/spaces/h100/*hopper*

For every choice of a parameter: the best rate with it, and how it compares with another choice when
all else is the same, as the median over all such pairs. A parameter that never pays can go.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

# This folder for its modules: a package called `scripts` may be installed, and hides it.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (makes kernels.attention importable)
from kernels.attention.config import Config, Value
from tuner.evaluate.space_file import RecordedSpace, read_space
from tuner.evaluate.t4 import SpaceError
from tuner.store.rows import trial_row

if TYPE_CHECKING:
    from scripts import refusals
else:
    import refusals


def main(words: Sequence[str] | None = None) -> int:
    parser = refusals.Parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    tables = []
    for path in parser.parse_args(words).files:
        try:
            refusals.file(parser, "FILES", path)
            space = read_space(path)
            space.check(trial_row)
            tables.append(effects(space))
        except SpaceError as error:
            parser.error(str(error))
        except OSError as error:
            parser.error(f"{path} cannot be read: {error.strerror or error}")
    for lines in tables:
        print("\n".join(lines), end="\n\n")
    return 0


def effects(space: RecordedSpace) -> list[str]:
    """The table of one space, its own configs' rates in TFLOP/s; at one clock for all, 1.5 GHz,
    where cycles were counted.

    Raises:
        SpaceError: it is damaged, none of its configs was timed, or they have different parameters.
    """
    header = space.header
    rates = {
        config: header.problem.tflops(trial.measurement.steady_ms)
        for config, trial in space.trials.items()
        if trial.outcome.timed and trial.measurement is not None
    }
    if not rates:
        raise SpaceError(f"{space.path} holds no config that was timed")
    if len({tuple(config) for config in rates}) > 1:
        raise SpaceError(f"{space.path} holds configs that do not have the same parameters")
    on = header.target
    lines = [
        f"{header.problem}, {header.template}: {len(rates)} configs timed on {on.gpu_name}, "
        f"Triton {on.triton}, {header.recorded_at[:10]}; best {max(rates.values()):.0f} TFLOP/s.",
        "",
        "| parameter | best with each choice | against the first, all else equal |",
        "| --- | --- | --- |",
    ]
    for name in next(iter(rates)):
        best = best_by_choice(rates, name)
        if len(best) < 2:
            continue
        first = next(iter(best))
        against = paired(rates, name, first)
        lines.append(
            f"| {name} | {', '.join(f'{value}: {rate:.0f}' for value, rate in best.items())} | "
            + ", ".join(f"{value}: {ratio - 1:+.1%}" for value, ratio in against.items())
            + " |"
        )
    return lines


def best_by_choice(rates: dict[Config, float], name: str) -> dict[Value, float]:
    best: dict[Value, float] = {}
    for config, rate in rates.items():
        best[config[name]] = max(rate, best.get(config[name], 0.0))
    return dict(sorted(best.items(), key=lambda item: str(item[0])))


def paired(rates: dict[Config, float], name: str, first: Value) -> dict[Value, float]:
    """Median ratio of a config's rate to that of the one that differs in `name` alone."""
    ratios: dict[Value, list[float]] = defaultdict(list)
    for config, rate in rates.items():
        if config[name] == first:
            continue
        twin = rates.get(Config(config, **{name: first}))
        if twin is not None:
            ratios[config[name]].append(rate / twin)
    return {value: median(of) for value, of in sorted(ratios.items(), key=lambda i: str(i[0]))}


if __name__ == "__main__":
    sys.exit(main())
