"""What every test gets: no access to the user's database, and a skip where a GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu`-marked tests where there is none; torch is only imported if there are any."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's data folder and database of this test, whatever the environment says."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder))
        patch.setenv("TUNER_DB", str(folder / "tuner.db"))
        yield folder
