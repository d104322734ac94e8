"""Import statements in isort's order and ruff's format."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import NamedTuple

from tuner.standalone.literals import WIDTH


class Imported(NamedTuple):
    """One thing that is imported."""

    origin: str  # the module it is from; empty where it is a module itself
    name: str
    asname: str  # empty for none


def import_statements(found: Collection[Imported]) -> str:
    """The statements, the standard library's first.

    Raises:
        ValueError: two of them give one name to different things.
    """
    _refuse_doubles(found)
    sections: tuple[list[str], list[str]] = ([], [])  # the standard library and others
    parts: dict[str, list[str]] = {}
    for origin, name, asname in sorted(found):
        named = f"{name} as {asname}" if asname else name
        if not origin:
            sections[_foreign(name)].append(f"import {named}")
        elif origin != "__future__":
            parts.setdefault(origin, []).append(named)
    for origin, names in parts.items():
        line = f"from {origin} import {', '.join(names)}"
        if len(line) > WIDTH:
            rows = "".join(f"    {name},\n" for name in names)
            line = f"from {origin} import (\n{rows})"
        sections[_foreign(origin)].append(line)
    return "\n\n".join("\n".join(section) for section in sections if section)


def _refuse_doubles(found: Collection[Imported]) -> None:
    bound: dict[str, Imported] = {}
    for each in sorted(found):
        name = each.asname or each.name
        if bound.setdefault(name, each) != each:
            raise ValueError(f"{bound[name].origin} and {each.origin} are both asked for {name}")


def _foreign(module: str) -> bool:
    return module.partition(".")[0] not in sys.stdlib_module_names
