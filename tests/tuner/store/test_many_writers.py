"""Writers, importers and searches at once on one database, of SQLite and of a real PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.exc import SQLAlchemyError

from tests.tuner.store import samples
from tests.tuner.store.test_concurrency import ROOT, integrity, numbers, start_writer
from tuner.evaluate.replay import shipped_spaces
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.store.exchange import export_document
from tuner.store.merge import merge

WRITERS, EACH = 16, 100
IMPORTERS, SEARCHES, TRIALS = 3, 3, 12


def command(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "tuner", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    return out, errors


@pytest.mark.timeout(1200)  # a slow disk takes half a second for a commit
def test_16_writers_importers_and_searches_at_once_lose_nothing(location, tmp_path):
    Store.open(location).close()
    documents = []
    for number in range(IMPORTERS):
        of = range(100_000 * (number + 1), 100_000 * (number + 1) + 50)
        document = tmp_path / f"{number}.json"
        document.write_text(export_document(map(samples.bare_record, of)), encoding="utf-8")
        documents.append((document, set(of)))
    gate = tmp_path / "gate"
    writers = [start_writer(location, 1000 * n, EACH, gate) for n in range(WRITERS)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    gate.touch()
    importers = [command("import", document, "--db", location) for document, _ in documents]
    of = ("--hdim", 64, "--seqlen", 4096, "--causal", "--sampler", "random", "--trials", TRIALS)
    # With other seeds they meet in some candidates only: each trial is there once, of either.
    searches = [
        command(
            "search", "--spaces", shipped_spaces(), *of, "--seed", seed, "--db", location, "--json",
            "--force",
        )
        for seed in range(SEARCHES)
    ]  # fmt: skip
    told = set()
    for writer in writers:
        out, errors = finish(writer)
        assert errors == ""
        assert len(out.split()) == EACH
    for importer in importers:
        out, _ = finish(importer)
        assert out.startswith("50 new, 0 already there")
    records = []
    for search in searches:
        out, _ = finish(search)
        events = [json.loads(line) for line in out.splitlines()]
        trials = [event["trial"] for event in events if event["event"] == "trial"]
        assert len(trials) == TRIALS
        told |= {json.dumps(trial["candidate"], sort_keys=True) for trial in trials}
        records += events[-1]["records"]

    expected = {1000 * writer + number for writer in range(WRITERS) for number in range(EACH)}
    expected |= {number for _, of in documents for number in of}
    with Store.read_only(location) as store:
        found = {r.candidate.config.get("number"): r for r in store.records()}
        assert set(found) == expected | {None}
        assert {r["uid"] for r in records} <= {r.uid for r in store.records()}
        mine = [t for t in store.trials() if t.origin == "replay"]
        assert {c.config.key for c in (t.candidate for t in mine)} == {
            json.dumps(json.loads(c)["config"], sort_keys=True, separators=(",", ":")) for c in told
        }
        assert len(store.trials()) == len(mine) + WRITERS * EACH // 10
    if "://" not in location:
        assert integrity(location) == [("ok",)]


# What takes long to import is there before, so that all of them find no tables.
CREATE = """
import sys
import alembic.command, sqlalchemy.dialects.postgresql.psycopg
from tests.tuner.store import samples
from tuner.store.database import Store
print("ready", flush=True)
sys.stdin.readline()
with Store.open(sys.argv[1]) as store:
    store.add_record(samples.bare_record(int(sys.argv[2])))
"""


def test_8_processes_create_the_tables_at_once(new_postgresql):
    url = new_postgresql()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CREATE, url, str(number)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    with Store.read_only(url) as store:
        assert numbers(store) == set(range(8))


def test_both_kinds_of_database_hold_the_same(location, tmp_path):
    records = [samples.record(1), samples.record(2, 2.0), samples.bare_record(3)]
    trials = [samples.trial(n) for n in range(3)]
    later = replace(trials[0], measured_at="2025-01-01T00:00:00Z", reason="later")
    with Store.open(location) as store, Store.open(tmp_path / "other.db") as other:
        for each in (store, other):
            merge(each, records)
            assert merge(each, records[:1]).added == ()
            each.add_trials([*trials, later])
            each.add_trial(trials[0])  # an older one changes nothing
        assert store.records() == other.records()
        assert store.trials() == other.trials()
        assert later in store.trials()
        assert store.trials(samples.PROBLEM, hardware=samples.HARDWARE) == store.trials()
    with Store.read_only(location) as store:
        assert set(store.records()) == set(records)
        with pytest.raises(StoreError, match="is open for reading only"):
            store.add_record(samples.record(9))


def test_both_kinds_put_damaged_rows_right(location):
    from sqlalchemy import update

    from tuner.store.schema import records, trials

    record, late = samples.record(1), samples.trial(1, measured_at="2025-01-01T00:00:00Z")
    with Store.open(location) as store:
        store.add_record(record)
        store.add_trial(late)
        with store._writing() as connection:
            for table in (records, trials):
                connection.execute(update(table).values(tflops=-1))
        assert (store.records(), store.trials()) == ([], [])
        assert store.add_record(record)
        store.add_trial(samples.trial(1))
        assert (store.records(), store.trials()) == ([record], [samples.trial(1)])


def test_a_server_refuses_what_a_reader_would_write(new_postgresql):
    url = new_postgresql()
    Store.open(url).close()
    from sqlalchemy import make_url, text

    from tuner.store import postgresql

    reader = postgresql.engine(make_url(url), read_only=True, timeout_s=1)
    with reader.connect() as connection, pytest.raises(SQLAlchemyError, match="read-only"):
        connection.execute(text("delete from records"))


def test_an_unreachable_server_is_one_sentence_without_the_password(tmp_path: Path):
    pytest.importorskip("psycopg")
    url = f"postgresql://tuner:secret@/postgres?host={tmp_path}"
    for opening in (Store.open, Store.read_only):
        with pytest.raises(StoreError) as caught:
            opening(url)
        said = str(caught.value)
        assert "secret" not in said
        assert "\n" not in said
        assert said.startswith("postgresql://tuner:***@/postgres")


def test_who_puts_a_damaged_trial_right_undoes_no_other_writer(location, monkeypatch):
    from sqlalchemy import update

    from tuner.store import database
    from tuner.store.schema import trials

    old, new = (samples.trial(1, measured_at=f"{year}-01-01T00:00:00Z") for year in (2024, 2025))
    with Store.open(location) as store, Store.open(location) as other:
        store.add_trial(old)
        with store._writing() as connection:
            connection.execute(update(trials).values(tflops=-1))
        writer = threading.Thread(target=other.add_trial, args=[new])
        whole = database._whole

        def interrupted(*arguments):
            if writer.ident is None:
                writer.start()
                writer.join(0.5)  # it may be waiting for us
            return whole(*arguments)

        monkeypatch.setattr(database, "_whole", interrupted)
        store.add_trial(old)
        writer.join(30)
        assert not writer.is_alive()
        assert store.trials() == [new]
