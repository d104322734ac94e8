"""What tests of the runtime get: a stand-in for GPU and kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def stand_in() -> Iterator[Any]:
    """CPU tensors are served as on an H100 without records; see stand_in.StandIn."""
    pytest.importorskip("torch", reason="the runtime is torch's")
    from tests.tuner.stand_in import standing_in

    with standing_in() as template:
        yield template
