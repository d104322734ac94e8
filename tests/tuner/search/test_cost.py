"""What a search would take, roughly."""

from dataclasses import replace

import pytest

from tests.tuner.store import samples
from tuner.search import cost
from tuner.search.cost import estimate
from tuner.trial import Trial


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "available_cpus", lambda: 4)


def trials(count: int, **changes: float | str | None) -> list[Trial]:
    return [replace(samples.trial(number), **changes) for number in range(count)]


def test_what_trials_took_is_believed_from_ten_on() -> None:
    few, enough = (estimate(samples.PROBLEM, 90, trials(count, compile_s=8.0)) for count in (9, 10))
    assert not few.measured
    assert few == estimate(samples.PROBLEM, 90)
    assert enough.measured
    assert enough.seconds - few.seconds == pytest.approx(60 * (8.0 - 3.7) / 4)


@pytest.mark.parametrize("changes", [{"origin": "replay"}, {"compile_s": None}])
def test_what_no_compiler_here_took_says_nothing(changes: dict[str, str | None]) -> None:
    known = trials(20, **{"compile_s": 0.006, **changes})
    assert estimate(samples.PROBLEM, 90, known) == estimate(samples.PROBLEM, 90)


def test_where_the_gpu_is_slower_than_the_compilers_it_decides() -> None:
    slow = estimate(samples.PROBLEM, 90, trials(10, evaluate_s=30.0))
    slower = estimate(samples.PROBLEM, 90, trials(10, evaluate_s=31.0))
    assert slower.seconds - slow.seconds == pytest.approx(60)
