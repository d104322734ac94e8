"""A standalone file: the templates' kernels, their configs and a launch, in Python.

The kernels are the repository's own sources, taken over by `inline`; only their names and their
decorators are others. Another template takes a form in `forms` and a host like hopper_host.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from kernels.attention import registry
from tuner.record import Record
from tuner.standalone.contents import Contents
from tuner.standalone.forms import KERNEL, Form, forms
from tuner.standalone.inline import Changes, docstring, inline
from tuner.standalone.literals import WIDTH
from tuner.target import Target
from tuner.version import __version__

_ENTRY = "custom_attention_forward"


def standalone_file(records: Iterable[Record], target: Target) -> str:
    """The text of a Python file that imports torch, Triton and the standard library alone.

    It has `custom_attention_forward(q, k, v, causal=True, sm_scale=None)`, which resolves configs
    as `tuner.resolve` does for `target`. Equal arguments give equal texts.

    Args:
        records: those that stand.

    Raises:
        LookupError: no template serves the target.
    """
    held = forms(target.hardware.capability)
    contents = Contents(records, target, held)
    # The kernel that serves the target is called KERNEL; another one says in its name what it is.
    names = {form.kernel: KERNEL for form in held[:1]}
    changes = Changes(
        values={
            "CAPABILITY": str(target.hardware.capability),
            "RECORDS": contents.records(),
            "DEFAULTS": contents.defaults(),
        },
        decorators={names.get(form.kernel, form.kernel): form.decorator for form in held},
        annotations={names.get(form.kernel, form.kernel): form.annotations for form in held},
        names=names,
    )
    entries = [(form.host, form.config) for form in held]
    code = inline([*entries, ("tuner.standalone.entry_host", _ENTRY)], changes)
    exported = f'__all__ = ["{_ENTRY}"]'
    header = _header(contents.used, target, held)
    about = _about(held, names)
    return f'{header}\n"""{about}\n"""\n\n{code.imports}\n\n{exported}\n\n\n{code.body}\n'


def _about(held: Sequence[Form], names: dict[str, str]) -> str:
    paragraphs = [
        "Attention forward with tuned configs, in one file.",
        f">>> out = {_ENTRY}(q, k, v, causal=True)  # (batch, heads, seqlen, headdim)",
    ]
    if len(held) > 1:
        kernels = "".join(
            f"`{names.get(form.kernel, form.kernel)}` is the {form.template} template's kernel.\n"
            for form in held
        )
        paragraphs.append(f"{kernels}What their modules say of themselves:")
    for form in reversed(held):  # the portable one's algorithm is that of the others
        for module in form.about:
            text = docstring(f"kernels.attention.{module}")
            if len(held) > 1:
                title = f"{module}.py"
                text = f"{title}\n{'-' * len(title)}\n\n{text}"
            paragraphs.append(text)
    return "\n\n".join(paragraphs)


def _header(records: Sequence[Record], target: Target, held: Sequence[Form]) -> str:
    days = sorted(record.measured_at[:10] for record in records)
    span = "" if not days else f" of {days[0]}" if days[0] == days[-1] else (
        f" of {days[0]} to {days[-1]}"
    )  # fmt: skip
    known = f"{len(records)} problems, by records{span}" if records else "defaults, without records"
    kernels = ", ".join(
        f"{form.template} kernel {registry.get(form.template).version}" for form in held
    )
    lines = [f"Configs for {target}: {known}; {kernels}. What has no record near takes a default."]
    if cards := sorted({_card(record.target) for record in records} - {_card(target)}):
        lines.append(f"Some were measured on {'; '.join(cards)}.")
    if replayed := sum(record.origin == "replay" for record in records):
        lines.append(f"{replayed} of them were replayed from recorded measurements.")
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
    return textwrap.wrap(plain, WIDTH, initial_indent="# ", subsequent_indent="# ")
