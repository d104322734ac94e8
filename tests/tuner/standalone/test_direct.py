"""Where a standalone file leaves a launch to Triton, instead of repeating it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("triton")

import triton

from tuner.standalone import direct

KERNEL, WORK = "a kernel", "the work"


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Triton whose launcher is known: what is loaded and what launches are names."""
    monkeypatch.setattr(triton, "__version__", "3.9.1")
    monkeypatch.setattr(direct, "Loaded", lambda kernel: ("loaded", kernel))
    monkeypatch.setattr(direct, "DirectLaunch", lambda loaded, work: (loaded, work))
    direct.loaded.cache_clear()
    yield
    direct.loaded.cache_clear()


def launch() -> Any:
    return direct.direct(KERNEL, WORK, 0)  # type: ignore[arg-type]


def test_a_known_triton_is_repeated() -> None:
    assert launch() == (("loaded", KERNEL), WORK)


@pytest.mark.parametrize("version", ["3.10.0", "4.0.0+git1234"])
def test_a_newer_triton_launches_itself(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", version)
    assert launch() is None


@pytest.mark.parametrize("name", ["Loaded", "DirectLaunch"])
def test_a_launcher_that_is_not_known_after_all_is_no_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise AttributeError("tensordesc_meta")

    monkeypatch.setattr(direct, name, unknown)
    assert launch() is None
