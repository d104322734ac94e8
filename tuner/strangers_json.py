"""JSON that a stranger wrote: read in memory that is bounded by what it holds."""

from __future__ import annotations

import json
from typing import Any

# A list, an object or a text of three bytes takes some seventy in memory. What people exchange,
# spaces and records, has a container for some fifty bytes, and an item for some ten.
MOST_CONTAINERS, MOST_ITEMS = 2_000_000, 6_000_000


class TooLargeError(ValueError):
    """It holds more than anybody needs, or than there is memory for."""


def loads(text: str | bytes, **hooks: Any) -> Any:
    """json.loads.

    Args:
        hooks: its object_pairs_hook and parse_constant.

    Raises:
        TooLargeError: one sentence without its name.
        ValueError, RecursionError: as json.loads.
    """
    if isinstance(text, str):
        containers, items = text.count("[") + text.count("{"), text.count(",")
    else:
        containers, items = text.count(b"[") + text.count(b"{"), text.count(b",")
    if containers > MOST_CONTAINERS:
        raise TooLargeError(f"it has more than {MOST_CONTAINERS} lists and objects")
    if items > MOST_ITEMS:
        raise TooLargeError(f"it has more than {MOST_ITEMS} items")
    try:
        return json.loads(text, **hooks)
    except MemoryError:
        raise TooLargeError("it takes more memory than there is") from None
