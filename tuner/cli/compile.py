"""`tuner compile`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import options
from tuner.cli.failure import CommandError, warn
from tuner.cli.options import Causal, Dtype, Hdim, Jobs, Json, Template

if TYPE_CHECKING:
    from kernels.attention.problem import Specialization
    from tuner.evaluate.executor import Compilation
    from tuner.trial import Candidate


_HEADER = ("problem", "registers", "spills", "shared memory", "blocks/SM", "config")


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
            metavar="N",
            parser=options.whole_number,
            help="Only the first of each template and mask.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile every feasible config for a target, without a GPU, and say what each uses.

    A config takes some seconds on a core, a headdim has one to three thousand: --limit takes the
    first of each, of every template and mask.
    """
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
    from tuner.trial import Outcome

    specializations = [
        Specialization(headdim, masked, kind)
        for headdim in asked.headdims or HEADDIMS
        for masked in asked.masks
        for kind in asked.kinds
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
                for candidate in _first(candidates.feasible, limit)
            ]
        if not pending:
            why = "; ".join(refusals) or "nothing feasible"
            raise CommandError(f"no template has a config for what was asked on sm_{sm} ({why})")
        for refusal in refusals:
            warn(f"sm_{sm}: {refusal}")
        if not as_json:
            out = console()
            print_line(out, f"Compiled for sm_{sm}")
            print_line(out, _line(_HEADER))
        counts: Counter[str] = Counter()
        with Progress(console=error_console(), transient=True, disable=as_json) as progress:
            for specialization, future in progress.track(pending, description="compiling"):
                compiled = future.result()
                counts[compiled.outcome.value] += 1
                form = _form(specialization, compiled, sm)
                if as_json:
                    print(json.dumps(form), flush=True)
                else:
                    row = _row(specialization, compiled, form["blocks_per_sm"])
                    print_line(out, _line(row))
                    sys.stdout.flush()
    finally:
        farm.close()
    summary = ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common())
    if not as_json:
        out.print(summary)
    if not counts[Outcome.OK.value]:
        raise CommandError(
            f"none of {len(pending)} configs compiled ({summary}): {compiled.reason}"
        )


def _line(row: tuple[str, ...]) -> str:
    """A row of the table, whose columns are as wide as what there can be: rows come one by one."""
    problem, *figures, config = row
    cells = [f"{cell:>{len(title)}}" for cell, title in zip(figures, _HEADER[1:])]
    return "  ".join([f"{problem:<{len('D256 causal bf16')}}", *cells, config])


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


def _first(candidates: Iterable[Candidate], limit: int | None) -> Iterator[Candidate]:
    """The first `limit` of every template; None: all."""
    taken: Counter[str] = Counter()
    for candidate in candidates:
        taken[candidate.template] += 1
        if limit is None or taken[candidate.template] <= limit:
            yield candidate
