"""What the CUDA driver says of this machine's GPU: without torch, and without making a context.

Its figures are those that torch reports, so that a target found here equals one found there.
"""

from __future__ import annotations

import ctypes
import sys

from tuner.device import ask_nvml, installed_version
from tuner.target import Hardware, Target

# CUdevice_attribute, CUDA driver API
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76


def target() -> Target | None:
    """The target that the first CUDA device is; None where there is no driver or no device."""
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name, uuid = ctypes.create_string_buffer(128), ctypes.create_string_buffer(16)
    if (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), 0)
        or cuda.cuDeviceGetName(name, len(name), device)
        or cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        or cuda.cuDeviceGetUuid(uuid, device)
    ):
        return None
    power_limit_w, driver = ask_nvml(_nvml_name(uuid.raw))
    return Target(
        hardware=Hardware(
            capability=10 * _attribute(cuda, _MAJOR, device) + _attribute(cuda, _MINOR, device),
            sm_count=_attribute(cuda, _MULTIPROCESSORS, device),
            memory_gib=round(memory.value / 2**30),
            power_limit_w=power_limit_w,
        ),
        gpu_name=name.value.decode(),
        triton=installed_version("triton"),
        torch=installed_version("torch"),
        driver=driver,
    )


def _nvml_name(uuid: bytes) -> str:
    parts = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    return "GPU-" + "-".join(uuid.hex()[start:end] for start, end in parts)


def _attribute(cuda: ctypes.CDLL, attribute: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return value.value
