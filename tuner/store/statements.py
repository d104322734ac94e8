"""Statements on the tables, for SQLite and PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Integer, Table, and_, type_coerce
from sqlalchemy.dialects import postgresql, sqlite

from kernels.attention.problem import Problem
from tuner.store.schema import trials
from tuner.target import Hardware
from tuner.trial import Origin


def matching(
    problem: Problem | None,
    hardware: Hardware | None,
    triton: str | None,
    origin: Origin | None,
) -> Any:
    """The condition that a trial has all that is given."""
    wanted: dict[str, object] = {
        "hardware": None if hardware is None else hardware.key,
        "triton": triton,
        "origin": origin,
    }
    if problem is not None:
        wanted.update(vars(problem))
    return and_(
        True, *(trials.c[name] == value for name, value in wanted.items() if value is not None)
    )


def columns(table: Table) -> list[Any]:
    """All columns, read as whatever lies there: a conversion that fails would fail the query."""
    return [
        type_coerce(column, Integer).label("causal") if column.name == "causal" else column
        for column in table.columns
    ]


def upsert(connection: Connection, table: Table, where: Callable[[Any], Any] | None = None) -> Any:
    """Inserts rows; each takes the place of one of the same key, but only where `where` holds,
    which is given the new row."""
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    new = statement.excluded
    rest = {column.name: new[column.name] for column in table.columns if not column.primary_key}
    keys = list(table.primary_key.columns)
    return statement.on_conflict_do_update(
        index_elements=keys, set_=rest, where=where and where(new)
    )
