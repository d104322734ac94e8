"""When something was measured, as a text: UTC, ISO 8601, to the second. Texts sort as times do."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

PATTERN = "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|\\+00:00)"


def exists(moment: str) -> bool:
    """Whether the calendar has the day, and the day the time, of a text of this PATTERN."""
    year, month, day, hour, minute, second = map(int, re.findall("[0-9]+", moment)[:6])
    try:
        datetime(year, month, day, hour, minute, second)
    except ValueError:
        return False
    return True


def now() -> str:
    """This moment."""
    return _text(datetime.now(timezone.utc))


def tomorrow() -> str:
    """A day from now. Whatever claims to be later was measured by a clock that is wrong: by more
    than time zones and drift explain."""
    return _text(datetime.now(timezone.utc) + timedelta(days=1))


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
