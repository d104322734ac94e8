from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from tests.tuner.store import samples, strategies
from tuner.store.wire import WireError, decode_record, decode_trial, encode
from tuner.trial import Outcome


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(encode(value), allow_nan=False))


@given(strategies.records)
def test_a_record_comes_back_equal_and_with_its_uid(record):
    back = decode_record(through_json(record))
    assert back == record
    assert back.digest() == record.uid
    assert hash(back) == hash(record)  # lists would not be hashable


@pytest.mark.parametrize("outcome", Outcome)
def test_a_trial_of_any_outcome_comes_back_equal(outcome):
    trial = samples.trial(outcome=outcome, reason="" if outcome is Outcome.OK else "told why")
    assert decode_trial(through_json(trial)) == trial


def test_a_rejected_trial_comes_back_equal():
    trial = samples.trial(
        outcome=Outcome.REJECTED, measurement=None, resources=None, compile_s=None, evaluate_s=None
    )
    assert decode_trial(through_json(trial)) == trial


def test_what_is_empty_is_left_out():
    document = encode(samples.bare_record())
    assert {"default_ms", "margin", "rivals", "peers", "note", "supersedes"}.isdisjoint(document)


def test_a_whole_number_for_a_figure_is_the_same_record():
    record = samples.bare_record(median_ms=2.0)
    measured = replace(record.measurement, median_ms=2, samples_ms=(2,), tflops=100)
    assert replace(record, measurement=measured, uid="").uid == record.uid
    document = through_json(record)
    document["measurement"].update(median_ms=2, samples_ms=[2], tflops=100)
    back = decode_record(document)
    assert back == record
    assert isinstance(back.measurement.median_ms, float)


def test_zero_has_no_sign():
    # Its uid is the same, so which of two stays must not depend on the order in which they come.
    document = through_json(samples.bare_record())
    document["measurement"]["spread"] = -0.0
    assert math.copysign(1.0, decode_record(document).measurement.spread) == 1.0


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("problem.headdim", 0),
        ("problem.headdim", True),
        ("problem.headdim", 128.0),
        ("problem.headdim", "128"),
        ("problem.seqlen", 2**53),
        ("problem.causal", 1),
        ("problem.dtype", "fp8"),
        ("problem", None),
        ("problem", []),
        ("target.hardware.capability", -1),
        ("target.gpu_name", "H100\x1b[31m"),
        ("target.gpu_name", "\ud800"),
        ("target.gpu_name", "x" * 2001),
        ("target.triton", None),
        ("target.triton", "3" * 201),
        ("template_version", "0" * 201),
        ("candidate.template", "x" * 201),
        ("candidate.config", {"note": "x" * 1000}),
        ("candidate.config", {f"parameter_{n}": True for n in range(60)}),
        ("candidate.config", {"BLOCK_M": 1.5}),
        ("candidate.config", {"BLOCK_M": None}),
        ("candidate.config", {"BLOCK_M": [64]}),
        ("candidate.config", {"BLOCK\n": 64}),
        ("candidate.config", {"BLOCK_M": 10**400}),
        ("candidate.config", [["BLOCK_M", 64]]),
        ("measurement.median_ms", 0),
        ("measurement.median_ms", -1.0),
        ("measurement.median_ms", math.nan),
        ("measurement.median_ms", math.inf),
        ("measurement.median_ms", "1"),
        ("measurement.median_ms", None),
        ("measurement.median_ms", True),
        ("measurement.spread", -0.1),
        ("measurement.samples_ms", 1.0),
        ("measurement.samples_ms", [1.0] * 10_001),
        ("measurement.sm_clock_mhz", 1.5),
        ("margin", -1.1),
        ("origin", "guess"),
        ("origin", ["cuda"]),
        ("measured_at", "yesterday"),
        ("measured_at", "2026-11-28T12:00:00+00:00\n"),
        ("measured_at", "2026-99-99T12:00:00Z"),
        ("measured_at", "2026-02-29T12:00:00+00:00"),
        ("measured_at", "0000-01-01T00:00:00Z"),
        ("measured_at", "2026-11-28T24:00:00Z"),
        ("supersedes", ["0123"]),
        ("supersedes", ["0" * 16, "G" * 16]),
        ("rivals", [{"name": "x", "median_ms": 1.0}]),
        ("uid", "0" * 16),
        ("uid", ""),
        ("uid", None),
        ("speed", 1.0),
        ("measurement.speed", 1.0),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_its_path(path, value):
    document = through_json(samples.record())
    *parents, leaf = path.split(".")
    place = document
    for parent in parents:
        place = place[parent]
    place[leaf] = value
    with pytest.raises(WireError) as caught:
        decode_record(document, "records[3]")
    assert str(caught.value).startswith(f"records[3].{path}")
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("path", ["uid", "problem", "problem.heads", "measurement.spread"])
def test_a_missing_field_is_named(path):
    document = through_json(samples.record())
    *parents, leaf = path.split(".")
    place = document
    for parent in parents:
        place = place[parent]
    del place[leaf]
    with pytest.raises(WireError, match=rf"^records\[0\]\.{path} is missing$"):
        decode_record(document, "records[0]")


def test_any_change_of_content_breaks_the_uid():
    document = through_json(samples.record())
    document["measurement"]["median_ms"] /= 2
    with pytest.raises(WireError, match=r"^uid is '[0-9a-f]{16}', but must be [0-9a-f]{16}, the"):
        decode_record(document)


def test_an_ok_trial_has_a_measurement():
    with pytest.raises(WireError, match=r"^measurement is None"):
        decode_trial(through_json(samples.trial(measurement=None)))
