from __future__ import annotations

import re

from tuner import moments


def test_now_is_a_moment_that_exists_before_tomorrow() -> None:
    now = moments.now()
    assert re.fullmatch(moments.PATTERN, now)
    assert moments.exists(now)
    assert now < moments.tomorrow()
