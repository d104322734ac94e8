"""What tests of scripts share with those of the search."""

from __future__ import annotations

from tests.tuner.search.conftest import toy

__all__ = ["toy"]
