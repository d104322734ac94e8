"""The tables, the same in SQLite and PostgreSQL.

What one may want to query has a column; the rest of a record or trial is JSON text (see `rows`).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    column,
    table,
)

REVISIONS = ("0001",)
"""Every revision of the schema, oldest first; `migrations/versions` has one module for each."""
HEAD = REVISIONS[-1]

# Alembic's mark under a name of our own: Optuna keeps its own `alembic_version`, and a database
# that has tables but not this one is somebody else's.
version = table("tuner_schema", column("version_num", Text))

metadata = MetaData()


def _problem() -> tuple[Column[Any], ...]:
    return (
        Column("headdim", BigInteger, nullable=False),
        Column("seqlen", BigInteger, nullable=False),
        Column("causal", Boolean, nullable=False),
        Column("dtype", Text, nullable=False),
        Column("batch", BigInteger, nullable=False),
        Column("heads", BigInteger, nullable=False),
    )


def _target() -> tuple[Column[Any], ...]:
    return (
        Column("hardware", Text, nullable=False),  # Hardware.key, of the four that follow
        Column("capability", BigInteger, nullable=False),
        Column("sm_count", BigInteger, nullable=False),
        Column("memory_gib", BigInteger, nullable=False),
        Column("power_limit_w", BigInteger, nullable=False),
        Column("gpu_name", Text, nullable=False),
        Column("triton", Text, nullable=False),
        Column("torch", Text, nullable=False),
        Column("driver", Text, nullable=False),
    )


def _candidate() -> tuple[Column[Any], ...]:
    return (
        Column("template", Text, nullable=False),
        Column("template_version", Text, nullable=False),
        Column("config", Text, nullable=False),  # Config.key
        Column("origin", Text, nullable=False),
        Column("measured_at", Text, nullable=False),
    )


records = Table(
    "records",
    metadata,
    Column("uid", Text, primary_key=True),
    *_problem(),
    *_target(),
    *_candidate(),
    Column("median_ms", Double, nullable=False),
    Column("tflops", Double, nullable=False),
    Column("evidence", Text, nullable=False),
)

trials = Table(
    "trials",
    metadata,
    *_problem(),
    *_target(),
    *_candidate(),
    Column("outcome", Text, nullable=False),
    Column("reason", Text),
    Column("median_ms", Double),
    Column("tflops", Double),
    Column("registers", BigInteger),
    Column("spills", BigInteger),
    Column("shared_memory", BigInteger),
    Column("compile_s", Double),
    Column("evaluate_s", Double),
    Column("evidence", Text, nullable=False),
    # In the order in which trials are asked for: all of a problem on a target.
    PrimaryKeyConstraint(
        "headdim",
        "seqlen",
        "causal",
        "dtype",
        "batch",
        "heads",
        "hardware",
        "triton",
        "template",
        "template_version",
        "config",
        "origin",
    ),
)
