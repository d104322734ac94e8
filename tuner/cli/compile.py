"""`tuner compile`."""

from __future__ import annotations

import json
from collections import Counter
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import options
from tuner.cli.failure import CommandError, warn
from tuner.cli.options import Causal, Dtype, Hdim, Jobs, Json, Template

if TYPE_CHECKING:
    from kernels.attention.problem import Specialization
    from tuner.evaluate.executor import Compilation


def compile_space(
    sm: Annotated[
        int,
        typer.Option(
            metavar="NN", parser=options.whole_number, help="Compute capability, 90 for sm_90."
        ),
    ] = 90,
    hdim: Hdim = None,
    causal: Causal = None,
    dtype: Dtype = None,
    template: Template = None,
    jobs: Jobs = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", parser=options.whole_number, help="Only the first configs of each space."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile every feasible config for a target, without a GPU, and say what each uses."""
    from kernels.attention import capability
    from kernels.attention.problem import HEADDIMS, Specialization

    asked = options.shapes(hdim, causal=causal, dtype=dtype)
    templates = options.templates(template)
    if sm not in capability.supported():
        known = ", ".join(map(str, capability.supported()))
        raise CommandError(f"--sm is {sm}, but must be one of {known}")
    if find_spec("triton") is None:
        raise CommandError("compiling needs Triton, which is not installed: install triton (Linux)")

    from rich.progress import Progress

    from tuner.cli.tables import console, error_console, print_line
    from tuner.evaluate.compile_farm import CompileFarm
    from tuner.search.candidates import enumerate_candidates

    specializations = [
        Specialization(headdim, masked, kind)
        for headdim in asked.headdims or HEADDIMS
        for masked in ((True, False) if asked.causal is None else (asked.causal,))
        for kind in asked.dtypes or ("fp16",)
    ]
    farm = CompileFarm(jobs, spill_limit=None)
    try:
        pending = []
        refusals: dict[str, None] = {}  # each once
        for specialization in specializations:
            candidates = enumerate_candidates(specialization, sm, templates)
            refusals.update(dict.fromkeys(candidates.refusals))
            pending += [
                (specialization, farm.submit(candidate, specialization, sm))
                for candidate in islice(candidates.feasible, limit)
            ]
        if not pending:
            why = "; ".join(refusals) or "nothing feasible"
            raise CommandError(f"no template has a config for what was asked on sm_{sm} ({why})")
        for refusal in refusals:
            warn(f"sm_{sm}: {refusal}")
        rows: list[tuple[str, ...]] = [
            ("problem", "registers", "spills", "shared memory", "blocks/SM", "config")
        ]
        counts: Counter[str] = Counter()
        with Progress(console=error_console(), transient=True, disable=as_json) as progress:
            for specialization, future in progress.track(pending, description="compiling"):
                compiled = future.result()
                counts[compiled.outcome.value] += 1
                form = _form(specialization, compiled, sm)
                if as_json:
                    print(json.dumps(form), flush=True)
                else:
                    rows.append(_row(specialization, compiled, form["blocks_per_sm"]))
    finally:
        farm.close()
    if not as_json:
        out = console()
        widths = [max(map(len, column)) for column in list(zip(*rows))[:-1]]
        print_line(out, f"Compiled for sm_{sm}")
        for problem, *figures, config in rows:
            cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths[1:])]
            print_line(out, "  ".join([f"{problem:<{widths[0]}}", *cells, config]))
        out.print(", ".join(f"{n} {outcome}" for outcome, n in counts.most_common()))


def _form(specialization: Specialization, compiled: Compilation, sm: int) -> dict[str, Any]:
    from kernels.attention import registry
    from tuner.cli.jsonform import json_form
    from tuner.occupancy import blocks_per_sm

    blocks = None
    if compiled.resources is not None:
        candidate = compiled.candidate
        warps = registry.get(candidate.template).block_warps(candidate.config)
        blocks = blocks_per_sm(compiled.resources, warps, sm)
    return {
        "capability": sm,
        "specialization": json_form(specialization),
        **json_form(compiled),
        "blocks_per_sm": blocks,
    }


def _row(
    specialization: Specialization, compiled: Compilation, blocks: int | None
) -> tuple[str, ...]:
    from tuner.trial import Outcome

    mask = "causal" if specialization.causal else "full"
    used = compiled.resources
    failure = "" if compiled.outcome is Outcome.OK else f" {compiled.outcome.value}"
    reason = f": {compiled.reason}" if compiled.reason else ""
    return (
        f"D{specialization.headdim} {mask} {specialization.dtype}",
        str(used.registers) if used else "–",
        str(used.spills) if used else "–",
        str(used.shared_memory) if used else "–",
        "–" if blocks is None else str(blocks),
        f"{compiled.candidate}{failure}{reason}",
    )
