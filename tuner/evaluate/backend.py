"""Which executor serves a command: this machine's GPUs, a cluster's, or a replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernels.attention.printable import shown
from tuner.device import has_gpu
from tuner.evaluate.executor import Executor, Opening

NAMES = ("cuda", "replay")
EXECUTORS = ("local", "ray")


def open_executor(
    backend: str | None = None,
    spaces: Path | None = None,
    devices: Sequence[int] = (0,),
    jobs: int | None = None,
    executor: str | None = None,
    ray_address: str | None = None,
    cold_l2: bool = False,
    first: Opening | None = None,
) -> Executor:
    """The executor by name; None takes the GPU if there is one, unless `spaces` asks for a replay.

    Args:
        spaces: folder of recorded spaces; None: those that come with the package.
        devices, jobs, cold_l2, first: see `LocalExecutor`.
        executor: `local`, as None, or `ray`: on a cluster, whose GPUs count instead of ours. There
            a replay is a rehearsal: by actors and tasks, as if measured.
        ray_address: see `RayExecutor`.

    Raises:
        ValueError: a name is unknown, or the replay has nothing to serve.
        RuntimeError: the GPU or the cluster cannot be used.
        OSError: `spaces` cannot be read.
    """
    if executor not in (None, *EXECUTORS):
        raise ValueError(
            f"executor is {shown(executor)}, but must be one of {', '.join(EXECUTORS)}"
        )
    if backend is None:
        has = executor == "ray" or has_gpu()
        backend = "cuda" if spaces is None and has else "replay"
    if backend not in NAMES:
        raise ValueError(f"backend is {shown(backend)}, but must be one of {', '.join(NAMES)}")
    if cold_l2 and backend == "replay":
        raise RuntimeError("recorded spaces are of a warm L2, so latency cannot be replayed")
    if cold_l2 and executor == "ray":
        raise RuntimeError("executor is ray, but latency is measured on this machine alone")
    if executor == "ray":
        return _on_cluster(backend, spaces, ray_address)
    if backend == "cuda":
        from tuner.evaluate.local import LocalExecutor

        return LocalExecutor(devices, jobs, cold_l2=cold_l2, first=first)
    from tuner.evaluate.replay import ReplayExecutor

    return ReplayExecutor(spaces)


def _on_cluster(backend: str, spaces: Path | None, address: str | None) -> Executor:
    from tuner.evaluate.ray_cluster import RayExecutor

    if backend == "cuda":
        return RayExecutor(address)

    from tuner.evaluate import rehearsal
    from tuner.evaluate.replay import ReplayExecutor

    recorded = ReplayExecutor(spaces)
    options = rehearsal.options(spaces)
    cluster = RayExecutor(
        address,
        gpu_factory=rehearsal.GPU_FACTORY,
        gpu_options=options,
        compile_factory=rehearsal.COMPILE_FACTORY,
        compile_options=options,
    )
    return rehearsal.Rehearsal(cluster, recorded)
