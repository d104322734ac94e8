"""Python literals as ruff's formatter would have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

WIDTH = 100


def call(name: str, arguments: Sequence[str], indent: int) -> str:
    """A call on one line, or one line for each argument where that is too long."""
    line = f"{' ' * indent}{name}({', '.join(arguments)})"
    if len(line) < WIDTH:  # a comma follows
        return line
    inner = "".join(f"{' ' * (indent + 4)}{argument},\n" for argument in arguments)
    return f"{' ' * indent}{name}(\n{inner}{' ' * indent})"


def listing(rows: Iterable[str], indent: int) -> str:
    return "[\n" + "".join(f"{row},\n" for row in rows) + " " * indent + "]"


def mapping(items: Mapping[str, str], indent: int) -> str:
    if not items:
        return "{}"
    inner = "".join(f"{' ' * (indent + 4)}{key}: {value},\n" for key, value in items.items())
    return "{\n" + inner + " " * indent + "}"
