from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tuner.store import samples, strategies
from tuner.store import sqlite
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.store.wire import WireError
from tuner.trial import Outcome


@pytest.fixture
def path(tmp_path):
    return tmp_path / "configs.db"


@pytest.fixture
def store(path):
    with Store.open(path) as opened:
        yield opened


def execute(path, statement, *values):
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).fetchall()


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(strategies.records, max_size=3))
def test_records_come_back_equal(store, path, records):
    store.add_records(records)
    for reader in (store, Store.read_only(path)):
        found = {record.uid: record for record in reader.records()}
        for record in records:
            assert found[record.uid] == record
            assert found[record.uid].digest() == record.uid


def test_adding_a_record_tells_whether_it_was_new(store):
    assert store.add_record(samples.record(1)) is True
    assert store.add_record(samples.record(1)) is False
    assert store.add_records(samples.record(n) for n in (1, 2, 2, 3)) == [
        samples.record(2),
        samples.record(3),
    ]
    assert len(store.records()) == 3


def test_many_records_in_one_call(store):
    many = [samples.bare_record(number) for number in range(1201)]
    assert len(store.add_records(many)) == 1201
    assert store.add_records([*many, samples.bare_record(-1)]) == [samples.bare_record(-1)]
    assert len(store.records()) == 1202


def test_what_could_not_be_read_back_is_not_written(store):
    bad = replace(samples.measurement(), max_diff=float("nan"))
    with pytest.raises(WireError, match=r"^measurement\.max_diff is nan"):
        store.add_records([samples.record(1), samples.record(2, measurement=bad)])
    with pytest.raises(WireError, match=r"^measurement\.max_diff is nan"):
        store.add_trials([samples.trial(1), samples.trial(2, measurement=bad)])
    assert store.records() == []
    assert store.trials() == []


@pytest.mark.parametrize("outcome", Outcome)
def test_a_trial_of_any_outcome_comes_back_equal(store, outcome):
    trial = samples.trial(outcome=outcome, reason="" if outcome is Outcome.OK else "it says why")
    store.add_trial(trial)
    assert store.trials() == [trial]


def test_a_trial_that_never_ran_comes_back_equal(store):
    trial = samples.trial(
        outcome=Outcome.COMPILE_ERROR,
        reason="no",
        measurement=None,
        resources=None,
        compile_s=None,
        evaluate_s=None,
    )
    store.add_trial(trial)
    assert store.trials() == [trial]


def test_a_later_trial_of_the_same_replaces_the_earlier_in_any_order(store):
    early = samples.trial(measured_at="2026-11-28T12:00:00+00:00", compile_s=1.0)
    late = samples.trial(
        measured_at="2026-11-28T12:00:01+00:00", outcome=Outcome.CRASHED, reason="fell"
    )
    store.add_trials([early, late])
    assert store.trials() == [late]
    store.add_trial(early)
    assert store.trials() == [late]


def test_a_trial_from_the_future_is_replaced(store):
    store.add_trial(samples.trial(measured_at="9999-12-31T23:59:59+00:00", compile_s=1.0))
    now = samples.trial()
    store.add_trial(now)
    assert store.trials() == [now]


@pytest.mark.parametrize(
    "change",
    [
        {"problem": replace(samples.PROBLEM, causal=False)},
        {"target": replace(samples.TARGET, triton="3.7.1")},
        {"target": replace(samples.TARGET, hardware=replace(samples.HARDWARE, sm_count=114))},
        {"template_version": "ba9876543210"},
        {"candidate": replace(samples.candidate(), template="hopper")},
        {"candidate": samples.candidate(1)},
        {"origin": "replay"},
    ],
    ids=str,
)
def test_what_makes_another_trial(store, change):
    store.add_trials([samples.trial(), samples.trial(**change)])
    assert len(store.trials()) == 2


def test_what_is_only_a_label_makes_no_other_trial(store):
    relabelled = replace(samples.TARGET, gpu_name="H100 SXM5", driver="1", torch="2.12")
    store.add_trials([samples.trial(), samples.trial(target=relabelled)])
    assert [trial.target for trial in store.trials()] == [relabelled]


