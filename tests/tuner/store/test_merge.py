from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from tests.tuner.store import samples, strategies
from tuner.standing import standing
from tuner.store import database
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.store.exchange import export_document, import_document
from tuner.store.merge import merge
from tuner.store.wire import WireError


@pytest.fixture
def new_store(tmp_path):
    """Makes empty databases, cheaply."""
    original = tmp_path / "original.db"
    Store.open(original).close()
    count = 0

    def make():
        nonlocal count
        count += 1
        path = tmp_path / f"{count}.db"
        shutil.copy(original, path)
        return Store.open(path)

    return make


def state(store):
    records = store.records()
    return records, standing(records)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(strategies.related_records(), st.data())
def test_merging_is_commutative_associative_and_idempotent(new_store, records, data):
    parts = [
        data.draw(st.lists(st.sampled_from(records), unique=True)) if records else []
        for _ in range(3)
    ]
    ends = []
    for a, b, c in permutations(parts):
        left = new_store()  # (a ∪ b) ∪ c
        for part in (a, b, c):
            merge(left, part)
        inner, right = new_store(), new_store()  # a ∪ (b ∪ c)
        merge(inner, b)
        merge(inner, c)
        merge(right, a)
        merge(right, inner.records())
        ends += [state(left), state(right)]
        again = merge(left, [*c, *a])
        assert (again.added, again.now_standing, again.replaced) == ((), (), ())
        ends.append(state(left))
    assert all(end == ends[0] for end in ends)
    assert {r.uid for r in ends[0][0]} == {r.uid for part in parts for r in part}


def test_documents_of_two_machines_imported_in_both_orders_and_twice(new_store):
    lucky = samples.record(1, 1.0)
    one = export_document([lucky, samples.record(2, problem=replace(samples.PROBLEM, heads=8))])
    two = export_document([lucky, samples.record(3, 1.1, supersedes=(lucky.uid,))])
    ends = []
    for order in ((one, two), (two, one), (one, two, two, one)):
        store = new_store()
        for document in order:
            merge(store, import_document(document))
        ends.append(export_document(store.records()))
    assert ends[0] == ends[1] == ends[2]


def test_a_merge_that_fails_midway_adds_nothing(new_store, monkeypatch):
    store = new_store()
    unreadable = samples.trial(1, measurement=samples.measurement(float("inf")))
    with pytest.raises(WireError):
        merge(store, [samples.record(1)], [samples.trial(0), unreadable])
    assert (store.records(), store.trials()) == ([], [])

    def full(*_):
        raise OperationalError("INSERT", {}, Exception("database or disk is full"))

    with monkeypatch.context() as patched:
        patched.setattr(database, "_insert_trials", full)
        with pytest.raises(StoreError):
            merge(store, [samples.record(1)], [samples.trial(0)])
    assert (store.records(), store.trials()) == ([], [])
    report = merge(store, [samples.record(1)], [samples.trial(0), samples.trial(0)])
    assert (len(report.added), report.trials) == (1, 1)


def test_the_report_says_what_changed(new_store):
    store = new_store()
    old, kept = samples.record(1, 2.0), samples.record(2, problem=replace(samples.PROBLEM, heads=8))
    store.add_records([old, kept])
    faster, slower = samples.record(3, 1.0), samples.record(4, 3.0)
    report = merge(store, [kept, faster, slower])
    assert set(report.added) == {faster, slower}
    assert report.already_there == 1
    assert report.now_standing == (faster,)
    assert report.replaced == (old,)
