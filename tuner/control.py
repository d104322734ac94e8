"""What people ask and change about the configs that attention runs by: which one serves a problem,
from which database, and whether that is followed at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from types import TracebackType

import torch

from kernels.attention import registry
from kernels.attention.capability import supported
from kernels.attention.config import Config, Value
from kernels.attention.problem import DTYPES, HEADDIMS, Problem, Specialization
from tuner import device, misses, plans, snapshot
from tuner.resolve import Resolution
from tuner.snapshot import Snapshot
from tuner.target import Target
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
    problem = Problem.on_grid(headdim, seqlen, causal, dtype, batch, heads)
    if target is not None and not isinstance(target, Target):
        raise TypeError(f"target is {target!r}, but must be a tuner.target.Target or None")
    if target is None:
        if not torch.cuda.is_available():
            raise RuntimeError("there is no CUDA device here: give a target")
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
    """What `pin` returns: leaving it as a context ends the pinning."""

    def __init__(self, candidates: tuple[Candidate, ...]) -> None:
        self.candidates = candidates

    def __enter__(self) -> Pin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pin(None)


def pin(config: Candidate | Mapping[str, Value] | None, template: str | None = None) -> Pin:
    """Serve every call that `config` can serve by it, whatever the records say; for debugging.

    Args:
        config: a candidate, as in a Resolution; or a config's parameters; None ends the pinning.
        template: whose config it is; None: of every template that accepts it.

    Returns:
        A context manager that ends the pinning; it need not be used as one.

    Raises:
        TypeError: `config` is none.
        ValueError: no template accepts it for any problem.
    """
    candidates = _candidates(config, template)
    plans.renew(lambda: plans.pin(candidates))
    return Pin(candidates)


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
        return ()
    if isinstance(config, Candidate):
        return _candidates(config.config, config.template)
    if not isinstance(config, Mapping):
        raise TypeError(
            f"config is of type {type(config).__name__}, but must be a candidate, a mapping or None"
        )
    if template is not None and template not in registry.names():
        raise ValueError(
            f"template is {template!r}, but must be one of {', '.join(registry.names())}"
        )
    wanted = Config(config)
    names = registry.names() if template is None else (template,)
    accepting = tuple(
        Candidate(name, wanted) for name in names if _accepted(registry.get(name).reject, wanted)
    )
    if not accepting:
        takes = "; ".join(f"{name} takes {_parameters(name)}" for name in names)
        raise ValueError(
            f"config is {wanted!r}, but no template accepts that for any problem: {takes}"
        )
    return accepting


def _parameters(template: str) -> str:
    return ", ".join(registry.get(template).space(Specialization(HEADDIMS[0], True, DTYPES[0])))


def _accepted(reject: Callable[[Specialization, Config, int], str | None], config: Config) -> bool:
    specializations = (
        Specialization(headdim, causal, dtype)
        for headdim, causal, dtype in product(HEADDIMS, (True, False), DTYPES)
    )
    return any(
        reject(specialization, config, capability) is None
        for specialization, capability in product(specializations, supported())
    )
