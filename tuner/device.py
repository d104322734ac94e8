"""Which target a GPU of this machine is."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from functools import cache

from tuner.target import Hardware, Target

_NO_GPU = ("", "-1", "NoDevFiles")


@cache
def detect(index: int = 0) -> Target:
    """The target that CUDA device `index` of this process is. Cached; safe under graph capture.

    Raises:
        RuntimeError: torch finds no such device.
    """
    import torch

    properties = torch.cuda.get_device_properties(index)
    power_limit_w, driver = ask_nvml(uuid(index))
    return Target(
        hardware=Hardware(
            capability=10 * properties.major + properties.minor,
            sm_count=properties.multi_processor_count,
            memory_gib=round(properties.total_memory / 2**30),
            power_limit_w=power_limit_w,
        ),
        gpu_name=properties.name,
        triton=installed_version("triton"),
        torch=str(torch.__version__),
        driver=driver,
    )


def uuid(index: int = 0) -> str | None:
    """NVML's name for CUDA device `index`, whose numbers NVML does not share; None if unknown."""
    import torch

    found = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if found is None else f"GPU-{found}"


def has_gpu() -> bool:
    """Whether this process may use an NVIDIA GPU.

    Creates no CUDA context, and imports torch only if NVML exists but cannot tell.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() in _NO_GPU:
        return False
    try:
        import pynvml
    except ImportError:
        return _torch_sees_gpu()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return False  # no driver
    except pynvml.NVMLError:
        return _torch_sees_gpu()
    try:
        return bool(pynvml.nvmlDeviceGetCount() > 0)
    except pynvml.NVMLError:
        return _torch_sees_gpu()
    finally:
        pynvml.nvmlShutdown()


def gpu_count() -> int:
    """How many NVIDIA GPUs this process may use. Creates no CUDA context."""
    import torch

    return int(torch.cuda.device_count())


def _torch_sees_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def ask_nvml(name: str | None) -> tuple[int, str]:
    """Power limit in W, 0 where NVML does not answer, and the driver's version.

    Args:
        name: the GPU as NVML spells it ("GPU-…"), or None.
    """
    power_limit_w, driver = 0, "unknown"
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no library, no permission: all the same to us
        return power_limit_w, driver
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        if name is not None:
            handle = pynvml.nvmlDeviceGetHandleByUUID(name)
            power_limit_w = round(pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000)
    except pynvml.NVMLError:
        pass  # a MIG slice or a virtual GPU has no power limit of its own
    finally:
        pynvml.nvmlShutdown()
    return power_limit_w, driver


def installed_version(distribution: str) -> str:
    """The version of a distribution, "none" if it is not installed; imports nothing."""
    module = sys.modules.get(distribution)
    if module is not None and hasattr(module, "__version__"):
        return str(module.__version__)
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"
