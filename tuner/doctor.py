"""Whether this machine has what tuning, replaying and running need, and what to do if not.

Every check looks at one thing and never raises. Nothing is imported that costs time unless the
check is about it, and no CUDA context is made.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernels.attention.capability import supported
from kernels.attention.compiler import CACHE_VARIABLE, cache_folder
from tuner.device import installed_version
from tuner.standing import standing
from tuner.store.database import Store, parse_location
from tuner.store.errors import StoreError
from tuner.store.locations import shipped_database, user_database

Verdict = Literal["ok", "warn", "fail"]

MIN_PYTHON = (3, 10)
MIN_TRITON = (3, 6)

_PTXAS_TIMEOUT_S = 20


@dataclass(frozen=True)
class Finding:
    """What one check saw."""

    name: str
    verdict: Verdict
    seen: str
    remedy: str = ""  # one sentence; empty where there is nothing to do


def examine(database: str | None = None) -> list[Finding]:
    """Run every check. `database` is what `--db` says.

    A check that fails in a way it did not foresee is itself a finding."""
    checks: dict[str, Callable[[], Finding]] = {
        "python": _python,
        "triton": _triton,
        "torch": _torch,
        "driver and GPU": _gpu,
        "ptxas": _ptxas,
        "compile cache": _cache,
        "your database": lambda: _user_database(database),
        "shipped database": _shipped_database,
        "import name `kernels`": _coexistence,
    }
    findings = []
    for name, check in checks.items():
        try:
            findings.append(check())
        except Exception as error:
            findings.append(
                Finding(name, "fail", f"{type(error).__name__}: {error}", "Please report this.")
            )
    return findings


def _python() -> Finding:
    seen = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info[:2] < MIN_PYTHON:
        return Finding("python", "fail", seen, "Use Python 3.10 or newer.")
    return Finding("python", "ok", seen)


def _triton() -> Finding:
    version = installed_version("triton")
    if version == "none":
        return Finding(
            "triton", "warn", "not installed",
            "Search replays and the database work without; to compile or run, install triton "
            "(Linux only).",
        )  # fmt: skip
    if _numbers(version) < MIN_TRITON:
        return Finding("triton", "fail", version, "Install triton 3.6 or newer.")
    return Finding("triton", "ok", version)


def _torch() -> Finding:
    version = installed_version("torch")
    if version == "none":
        return Finding(
            "torch", "warn", "not installed",
            "Search replays and the database work without; to measure or run, install torch.",
        )  # fmt: skip
    if "+cpu" in version:
        return Finding(
            "torch", "warn", version, "This build runs on the CPU only: on a GPU machine, install "
            "the CUDA build."
        )  # fmt: skip
    return Finding("torch", "ok", version)


def _gpu() -> Finding:
    name = "driver and GPU"
    try:
        import pynvml
    except ImportError:
        return Finding(name, "warn", "unknown", "Install nvidia-ml-py.")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Finding(
            name, "warn", f"none found ({error})",
            "Search replays recorded measurements here; to measure, use a machine with an NVIDIA "
            "GPU and its driver.",
        )  # fmt: skip
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            gpus.append((pynvml.nvmlDeviceGetName(handle), 10 * major + minor))
    finally:
        pynvml.nvmlShutdown()
    seen = f"driver {driver}; " + ", ".join(f"{gpu} (sm_{sm})" for gpu, sm in gpus)
    least = supported()[0]
    if not any(sm >= least for _, sm in gpus):
        return Finding(name, "warn", seen, f"No GPU is sm_{least} or newer.")
    return Finding(name, "ok", seen)


def _ptxas() -> Finding:
    spec = importlib.util.find_spec("triton")
    own = os.environ.get("TRITON_PTXAS_PATH")
    if own:
        path: Path | None = Path(own)
    elif spec and spec.origin:
        path = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"
    else:
        found = shutil.which("ptxas")
        path = Path(found) if found else None
    if path is None or not path.exists():
        return Finding(
            "ptxas", "warn", f"{path or 'none'} does not exist", "Triton brings it: install triton."
        )
    remedy = "Name another with TRITON_PTXAS_PATH, or unset it." if own else "Reinstall triton."
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", check=False,
            timeout=_PTXAS_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or f"no answer within {_PTXAS_TIMEOUT_S} s"
        return Finding("ptxas", "fail", f"{path} does not run: {why}", remedy)
    if answer.returncode != 0:
        return Finding("ptxas", "fail", f"{path} does not run", remedy)
    # "Cuda compilation tools, release 12.8, V12.8.93", on which Triton relies, too
    if not re.search(r"\brelease \d+\.\d+", answer.stdout):
        return Finding("ptxas", "fail", f"{path} does not answer as ptxas does", remedy)
    return Finding("ptxas", "ok", answer.stdout.strip().splitlines()[-1])


def _cache() -> Finding:
    folder = cache_folder()
    if not _writable(folder):
        remedy = f"Set {CACHE_VARIABLE} to a folder that is."
        return Finding("compile cache", "fail", f"{folder} is not writable", remedy)
    return Finding("compile cache", "ok", str(folder))


def _user_database(option: str | None) -> Finding:
    name, remedy = "your database", "Name another with --db or TUNER_DB, or repair this one."
    try:
        place = parse_location(user_database(option))
        if isinstance(place, Path) and not place.exists():
            if not _writable(place.parent):
                return Finding(name, "fail", f"{place} cannot be made", remedy)
            return Finding(name, "ok", f"{place}, made by the first search")
        with Store.read_only(user_database(option)) as store:
            count, seen = _count(store), store.location
    except (StoreError, OSError) as error:  # OSError: a folder one may not enter
        return Finding(name, "fail", str(error), remedy)
    if isinstance(place, Path) and not (os.access(place, os.W_OK) and _writable(place.parent)):
        return Finding(name, "fail", f"{place} is not writable", remedy)
    return Finding(name, "ok", f"{seen}, {count}")


def _count(store: Store) -> str:
    records = store.records()
    return f"records: {len(records)}, of which {len(standing(records))} in force"


def _shipped_database() -> Finding:
    name, remedy = "shipped database", "Reinstall attention-tuner."
    path = shipped_database()
    if path is None:
        return Finding(name, "fail", "missing", remedy)
    try:
        with Store.read_only(path) as store:
            return Finding(name, "ok", f"{path}, {_count(store)}")
    except StoreError as error:
        return Finding(name, "fail", str(error), remedy)


def _coexistence() -> Finding:
    name = "import name `kernels`"
    import kernels.attention

    theirs = installed_version("kernels")
    if theirs == "none":
        return Finding(name, "ok", f"ours alone, from {Path(kernels.attention.__file__).parent}")
    if not hasattr(kernels, "get_kernel"):
        return Finding(
            name, "warn", f"Hugging Face kernels {theirs} is installed, but something hides it",
            "Look for another package or folder called kernels on Python's path.",
        )  # fmt: skip
    return Finding(name, "ok", f"shared with Hugging Face kernels {theirs}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())


def _writable(folder: Path) -> bool:
    """Whether files can be made in `folder`, or where it would be made.

    By trying: permission bits say nothing to root, on read-only mounts or on full disks.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError:
        return False
    return True
