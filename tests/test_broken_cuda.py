"""After a test that broke CUDA in its process, the others say so instead of failing obscurely."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest


def item(name: str, gpu: bool = True) -> Any:
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda mark: gpu and mark == "gpu")


def call(test: Any) -> None:
    hook = conftest.pytest_runtest_call(test)
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(None)


def test_the_test_that_broke_cuda_fails_and_is_named_by_all_that_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def synchronize() -> None:
        if broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    broken = False
    cuda = SimpleNamespace(is_initialized=lambda: True, synchronize=synchronize)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(conftest, "_breaker", [])
    call(item("first"))
    conftest.pytest_runtest_setup(item("second"))
    broken = True
    call(item("no kernel of mine", gpu=False))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        call(item("second"))
    with pytest.raises(pytest.fail.Exception, match="not run, since second broke CUDA"):
        conftest.pytest_runtest_setup(item("third"))
    conftest.pytest_runtest_setup(item("fourth", gpu=False))
