"""`tuner lookup`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tuner.cli import options
from tuner.cli.options import (
    Batch,
    Causal,
    Database,
    Dtype,
    Heads,
    Json,
    NeededHdim,
    NeededSeqlen,
    Target,
)

if TYPE_CHECKING:
    from tuner.record import Record
    from tuner.trial import Trial


def lookup(
    hdim: NeededHdim = None,
    seqlen: NeededSeqlen = None,
    causal: Causal = None,
    dtype: Dtype = None,
    batch: Batch = None,
    heads: Heads = None,
    target: Target = None,
    db: Database = None,
    as_json: Json = False,
) -> None:
    """Say which config would serve a problem, from which record, and why; how far that record is,
    and what tuning the problem itself would take."""
    problems = options.shapes(hdim, seqlen, causal, dtype, batch, heads).named()

    from tuner import resolve
    from tuner.cli.targets import choose_target
    from tuner.search import cost
    from tuner.store.layers import Layers

    layers = Layers.load(db)
    records = layers.standing()
    chosen, origin = choose_target(target, records)
    found = [(problem, resolve.resolve(records, chosen, problem)) for problem in problems]
    capability = chosen.hardware.capability
    costs = {
        problem: cost.estimate(problem, capability, _trials(db, resolution.record))
        for problem, resolution in found
    }
    if as_json:
        from tuner.cli.jsonform import json_form

        form = {"target": chosen, "target_from": origin, "snapshot": layers.snapshot_hash()}
        print(
            json.dumps(
                {
                    **json_form(form),
                    "lookups": [
                        {
                            "problem": json_form(problem),
                            **json_form(resolution),
                            "retuning": {
                                **json_form(costs[problem]),
                                "command": cost.command(problem),
                            },
                        }
                        for problem, resolution in found
                    ],
                }
            )
        )
        return

    from tuner.cli.tables import console, print_line
    from tuner.device import has_gpu

    out = console()
    print_line(out, f"target    {chosen}: {origin}")
    print_line(out, f"snapshot  {layers.snapshot_hash()}: the same wherever these records stand")
    for problem, resolution in found:
        record = resolution.record
        lines = [
            ("problem", str(problem)),
            ("config", str(resolution.candidate)),
            ("source", resolution.source),
            ("why", resolution.reason),
        ]
        if record is not None:
            ours = record.measurement
            lines += [
                (
                    "distance",
                    f"{resolution.seqlen_ratio:.3g}× in seqlen, "
                    f"{resolution.batch_heads_ratio:.3g}× in batch·heads",
                ),
                (
                    "record",
                    f"{record.uid} ({record.origin}): {ours.tflops:.0f} TFLOP/s, "
                    f"{ours.median_ms:.4g} ms at {record.problem}",
                ),
            ]
        place = "" if has_gpu() else ", where that GPU is"
        lines.append(("tuning", f"{costs[problem]}{place}: {cost.command(problem)}"))
        out.print()
        for name, text in lines:
            print_line(out, f"{name:<9} {text}")


def _trials(db: str | None, record: Record | None) -> list[Trial]:
    """The trials behind `record`, if your database has them."""
    if record is None:
        return []
    from tuner.store.database import Store
    from tuner.store.errors import StoreError
    from tuner.store.locations import user_database

    try:
        with Store.read_only(user_database(db)) as store:
            return store.trials(record.problem, hardware=record.target.hardware)
    except StoreError:  # never made, or what `Layers` has warned of
        return []