def test_a_compilers_message_is_cleaned_and_cut(store):
    store.add_trial(
        samples.trial(outcome=Outcome.COMPILE_ERROR, reason="\x1b[31mline\n\x00\udcff" + "x" * 9999)
    )
    (trial,) = store.trials()
    assert trial.reason.startswith(" [31mline   xxx")
    assert len(trial.reason) == 2000


def test_trials_are_found_by_what_is_given(store):
    other_target = replace(samples.TARGET, triton="3.7.1")
    mine = samples.trial()
    others = [
        samples.trial(1, problem=replace(samples.PROBLEM, seqlen=1024)),
        samples.trial(2, target=other_target),
        samples.trial(3, origin="replay"),
    ]
    store.add_trials([mine, *others])
    wanted = {
        "problem": mine.problem,
        "hardware": mine.target.hardware,
        "triton": mine.target.triton,
        "origin": "cuda",
    }
    assert store.trials(**wanted) == [mine]
    assert store.trials(triton="3.7.1") == [others[1]]
    assert store.trials(triton="3.8.0") == []
    assert len(store.trials()) == 4


def test_trials_come_oldest_first(store):
    moments = [f"2026-11-28T12:00:0{second}+00:00" for second in (3, 1, 2)]
    store.add_trials(samples.trial(n, measured_at=at) for n, at in enumerate(moments))
    assert [trial.measured_at for trial in store.trials()] == sorted(moments)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("median_ms", 0.001),  # faster than anything
        ("median_ms", "fast"),
        ("seqlen", b"\xff"),
        ("causal", "perhaps"),
        ("causal", 2),
        ("config", "__import__('os')"),
        ("config", "{}"),
        ("template", "hopper"),
        ("evidence", "[1]"),
        ("evidence", "[" * 100_000),
        ("evidence", '{"measurement": 1}'),
        ("gpu_name", sqlite3.Binary(b"\xff")),
        ("uid", "0" * 16),
    ],
)
def test_a_row_that_was_changed_is_skipped_with_a_warning(store, path, caplog, column, value):
    store.add_records([samples.record(1), samples.record(2)])
    uid = samples.record(1).uid
    execute(path, f"update records set {column} = ? where uid = ?", value, uid)
    with caplog.at_level(logging.WARNING):
        assert store.records() == [samples.record(2)]
    (said,) = caplog.messages
    assert said.startswith(f"{path}: 1 of 2 rows are skipped, the first since ")
    assert "\n" not in said


DAMAGE = {
    "median_ms": "fast",
    "origin": "guessed",
    "gpu_name": sqlite3.Binary(b"\xff"),
    "evidence": "[" * 100_000,
    "measured_at": "2031-02-30T12:00:00Z",
}


@pytest.mark.parametrize(("column", "value"), [*DAMAGE.items(), ("median_ms", 0.001)])
def test_a_damaged_record_is_put_right_by_a_whole_one(store, path, column, value):
    good, other = samples.record(1), samples.record(2)
    store.add_records([good, other])
    execute(path, f"update records set {column} = ? where uid = ?", value, good.uid)
    assert store.records() == [other]
    assert store.add_records([good, other]) == [good]
    assert {record.uid for record in store.records()} == {good.uid, other.uid}
    assert execute(path, "select count(*) from records") == [(2,)]
    assert store.add_records([good, other]) == []


TRIAL_DAMAGE = {**DAMAGE, "outcome": "splendid", "registers": -1}
del TRIAL_DAMAGE["origin"]  # by which a trial is found


@pytest.mark.parametrize(("column", "value"), TRIAL_DAMAGE.items())
def test_a_damaged_trial_is_put_right_by_a_whole_one_even_an_earlier(store, path, column, value):
    good = samples.trial(1, measured_at="2024-11-28T12:00:00+00:00")
    late = samples.trial(1, measured_at="2024-11-29T12:00:00+00:00")
    other = samples.trial(2)
    store.add_trials([late, other])
    execute(
        path, f"update trials set {column} = ? where config = ?", value, good.candidate.config.key
    )
    assert store.trials() == [other]
    store.add_trials([good])
    assert sorted(store.trials(), key=lambda trial: trial.candidate.config.key) == [good, other]
    assert execute(path, "select count(*) from trials") == [(2,)]


