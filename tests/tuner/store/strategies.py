"""Hypothesis strategies for records."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from hypothesis import strategies as st

from kernels.attention.config import Config
from kernels.attention.problem import Problem
from tests.tuner.store import samples
from tuner.record import Record, Rival
from tuner.target import Hardware, Target
from tuner.trial import Candidate, Measurement

_texts = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=20)
_positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
_not_negative = st.floats(min_value=0, allow_infinity=False)
_counts = st.integers(0, 2**40)
_rivals = st.lists(st.builds(Rival, _texts, _positive, _not_negative), max_size=3).map(tuple)

records = st.builds(
    Record,
    problem=st.builds(
        Problem,
        headdim=st.integers(1, 512),
        seqlen=st.integers(1, 2**40),
        causal=st.booleans(),
        dtype=st.sampled_from(["fp16", "bf16"]),
        batch=st.integers(1, 2**40),
        heads=st.integers(1, 2**40),
    ),
    target=st.builds(
        Target,
        st.builds(Hardware, _counts, st.integers(1, 2**40), _counts, _counts),
        _texts, _texts, _texts, _texts,
    ),
    candidate=st.builds(
        Candidate,
        _texts,
        st.dictionaries(
            _texts, st.booleans() | st.integers(-(2**40), 2**40) | _texts, max_size=4
        ).map(Config),
    ),
    template_version=_texts,
    measurement=st.builds(
        Measurement,
        median_ms=_positive,
        spread=_not_negative,
        samples_ms=st.lists(_positive, max_size=4).map(tuple),
        tflops=_positive,
        max_diff=_not_negative,
        sm_clock_mhz=st.none() | _counts,
        power_w=st.none() | _counts,
    ),
    origin=st.sampled_from(["cuda", "replay"]),
    # Not of the future, which no import takes.
    measured_at=st.datetimes(max_value=datetime(2024, 11, 28)).map(
        lambda at: f"{at:%Y-%m-%dT%H:%M:%S}Z".rjust(20, "0")
    ),
    default_ms=st.none() | _positive,
    margin=st.none() | st.floats(-1, 1e9),
    rivals=_rivals,
    peers=_rivals,
    tied=st.lists(_texts, max_size=2).map(tuple),
    note=_texts,
    supersedes=st.lists(st.from_regex("[0-9a-f]{16}", fullmatch=True), max_size=2).map(tuple),
    uid=st.just(""),
)  # fmt: skip
"""Records with any content that is allowed."""


@st.composite
def related_records(draw: st.DrawFn, most: int = 8) -> list[Record]:
    """Records of few keys and figures, so that they meet, tie, and supersede each other."""
    made: list[Record] = []
    for number in range(draw(st.integers(0, most))):
        losers = draw(st.lists(st.sampled_from(made), max_size=2, unique=True)) if made else []
        made.append(
            samples.bare_record(
                number,
                draw(st.sampled_from([1.0, 1.5, 2.0])),
                problem=replace(samples.PROBLEM, seqlen=draw(st.sampled_from([4096, 8192]))),
                origin=draw(st.sampled_from(["cuda", "replay"])),
                supersedes=tuple(loser.uid for loser in losers),
            )
        )
    return made
