"""The first schema: records and trials."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "records",
        sa.Column("uid", sa.Text, primary_key=True),
        *_shared(),
        sa.Column("median_ms", sa.Double, nullable=False),
        sa.Column("tflops", sa.Double, nullable=False),
        sa.Column("evidence", sa.Text, nullable=False),
    )
    op.create_table(
        "trials",
        *_shared(),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("median_ms", sa.Double),
        sa.Column("tflops", sa.Double),
        sa.Column("registers", sa.BigInteger),
        sa.Column("spills", sa.BigInteger),
        sa.Column("shared_memory", sa.BigInteger),
        sa.Column("compile_s", sa.Double),
        sa.Column("evaluate_s", sa.Double),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint(
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


def _shared() -> list[sa.Column[Any]]:
    return [
        sa.Column("headdim", sa.BigInteger, nullable=False),
        sa.Column("seqlen", sa.BigInteger, nullable=False),
        sa.Column("causal", sa.Boolean, nullable=False),
        sa.Column("dtype", sa.Text, nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("heads", sa.BigInteger, nullable=False),
        sa.Column("hardware", sa.Text, nullable=False),
        sa.Column("capability", sa.BigInteger, nullable=False),
        sa.Column("sm_count", sa.BigInteger, nullable=False),
        sa.Column("memory_gib", sa.BigInteger, nullable=False),
        sa.Column("power_limit_w", sa.BigInteger, nullable=False),
        sa.Column("gpu_name", sa.Text, nullable=False),
        sa.Column("triton", sa.Text, nullable=False),
        sa.Column("torch", sa.Text, nullable=False),
        sa.Column("driver", sa.Text, nullable=False),
        sa.Column("template", sa.Text, nullable=False),
        sa.Column("template_version", sa.Text, nullable=False),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("measured_at", sa.Text, nullable=False),
    ]
