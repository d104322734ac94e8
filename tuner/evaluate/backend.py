"""Which executor serves a command: this machine's GPUs, or a replay where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tuner.device import has_gpu
from tuner.evaluate.executor import Executor

NAMES = ("cuda", "replay")


def open_executor(
    backend: str | None = None,
    spaces: Path | None = None,
    devices: Sequence[int] = (0,),
    jobs: int | None = None,
    cold_l2: bool = False,
) -> Executor:
    """The executor by name; None takes the GPU if there is one, unless `spaces` asks for a replay.

    Args:
        spaces: folder of recorded spaces; None: those that come with the package.
        devices, jobs, cold_l2: see `LocalExecutor`.

    Raises:
        ValueError: the name is unknown, or the replay has nothing to serve.
        RuntimeError: the GPU cannot be used.
        OSError: `spaces` cannot be read.
    """
    if backend is None:
        backend = "cuda" if spaces is None and has_gpu() else "replay"
    if backend == "cuda":
        from tuner.evaluate.local import LocalExecutor

        return LocalExecutor(devices, jobs, cold_l2=cold_l2)
    if backend == "replay":
        if cold_l2:
            raise RuntimeError("recorded spaces are of a warm L2, so latency cannot be replayed")
        from tuner.evaluate.replay import ReplayExecutor

        return ReplayExecutor(spaces)
    raise ValueError(f"backend is {backend!r}, but must be one of {', '.join(NAMES)}")
