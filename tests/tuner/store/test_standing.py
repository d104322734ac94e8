"""Which record stands: `tuner.standing`, over every order in which records may arrive."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention import registry
from kernels.attention.config import Config
from tests.tuner.store import samples, strategies
from tuner.standing import standing
from tuner.trial import Candidate


def stands(*records):
    """The one that stands, the same in every order."""
    (winner,) = {tuple(standing(order).values()) for order in permutations(records)}
    return winner


def make(number, median_ms, **changes):
    return samples.bare_record(number, median_ms, **changes)


def test_of_those_that_never_met_the_faster():
    slow, fast = make(1, 2.0), make(2, 1.0)
    assert stands(slow, fast) == (fast,)


def test_ties_fall_by_uid():
    tied = [make(number, 1.0) for number in range(4)]
    assert stands(*tied) == (min(tied, key=lambda record: record.uid),)


def test_one_of_the_kernel_as_it_is_over_a_faster_one_of_a_former_kernel():
    template = registry.get("portable")
    candidate = Candidate("portable", template.default(samples.PROBLEM, 90))
    living = make(1, 2.0, candidate=candidate, template_version=template.version)
    former = make(1, 1.0, candidate=candidate)
    refused = Candidate("portable", Config(candidate.config, num_stages=7))
    dead = make(1, 0.5, candidate=refused, template_version=template.version)
    replayed = replace(living, origin="replay", uid="")
    assert stands(living, former, dead, replayed) == (living,)
    assert stands(former, dead, replayed) == (replayed,)
    assert stands(former, dead) == (dead,)


def test_a_verdict_stands_over_a_faster_figure_of_another_day():
    lucky = make(1, 1.0)
    verdict = make(2, 1.2, supersedes=(lucky.uid,))
    assert stands(lucky, verdict) == (verdict,)


def test_verdicts_chain_also_where_a_link_is_missing():
    first = make(1, 1.0)
    second = make(2, 1.1, supersedes=(first.uid,))
    third = make(3, 1.2, supersedes=(second.uid, *second.supersedes))
    assert stands(first, second, third) == (third,)
    assert stands(first, third) == (third,)


def test_two_verdicts_on_one_loser_never_met_each_other():
    loser = make(1, 1.0)
    slow, fast = (make(n, ms, supersedes=(loser.uid,)) for n, ms in ((2, 1.3), (3, 1.2)))
    assert stands(loser, slow, fast) == (fast,)


def test_measured_beats_replayed_however_fast():
    replayed, measured = make(1, 0.5, origin="replay"), make(2, 2.0)
    assert stands(replayed, measured) == (measured,)


def test_a_replayed_verdict_does_not_fell_a_measured_record():
    measured = make(1, 1.0)
    replayed = make(2, 0.5, origin="replay", supersedes=(measured.uid,))
    assert stands(measured, replayed) == (measured,)


def test_a_replayed_verdict_fells_a_replayed_record():
    old = make(1, 1.0, origin="replay")
    new = make(2, 1.5, origin="replay", supersedes=(old.uid,))
    assert stands(old, new) == (new,)


@pytest.mark.parametrize(
    "change",
    [
        {"problem": replace(samples.PROBLEM, seqlen=1024)},
        {"target": replace(samples.TARGET, triton="3.7.1")},
        {"target": replace(samples.TARGET, hardware=replace(samples.HARDWARE, memory_gib=141))},
    ],
    ids=["problem", "triton", "hardware"],
)
def test_each_key_has_its_own_and_links_do_not_cross_keys(change):
    here = make(1, 1.0)
    there = make(2, 1.0, supersedes=(here.uid,), **change)
    assert set(stands(here)) == {here}
    assert set(standing([here, there]).values()) == {here, there}


def test_the_same_chip_under_another_name_is_the_same_key():
    one = make(1, 1.0)
    other = make(2, 2.0, target=replace(samples.TARGET, gpu_name="H100 SXM5", driver="1"))
    assert stands(one, other) == (one,)


@given(strategies.related_records(), st.randoms())
def test_order_and_repetition_never_matter(records, random):
    expected = standing(records)
    random.shuffle(records)
    assert standing([*records, *records]) == expected
    assert {record.key for record in records} == set(expected)  # no key is left without one
