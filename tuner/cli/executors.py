"""Opening the executor that a command asks for, with its refusals as errors of the command line."""

from __future__ import annotations

from pathlib import Path

from kernels.attention.printable import shown
from tuner.cli import options, places
from tuner.cli.failure import CommandError
from tuner.evaluate.backend import EXECUTORS, NAMES, open_executor
from tuner.evaluate.executor import Executor, Opening
from tuner.evaluate.ray_connection import names_cluster


def executor_for(
    backend: str | None,
    spaces: Path | None,
    jobs: int | None = None,
    gpus: str | None = None,
    executor: str | None = None,
    ray_address: str | None = None,
    cold_l2: bool = False,
    first: Opening | None = None,
) -> Executor:
    """The executor of `--backend`, `--spaces`, `--gpus`, `--executor` and `--ray-address`, or of
    what this machine has.

    Args:
        cold_l2: time single launches with a cold L2.
        first: what is compiled while the GPU of this machine gets ready.

    Raises:
        CommandError: it cannot be had; one sentence.
    """
    if backend is not None:
        options.one_of("--backend", backend, NAMES)
    if executor is not None:
        options.one_of("--executor", executor, EXECUTORS)
    if backend == "cuda" and spaces is not None:
        raise CommandError("--spaces is for replays, but --backend is cuda: give one of them")
    if spaces is not None:
        places.folder_of_spaces("--spaces", spaces)
    if ray_address is not None and executor != "ray":
        raise CommandError(f"--ray-address is {shown(ray_address)}, but needs --executor ray")
    if ray_address is not None and not names_cluster(ray_address):
        raise CommandError(
            f"--ray-address is {shown(ray_address)}, but must be HOST:PORT, such as 10.0.0.1:6379, "
            "ray://HOST:PORT, auto or local"
        )
    if gpus is not None and executor == "ray":
        raise CommandError(
            f"--gpus is {shown(gpus)}, but --executor ray uses all GPUs of the cluster"
        )
    if gpus is not None and (backend == "replay" or spaces is not None):
        raise CommandError(f"--gpus is {shown(gpus)}, but a replay needs no GPU")
    devices = options.gpus(gpus)
    if gpus is not None:
        devices = _present(gpus, devices)
        backend = "cuda"
    try:
        return open_executor(
            backend, spaces, devices or (0,), jobs, executor, ray_address, cold_l2, first
        )
    except RuntimeError as error:
        asked = f"--backend is {backend}, but " if backend is not None and gpus is None else ""
        raise CommandError(f"{asked}{error}") from error


def needs_gpu(command: str) -> None:
    """Refuse `command` where there is no GPU."""
    from tuner.device import has_gpu

    if not has_gpu():
        raise CommandError(f"`tuner {command}` measures, but there is no NVIDIA GPU here")


def _present(asked: str, devices: tuple[int, ...] | None) -> tuple[int, ...]:
    """`devices`, all of which are there; all there are for None."""
    from tuner.device import gpu_count

    count = gpu_count()
    if count == 0:
        raise CommandError(f"--gpus is {shown(asked)}, but there is no NVIDIA GPU here")
    if devices is not None and max(devices) >= count:
        which = "is GPU 0" if count == 1 else f"are GPUs 0 to {count - 1}"
        raise CommandError(f"--gpus is {shown(asked)}, but here {which} only")
    return tuple(range(count)) if devices is None else devices
