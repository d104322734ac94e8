"""Opening the executor that a command asks for, with its refusals as errors of the command line."""

from __future__ import annotations

from pathlib import Path

from tuner.cli import options
from tuner.cli.failure import CommandError
from tuner.evaluate.backend import NAMES, open_executor
from tuner.evaluate.executor import Executor


def executor_for(
    backend: str | None, spaces: Path | None, jobs: int | None = None, cold_l2: bool = False
) -> Executor:
    """The executor of `--backend` and `--spaces`, or of what this machine has.

    Raises:
        CommandError: it cannot be had; one sentence.
    """
    if backend is not None:
        options.one_of("--backend", backend, NAMES)
    if backend == "cuda" and spaces is not None:
        raise CommandError("--spaces is for replays, but --backend is cuda: give one of them")
    if spaces is not None and not spaces.is_dir():
        raise CommandError(f"--spaces is '{spaces}', but must be a folder of recorded spaces")
    try:
        return open_executor(backend, spaces, jobs=jobs, cold_l2=cold_l2)
    except RuntimeError as error:
        raise CommandError(str(error)) from error


def needs_gpu(command: str) -> None:
    """Refuse `command` where there is no GPU."""
    from tuner.device import has_gpu

    if not has_gpu():
        raise CommandError(f"`tuner {command}` measures, but there is no NVIDIA GPU here")