def test_a_text_that_is_not_utf_8_is_damage(store, path):
    record, trial = samples.record(1), samples.trial(1)
    store.add_record(record)
    store.add_trial(trial)
    for table in ("records", "trials"):
        execute(path, f"update {table} set driver = cast(x'61ff62' as text)")
    assert (store.records(), store.trials()) == ([], [])
    store.add_record(record)
    store.add_trial(trial)
    assert (store.records(), store.trials()) == ([record], [trial])


@pytest.mark.parametrize("column", ["hardware", "config"])
def test_a_trial_that_would_not_be_found_is_none(store, path, caplog, column):
    store.add_trial(samples.trial(1))
    execute(path, f"update trials set {column} = ' ' || {column}")
    assert store.trials() == []
    assert f"since {column} is ' " in caplog.text
    store.add_trial(samples.trial(1))
    assert store.trials() == [samples.trial(1)]


def test_a_text_that_is_no_utf8_spoils_only_its_row(store, path):
    store.add_records([samples.record(1), samples.record(2)])
    uid = samples.record(1).uid
    execute(path, "update records set triton = cast(x'ff' as text) where uid = ?", uid)
    assert store.records() == [samples.record(2)]


def test_the_change_token_moves_with_each_write_and_only_then(store, path):
    reader = Store.read_only(path)
    for number in range(3):
        before = sqlite.change_token(path)
        reader.records()
        assert sqlite.change_token(path) == before
        store.add_record(samples.record(number))
        assert sqlite.change_token(path) != before


def test_threads_share_a_store(store):
    errors = []

    def work(thread):
        try:
            for number in range(20):
                store.add_record(samples.bare_record(1000 * thread + number))
                store.records()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store.records()) == 160


def test_a_read_only_store_does_not_write(store, path):
    reader = Store.read_only(path)
    with pytest.raises(StoreError, match=r"configs\.db is open for reading only"):
        reader.add_record(samples.record())


def test_the_file_has_a_write_ahead_log_unless_told_otherwise(store, path, tmp_path):
    assert execute(path, "pragma journal_mode") == [("wal",)]
    Store.open(tmp_path / "other.db", write_ahead_log=False).add_record(samples.record())
    assert execute(tmp_path / "other.db", "pragma journal_mode") == [("delete",)]


def test_how_long_each_waits_and_what_a_commit_waits_for(path):
    def pragmas(store):
        with store._reading() as connection:
            return [
                connection.exec_driver_sql(f"pragma {name}").scalar()
                for name in ("busy_timeout", "synchronous")
            ]

    full = 2
    with Store.open(path) as store:
        assert pragmas(store) == [30_000, full]
    with Store.read_only(path) as store:
        assert pragmas(store)[0] == 200


def test_a_url_or_a_path_with_any_characters(tmp_path):
    odd = tmp_path / "a b" / "50%?#é" / "configs.db"
    Store.open(odd).add_record(samples.record())
    assert odd.exists()
    assert Store.read_only(odd).records() == [samples.record()]
    assert Store.open(f"sqlite:///{tmp_path}/configs.db").records() == []
    assert (tmp_path / "configs.db").exists()


def test_a_path_is_relative_to_the_folder_at_opening(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store.open("configs.db")
    monkeypatch.chdir("/")
    store.add_record(samples.record())
    assert (tmp_path / "configs.db").exists()


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///a.db?mode=ro", "names no file"),
        ("mysql://user:secret@host/db", "mysql://user:\\*\\*\\*@host/db is neither"),
        ("https://example.org/configs.db", "is neither|cannot be parsed"),
        ("post gres://host/db", "cannot be parsed"),
        ("postgresql+nosuch://host/db", "needs a driver that is not installed"),
        ("postgresql://user:secret@host%00/db", "but must have no NUL character"),
        ("postgresql://user%00:secret@host/db", "but must have no NUL character"),
        ("postgresql://user:%00secret@host/db", "but must have no NUL character"),
        ("postgresql://user:secret@host/db%00x", "but must have no NUL character"),
        ("postgresql://user:secret@/db?host=a%00b", "but must have no NUL character"),
    ],
)
def test_a_location_that_cannot_serve_is_refused(location, said):
    for opening in (Store.open, Store.read_only):
        with pytest.raises(StoreError, match=said) as caught:
            opening(location)
        assert "secret" not in str(caught.value)
