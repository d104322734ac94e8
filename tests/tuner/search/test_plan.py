from __future__ import annotations

import pytest

from tuner.search.plan import plan


def test_the_whole_grid() -> None:
    problems = plan()
    assert len(problems) == 3 * 6 * 2
    assert len(set(problems)) == len(problems)
    assert {p.batch * p.seqlen for p in problems} == {16384}
    assert {p.heads * p.headdim for p in problems} == {2048}


def test_problems_of_one_specialization_stand_together() -> None:
    seen = []
    for problem in plan(dtypes=("fp16", "bf16")):
        if not seen or seen[-1] != problem.specialization:
            seen.append(problem.specialization)
    assert len(seen) == len(set(seen))


def test_what_is_asked_for_twice_is_planned_once() -> None:
    assert len(plan([64, 64], [512, 512], [True, True])) == 1


def test_a_long_sequence_keeps_at_least_one_batch() -> None:
    (problem,) = plan([64], [40000], [True])
    assert problem.batch == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"seqlens": [0]}, "seqlen is 0"),
        ({"headdims": [-1]}, "headdim is -1"),
        ({"batch": 0}, "batch is 0"),
        ({"heads": -2}, "heads is -2"),
        ({"dtypes": ["fp8"]}, "dtype is 'fp8'"),
    ],
)
def test_bad_values_are_named(arguments: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        plan(**arguments)
