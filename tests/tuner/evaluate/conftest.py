"""Lets tests and worker processes import `fake_workers`: workers get their parent's import path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
