"""The target that a lookup is for: `--target`, this machine's GPU, or the records' own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from kernels.attention.capability import supported
from kernels.attention.printable import shown
from tuner.cli.failure import CommandError
from tuner.record import Record
from tuner.target import Hardware, Target


def choose_target(option: str | None, records: Iterable[Record]) -> tuple[Target, str]:
    """The target, and in a few words where it is from.

    Args:
        option: a hardware key, part of a GPU's name, or `sm_90` for any GPU of that capability.

    Raises:
        CommandError: nothing fits.
    """
    latest: dict[Target, str] = {}
    oldest: dict[Hardware, str] = {}
    counts: Counter[Hardware] = Counter()
    for record in records:
        target, moment = record.target, record.measured_at
        latest[target] = max(moment, latest.get(target, ""))
        oldest[target.hardware] = min(moment, oldest.get(target.hardware, moment))
        counts[target.hardware] += 1
    known = sorted(latest, key=lambda target: (latest[target], target), reverse=True)
    if option is not None:
        return _named(option, known), "--target"
    from tuner import cuda_driver

    here = cuda_driver.target()
    if here is not None:
        return here, "the GPU of this machine"
    if known:
        others = "; --target names another card" if len(counts) > 1 else ""
        # Of several with as many, the one that has had them longest, as it is with the cards of the
        # shipped records and spaces; of its targets the latest.
        most = max(counts.values())
        first = min((h for h in counts if counts[h] == most), key=lambda h: (oldest[h], h.key))
        return (
            next(target for target in known if target.hardware == first),
            f"assumed, since there is no GPU here and no other card has more records{others}",
        )
    raise CommandError(
        "there is no GPU here and no record to take a target from: name one, such as --target sm_90"
    )


def _named(option: str, known: list[Target]) -> Target:
    wanted = option.strip().lower()
    for target in known:
        if wanted and (wanted == target.hardware.key or wanted in target.gpu_name.lower()):
            return target
    if match := re.fullmatch(r"sm_?([0-9]{2,3})", wanted):
        capability = int(match[1])
        if capability not in supported():
            accepted = ", ".join(f"sm_{each}" for each in supported())
            raise CommandError(f"--target is {shown(option)}, but must be one of {accepted}")
        return Target(Hardware(capability, 0, 0, 0), f"any sm_{capability}", "none", "none", "none")
    keys = ", ".join(dict.fromkeys(target.hardware.key for target in known)) or "none so far"
    raise CommandError(
        f"--target is {shown(option)}, but must be sm_NN, part of a GPU's name, or the key of "
        f"hardware that has records ({keys})"
    )
