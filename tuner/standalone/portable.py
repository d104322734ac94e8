"""The portable template as a standalone file: its kernel, its configs and a launch, in Python.

The kernel is the repository's own source, taken over by `inline`; only its name and its decorator
are others. Another template's file takes a module like this one, with a host like portable_host:
the Hopper kernel's modules import one another, which `inline` follows, but it needs Gluon's
decorator and its own descriptors.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernels.attention import registry
from kernels.attention.capability import supported
from kernels.attention.config import Config, Value
from kernels.attention.problem import HEADDIMS, Problem
from tuner import resolve
from tuner.record import Record
from tuner.standalone.inline import docstring, inline
from tuner.target import Target
from tuner.trial import Candidate
from tuner.version import __version__

TEMPLATE = "portable"
KERNEL = "_custom_attn_fwd"

_WIDTH = 100
_LONGEST = 2**24  # seqlens up to which defaults are asked for
_RANKS = {"exact": 1, "stale": 2, "family": 3}
# Integers that change from call to call get no binaries of their own, as in the template.
_UNSPECIALIZED = '"heads", "group", "seqlen_q", "seqlen_k", "causal_offset"'
_DECORATOR = f"@triton.jit(do_not_specialize=[{_UNSPECIALIZED}])"
# The host's fields, by the template's parameters.
_FIELDS = (
    "BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "maxnreg", "tma", "defer_rescale",
    "diagonal_first", "sum_late", "heads_together",
)  # fmt: skip


def standalone_file(records: Iterable[Record], target: Target) -> str:
    """The text of a Python file that imports torch, Triton and the standard library alone.

    It has `custom_attention_forward(q, k, v, causal=True, sm_scale=None)`, which resolves configs
    as `tuner.resolve` does for `target`. Equal arguments give equal texts.

    Args:
        records: those that stand among the ones of this template, and those in force: where another
            template won, the fastest of this one in the same finals stands in.
    """
    entries = _entries(records, target)
    code = inline(
        "tuner.standalone.portable_host",
        ["custom_attention_forward"],
        {
            "CAPABILITY": str(target.hardware.capability),
            "RECORDS": _records(entries),
            "DEFAULTS": _defaults(),
        },
        {KERNEL: _DECORATOR},
    )
    about = docstring("kernels.attention.portable_kernel")
    title = (
        "Attention forward with tuned configs, in one file.\n\n"
        ">>> out = custom_attention_forward(q, k, v, causal=True)  "
        "# (batch, heads, seqlen, headdim)\n\n"
    )
    exported = '__all__ = ["custom_attention_forward"]'
    header = _header([entry.record for entry in entries], target)
    return f'{header}\n"""{title}{about}\n"""\n\n{code.imports}\n\n{exported}\n\n\n{code.body}\n'


@dataclass(frozen=True, order=True)
class _Entry:
    """What the file says of one problem; the least is the best."""

    rank: int
    ms: float
    uid: str
    record: Record = field(compare=False)
    config: Config = field(compare=False)


def _entries(records: Iterable[Record], target: Target) -> list[_Entry]:
    """The best entry for each problem: by headdim, mask and dtype, then as `resolve` prefers them
    where they are equally near."""
    best: dict[Problem, _Entry] = {}
    for record in records:
        entry = _entry(record, target)
        if entry is not None:
            known = best.get(record.problem)
            best[record.problem] = entry if known is None else min(entry, known)

    def order(entry: _Entry) -> tuple[object, ...]:
        problem = entry.record.problem
        return _shelf(problem), entry.ms / problem.flops, entry.uid

    return sorted(best.values(), key=order)


def _entry(record: Record, target: Target) -> _Entry | None:
    """What `record` says of this template: its winner, or the fastest that lost its finals."""
    problem, capability = record.problem, target.hardware.capability
    if record.target.hardware.capability != capability:
        return None
    found = _raced(record)
    if found is None or not resolve.usable(Candidate(TEMPLATE, found[0]), problem, capability):
        return None
    config, ms = found
    source = resolve.resolve([record], target, problem).source
    rank = _RANKS.get(source)
    if rank is None:
        return None
    if record.candidate.template != TEMPLATE:
        rank = max(rank, _RANKS["stale"])  # of which version the loser was, nobody wrote down
    return _Entry(rank, ms, record.uid, record, config)


def _raced(record: Record) -> tuple[Config, float] | None:
    """The fastest config of this template in the finals of `record`, and its median in ms."""
    if record.candidate.template == TEMPLATE:
        return record.candidate.config, record.measurement.median_ms
    for rival in record.rivals:  # fastest first
        match = re.fullmatch(rf"{TEMPLATE}\((.*)\)", rival.name)
        pairs = re.findall(r"(\w+)=(\w+)", match[1]) if match else []
        if pairs:
            return Config({name: _value(text) for name, text in pairs}), rival.median_ms
    return None


def _value(text: str) -> Value:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else text


def _shelf(problem: Problem) -> tuple[int, bool, str]:
    return problem.headdim, problem.causal, problem.dtype


def _header(records: Sequence[Record], target: Target) -> str:
    here = _card(target)
    days = sorted(record.measured_at[:10] for record in records)
    span = "" if not days else f" of {days[0]}" if days[0] == days[-1] else (
        f" of {days[0]} to {days[-1]}"
    )  # fmt: skip
    lines = [
        f"Configs for {here}, Triton {target.triton}: {len(records)} problems, by records{span}; "
        f"{TEMPLATE} kernel {registry.get(TEMPLATE).version}. What has no record near takes a "
        "default."
    ]
    if cards := sorted({_card(record.target) for record in records} - {here}):
        lines.append(f"Some were measured on {'; '.join(cards)}.")
    if replayed := sum(record.origin == "replay" for record in records):
        lines.append(f"{replayed} of them were replayed from recorded measurements.")
    if lost := sum(record.candidate.template != TEMPLATE for record in records):
        lines.append(
            f"In {lost} of them another template won, which this file does not have: its kernel is "
            "the fastest of the rest."
        )
    fixed = [
        "# ruff: noqa: E741, N803",
        f"# Written by attention-tuner {__version__} (tuner export --format python): export again "
        "rather than edit.",
        "# SPDX-License-Identifier: Apache-2.0",
        "#",
    ]
    return "\n".join([*fixed, *(row for line in lines for row in _comment(line))])


def _card(target: Target) -> str:
    return f"{target.gpu_name} ({target.hardware})"


def _comment(text: str) -> list[str]:
    """`text` as lines of comment: names in it come from a database and may hold anything."""
    plain = re.sub(r"[^ -~]", "?", text)
    return textwrap.wrap(plain, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _records(entries: Iterable[_Entry]) -> str:
    rows: dict[tuple[int, bool, str], list[str]] = {}
    for entry in entries:
        problem = entry.record.problem
        numbers = (entry.rank, problem.seqlen, problem.batch, problem.heads)
        row = _call("Record", [*map(str, numbers), _config(entry.config)], 8)
        rows.setdefault(_shelf(problem), []).append(row)
    return _dict({f'({d}, {c}, "{t}")': _list(of, 4) for (d, c, t), of in rows.items()}, 0)


def _defaults() -> str:
    """Every default of the template, probed: capabilities that agree share a table."""
    tables: dict[str, list[int]] = {}
    for capability in supported():
        table = {}
        for headdim in HEADDIMS:
            for causal in (False, True):
                rows = [
                    f"{' ' * 12}Default({most}, {_config(config)})"
                    for most, config in _by_seqlen(headdim, causal, capability)
                ]
                table[f"({headdim}, {causal})"] = _list(rows, 8)
        tables.setdefault(_dict(table, 4), []).append(capability)
    return _dict({_key(agree): table for table, agree in tables.items()}, 0)


def _key(capabilities: Sequence[int]) -> str:
    return f"({capabilities[0]},)" if len(capabilities) == 1 else str(tuple(capabilities))


def _by_seqlen(headdim: int, causal: bool, capability: int) -> list[tuple[int | None, Config]]:
    """The defaults of growing seqlens, each with the last one that it is for."""
    template = registry.get(TEMPLATE)

    def default(seqlen: int) -> Config:
        return template.default(Problem.on_grid(headdim, seqlen, causal), capability)

    found: list[tuple[int | None, Config]] = []
    low = 1
    while low < _LONGEST:
        high = 2 * low
        if default(low) == default(high):
            low = high
            continue
        before, last = default(low), high
        while last - low > 1:  # the last one that is served as low is
            middle = (low + last) // 2
            low, last = (middle, last) if default(middle) == before else (low, middle)
        found.append((low, before))
        low = last
    return [*found, (None, default(_LONGEST))]


def _config(config: Mapping[str, object]) -> str:
    values = (config.get(name, False) for name in _FIELDS)
    return f"Config({', '.join(map(repr, values))})"


def _call(name: str, arguments: Sequence[str], indent: int) -> str:
    """A call on one line, or one line for each argument, as the formatter would have it."""
    line = f"{' ' * indent}{name}({', '.join(arguments)})"
    if len(line) < _WIDTH:  # a comma follows
        return line
    inner = "".join(f"{' ' * (indent + 4)}{argument},\n" for argument in arguments)
    return f"{' ' * indent}{name}(\n{inner}{' ' * indent})"


def _list(rows: Iterable[str], indent: int) -> str:
    return "[\n" + "".join(f"{row},\n" for row in rows) + " " * indent + "]"


def _dict(items: Mapping[str, str], indent: int) -> str:
    if not items:
        return "{}"
    inner = "".join(f"{' ' * (indent + 4)}{key}: {value},\n" for key, value in items.items())
    return "{\n" + inner + " " * indent + "}"
