"""How each template is written in a standalone file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernels.attention import registry
from kernels.attention.problem import DTYPES, HEADDIMS, Specialization
from tuner.standalone.literals import WIDTH, listing

KERNEL = "_custom_attn_fwd"


@dataclass(frozen=True)
class Form:
    """A template's kernel in a standalone file.

    Attributes:
        template: its name.
        host: the module that launches it, which has `config`.
        config: the class of its configs, with the template's parameters as fields, in this order.
        kernel: what `host` calls the kernel.
        jit: the decorator's name.
        unspecialized: integers that get no binaries of their own, as in the template.
        annotations: types of integers that are not to be told from their values.
        about: the modules whose docstrings explain the kernel.
    """

    template: str
    host: str
    config: str
    parameters: tuple[str, ...]
    kernel: str
    jit: str
    unspecialized: tuple[str, ...]
    about: tuple[str, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def decorator(self) -> str:
        names = [f'"{name}"' for name in self.unspecialized]
        line = f"@{self.jit}(do_not_specialize=[{', '.join(names)}])"
        if len(line) <= WIDTH:
            return line
        return f"@{self.jit}(\n    do_not_specialize={listing((' ' * 8 + n for n in names), 4)}\n)"

    def write(self, config: Mapping[str, object]) -> str:
        """A config of the template, as a call of its class."""
        values = (config.get(name, False) for name in self.parameters)
        return f"{self.config}({', '.join(map(repr, values))})"


_HOPPER = Form(
    template="hopper",
    host="tuner.standalone.hopper_host",
    config="Hopper",
    parameters=(
        "BLOCK_N", "consumers", "stages", "q_buffers", "ping_pong", "defer_rescale", "whole_loop",
        "early_halves", "q_held",
    ),
    kernel=KERNEL,
    jit="gluon.jit",
    unspecialized=(
        "heads", "by_heads", "by_group", "seqlen_q", "seqlen_k", "causal_offset", "programs",
        "tiles", "by_tiles", "units", "unit_turns", "items", "item_turns", "paired_heads",
        "single_heads", "by_single_heads",
    ),
    annotations=dict.fromkeys(("out_batch", "out_head", "out_row"), "gl.int64"),
    about=(
        "hopper_kernel", "hopper_schedule", "hopper_pipeline", "hopper_matmuls", "hopper_softmax",
        "hopper_ptx",
    ),
)  # fmt: skip

_PORTABLE = Form(
    template="portable",
    host="tuner.standalone.portable_host",
    config="Portable",
    parameters=(
        "BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "maxnreg", "tma", "defer_rescale",
        "diagonal_first", "sum_late", "heads_together",
    ),
    kernel=f"{KERNEL}_portable",
    jit="triton.jit",
    unspecialized=("heads", "group", "seqlen_q", "seqlen_k", "causal_offset"),
    about=("portable_kernel",),
)  # fmt: skip

_FORMS = {form.template: form for form in (_HOPPER, _PORTABLE)}


def forms(capability: int) -> tuple[Form, ...]:
    """Those of a file for a target, in the order in which the registry prefers their templates: the
    ones that serve it, and the portable one, for what else the file may meet.

    Raises:
        LookupError: no template serves the target.
    """
    some = Specialization(HEADDIMS[0], True, DTYPES[0])
    if refusal := registry.get(_PORTABLE.template).supports(some, capability):
        raise LookupError(f"no kernel serves the target: {refusal}")
    return tuple(
        form
        for form in (_FORMS[name] for name in registry.names())
        if form is _PORTABLE or registry.get(form.template).supports(some, capability) is None
    )
