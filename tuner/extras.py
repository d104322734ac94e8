"""What each optional part needs, by the packages themselves: this distribution is on no index, from
which pip could take an extra of it."""

from __future__ import annotations

import shlex

_PACKAGES = {
    "dashboard": "optuna-dashboard>=0.18",
    "huggingface": "transformers>=5.17",
    "matplotlib": "matplotlib>=3.8",
    "plotext": "plotext>=5.2,<6",
    "postgresql": "psycopg[binary]>=3",
    "ray": "ray>=2.40",
}


def command(part: str) -> str:
    """What installs the packages of `part`."""
    return f"pip install {shlex.quote(_PACKAGES[part])}"
