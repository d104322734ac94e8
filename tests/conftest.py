"""What every test gets: no access to the user's database, a skip where a GPU is needed and there is
none, and a plain word where an earlier test broke it."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

# Before NumPy is imported, as `tuner search` does it: its matrices are too small for threads.
for _threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """-n auto: a process a core, of which many tests start some of their own; eight at most."""
    return min(os.cpu_count() or 1, 8)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu`-marked tests where there is none; torch is only imported if there are any."""
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        for item in items:
            if item.get_closest_marker("timing"):
                item.add_marker(pytest.mark.skip(reason="needs the card for itself: run it alone"))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


# The test after which CUDA no longer served this process: a kernel's illegal memory access breaks
# the context for good, and all that follows would fail with an error that is not its own.
_breaker: list[str] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if _breaker and item.get_closest_marker("gpu"):
        pytest.fail(f"not run, since {_breaker[0]} broke CUDA in this process", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        torch = sys.modules.get("torch")
        if item.get_closest_marker("gpu") and torch and torch.cuda.is_initialized():
            try:
                torch.cuda.synchronize()  # so that no test is blamed for an earlier one's kernel
            except RuntimeError:
                _breaker.append(item.nodeid)
                raise


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes of this run find each other's binaries, and none of an earlier one's."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "triton"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's data folder and database of this test, whatever the environment says."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder))
        patch.setenv("TUNER_DB", str(folder / "tuner.db"))
        yield folder
