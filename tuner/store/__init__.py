"""The database of records and trials: where it lies, how it is written, read, layered and merged.

>>> with Store.open("configs.db") as store:
...     store.add_record(record)

Modules load when first used, so that a program pays only for what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.store.database import Store
    from tuner.store.errors import DocumentError, StoreError
    from tuner.store.layers import Layers

__all__ = ["DocumentError", "Layers", "Store", "StoreError"]

_MODULES = {
    "DocumentError": "errors",
    "Layers": "layers",
    "Store": "database",
    "StoreError": "errors",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"tuner.store.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'tuner.store' has no attribute {name!r}")
