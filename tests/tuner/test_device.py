"""Detecting the GPU, with NVML and torch replaced by what they say elsewhere."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from tuner import device
from tuner.target import Hardware

UUID = "5fd4f6dc-7b53-4a2c-a2b4-0c5f5f3a0001"


def test_cards_that_differ_in_anything_have_different_keys() -> None:
    card = Hardware(90, 132, 80, 700)
    others = [
        replace(card, **{field.name: getattr(card, field.name) - 1}) for field in fields(Hardware)
    ]
    assert len({each.key for each in (card, *others)}) == 1 + len(others)


class NVMLError(Exception):
    pass


class LibraryNotFoundError(NVMLError):
    pass


def nvml(count: int = 1, **more: object) -> SimpleNamespace:
    def handle(uuid: str) -> str:
        assert uuid == f"GPU-{UUID}"
        return uuid

    return SimpleNamespace(
        **{
            "NVMLError": NVMLError,
            "NVMLError_LibraryNotFound": LibraryNotFoundError,
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: count,
            "nvmlSystemGetDriverVersion": lambda: "580.126.09",
            "nvmlDeviceGetHandleByUUID": handle,
            "nvmlDeviceGetPowerManagementLimit": lambda handle: 700_000,
            **more,
        }
    )


def raising(error: type[Exception]) -> object:
    def call(*arguments: object) -> None:
        raise error

    return call


@pytest.fixture(autouse=True)
def visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("fake", "expected"),
    [
        (nvml(1), True),
        (nvml(0), False),
        (nvml(nvmlInit=raising(LibraryNotFoundError)), False),
        (nvml(nvmlDeviceGetCount=raising(NVMLError)), "torch"),
        (nvml(nvmlInit=raising(NVMLError)), "torch"),
    ],
)
def test_has_gpu(monkeypatch: pytest.MonkeyPatch, fake: SimpleNamespace, expected: object) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(device, "_torch_sees_gpu", lambda: "torch")
    assert device.has_gpu() == expected


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles"])
def test_hidden_gpus_do_not_count(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert not device.has_gpu()


@pytest.mark.parametrize(
    ("fake", "power", "driver"),
    [
        (nvml(), 700, "580.126.09"),
        (nvml(nvmlInit=raising(NVMLError)), 0, "unknown"),
        (nvml(nvmlDeviceGetPowerManagementLimit=raising(NVMLError)), 0, "580.126.09"),
    ],
)
def test_detect(
    monkeypatch: pytest.MonkeyPatch, fake: SimpleNamespace, power: int, driver: str
) -> None:
    torch = pytest.importorskip("torch")
    properties = SimpleNamespace(
        major=9, minor=0, multi_processor_count=132, total_memory=85_024_899_072,
        name="NVIDIA H100 80GB HBM3", uuid=UUID,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    device.detect.cache_clear()
    try:
        target = device.detect(0)
        assert target.hardware == Hardware(90, 132, 79, power)
    finally:
        device.detect.cache_clear()
    assert target.driver == driver
    assert target.torch == torch.__version__
    assert target.gpu_name == "NVIDIA H100 80GB HBM3"


def test_looking_for_a_gpu_imports_no_torch() -> None:
    script = (
        "import sys; sys.path[:] = sys.argv[1:]\n"
        "import pynvml\n"
        "from tuner import device\n"
        "device.has_gpu()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, *sys.path], check=True, timeout=60)
