"""What people ask and change about the configs that attention runs by: which one serves a problem,
from which database, and whether that is followed at all."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import product, starmap
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from kernels.attention import registry
from kernels.attention.capability import supported
from kernels.attention.config import Config, Value
from kernels.attention.printable import shown
from kernels.attention.problem import DTYPES, HEADDIMS, Problem, Specialization
from kernels.attention.template import Template
from tuner import device, misses, plans, snapshot
from tuner.resolve import Resolution
from tuner.snapshot import Snapshot
from tuner.target import Hardware, Target
from tuner.trial import Candidate


def lookup(
    headdim: int,
    seqlen: int,
    causal: bool = True,
    dtype: str = "fp16",
    batch: int | None = None,
    heads: int | None = None,
    target: Target | None = None,
) -> Resolution:
    """Which config would serve this problem, from which record, and why.

    Args:
        batch, heads: by default those of the benchmark grid (16384 tokens, hidden size 2048).
        target: by default the current CUDA device.

    Raises:
        ValueError: a field is out of its domain.
        TypeError: `target` is none.
        LookupError: no template serves it.
        RuntimeError: no target is given and there is no CUDA device.
    """
    problem = Problem.on_grid(
        _whole(headdim), _whole(seqlen), causal, dtype, _whole(batch), _whole(heads)
    )
    if target is not None and not isinstance(target, Target):
        raise TypeError(f"target is {shown(target)}, but must be a tuner.target.Target or None")
    if target is not None and not isinstance(target.hardware, Hardware):
        raise TypeError(
            f"target.hardware is {shown(target.hardware)}, but must be a tuner.target.Hardware"
        )
    if target is None:
        if not torch.cuda.is_available():
            raise RuntimeError(
                "target is None, but must be a tuner.target.Target where there is no CUDA device"
            )
        target = device.detect(torch.cuda.current_device())
    return plans.resolution_for(target, problem)


def use(db: str | Path | None = None) -> str:
    """Read the records again, from `db` over the shipped ones (None: TUNER_DB, else the user's
    own). Shapes met before are resolved anew at their next call; captured CUDA graphs keep what
    they captured, and one that is being captured goes on as it began.

    Returns:
        The snapshot's hash, equal wherever the same records are in force.
    """
    fresh = Snapshot.load(db)
    plans.renew(lambda: snapshot.replace(fresh))
    return fresh.digest


def refresh() -> str:
    """Take up the records again if their database has changed; as `use` if it has. A file's changes
    are also noticed by themselves, some seconds later, when a new shape is met (TUNER_REFRESH=0
    turns that off).

    Returns:
        The snapshot's hash.
    """
    snapshot.current()
    plans.renew_if_changed(at_once=True)
    return snapshot.current().digest


def snapshot_hash() -> str:
    """Sixteen hex digits over the records in force: distributed ranks that agree in them run the
    same configs."""
    return snapshot.current().digest


class Pin:
    """What `pin` returns. As a context it pins until it is left; what was pinned before serves
    again then."""

    def __init__(self, candidates: tuple[Candidate, ...]) -> None:
        self.candidates = candidates
        self._entered = False

    def __enter__(self) -> Pin:
        self._entered = True
        _change(lambda pins: [*(pin for pin in pins if pin is not self), self])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered = False
        _change(lambda pins: [pin for pin in pins if pin is not self])


# Those in force, of which the last one serves.
_pins: list[Pin] = []


def _change(pins: Callable[[list[Pin]], list[Pin]]) -> None:
    def change() -> None:
        global _pins
        _pins = pins(_pins)
        plans.pin(_pins[-1].candidates if _pins else ())

    plans.renew(change)


def pin(config: Candidate | Mapping[str, Value] | None, template: str | None = None) -> Pin:
    """Serve every call that `config` can serve by it, whatever the records say; for debugging.

    Args:
        config: a candidate, as in a Resolution; or a config's parameters; None ends the pinning.
        template: whose config it is; None: of every template that accepts it.

    Returns:
        A context manager that ends the pinning, or brings back an outer one; it need not be used
        as one.

    Raises:
        TypeError: `config` is none.
        ValueError: no template accepts it for any problem, or `template` does not go with it.
    """
    new = Pin(_candidates(config, template))
    if config is None:
        _change(lambda _: [])
    else:
        # Of those that are no context the last one may come back, if this is one.
        _change(lambda pins: [*(pin for pin in pins if pin._entered or pin is pins[-1]), new])
    return new


def flush_misses() -> Path | None:
    """Write the misses noted so far, which otherwise happens at exit; see `misses`.

    Returns:
        The file written; None if there was nothing to write.

    Raises:
        StoreError: it cannot be written.
    """
    return misses.flush()


def _candidates(
    config: Candidate | Mapping[str, Value] | None, template: str | None
) -> tuple[Candidate, ...]:
    if config is None:
        if template is not None:
            raise ValueError(
                f"template is {shown(template)}, but config is None, which ends the pinning and "
                "goes with no template"
            )
        return ()
    values: Any = config
    if isinstance(config, Candidate):
        if template is not None and template != config.template:
            raise ValueError(
                f"template is {shown(template)}, but config is a candidate of "
                f"{shown(config.template)}, which goes with no other template"
            )
        values, template = config.config, config.template
        _check_template("config's template", template)
        if not isinstance(values, Mapping):
            raise TypeError(
                f"config's config is of type {type(values).__name__}, but must be a mapping"
            )
    elif not isinstance(config, Mapping):
        raise TypeError(
            f"config is of type {type(config).__name__}, but must be a candidate, a mapping or None"
        )
    elif template is not None:
        _check_template("template", template)
    wanted = Config(values)
    names = registry.names() if template is None else (template,)
    reasons = {name: _reasons(registry.get(name), wanted) for name in names}
    accepting = tuple(Candidate(name, wanted) for name in names if None in reasons[name])
    if accepting:
        return accepting
    for name in names:
        if reasons[name]:
            ((reason, _),) = reasons[name].most_common(1)
            raise ValueError(
                f"config is {shown(wanted)}, but {name} accepts that for no problem: {reason}"
            )
    takes = "; ".join(f"{name} takes {_parameters(name)}" for name in names)
    raise ValueError(
        f"config is {shown(wanted)}, but no template accepts that for any problem: {takes}"
    )


def _check_template(name: str, template: object) -> None:
    if not isinstance(template, str) or template not in registry.names():
        raise ValueError(
            f"{name} is {shown(template)}, but must be one of {', '.join(registry.names())}"
        )


def _parameters(template: str) -> str:
    return ", ".join(registry.get(template).space(Specialization(HEADDIMS[0], True, DTYPES[0])))


def _reasons(template: Template, config: Config) -> Counter[str | None]:
    """Why `template` rejects `config`, and how often, over all that it serves with parameters of
    these names; None stands for where it accepts it."""
    return Counter(
        template.reject(specialization, config, capability)
        for specialization in starmap(Specialization, product(HEADDIMS, (True, False), DTYPES))
        if set(template.space(specialization)) == set(config)
        for capability in supported()
        if template.supports(specialization, capability) is None
    )


def _whole(value: Any) -> Any:
    """Whole numbers of other libraries, such as numpy's, as Python's; all else as it is, for
    `Problem` to refuse. Asking a tensor might wait for a GPU."""
    if isinstance(value, (bool, torch.Tensor)):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value
