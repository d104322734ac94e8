from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from datetime import datetime, timedelta, timezone
from importlib import resources

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuner.store import samples, strategies
from tuner.store import exchange
from tuner.store.database import Store
from tuner.store.errors import DocumentError, StoreError
from tuner.store.exchange import export_document, import_document, json_schema, read_document
from tuner.store.files import write_atomically


@given(st.lists(strategies.records, max_size=3))
def test_records_come_back_equal(records):
    back = import_document(export_document(records))
    assert {r.uid: r for r in back} == {r.uid: r for r in records}


@given(strategies.related_records(), st.randoms())
def test_equal_sets_give_equal_texts(records, random):
    text = export_document(records)
    random.shuffle(records)
    assert export_document([*records, *records]) == text
    assert export_document(import_document(text)) == text


def test_the_text_is_fit_for_diffs():
    one, both = (
        export_document([samples.record(1)]),
        export_document([samples.record(1), samples.record(2)]),
    )
    assert one.endswith("}\n")
    assert one == json.dumps(json.loads(one), indent=2, sort_keys=True) + "\n"
    lines = both.splitlines()
    gone = [line for line in one.splitlines() if line not in lines]
    assert not gone


def test_the_published_schema_is_up_to_date():
    published = resources.files("tuner.store").joinpath("records.schema.json")
    assert published.read_text("utf-8") == json_schema(), (
        "write tuner.store.exchange.json_schema() to tuner/store/records.schema.json"
    )


@settings(max_examples=30, deadline=None)
@given(st.lists(strategies.records, max_size=2))
def test_the_schema_accepts_what_is_exported(records):
    jsonschema.Draft202012Validator.check_schema(json.loads(json_schema()))
    jsonschema.validate(json.loads(export_document(records)), json.loads(json_schema()))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("records", 0, "problem", "headdim"), 0),
        (("records", 0, "problem", "dtype"), "fp8"),
        (("records", 0, "measurement", "median_ms"), 0),
        (("records", 0, "measurement", "spread"), -1),
        (("records", 0, "candidate", "config", "BLOCK_M"), 1.5),
        (("records", 0, "origin"), "guess"),
        (("records", 0, "measured_at"), "yesterday"),
        (("records", 0, "supersedes"), ["x"]),
        (("records", 0, "speed"), 1),
        (("records", 0, "note"), "two\nlines"),
        (("version",), 2),
        (("format",), "another"),
        (("comment",), "hello"),
        (("records",), {}),
    ],
)
def test_schema_and_import_refuse_the_same(path, value):
    document = json.loads(export_document([samples.record()]))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(DocumentError):
        import_document(json.dumps(document))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json.loads(json_schema()))


@pytest.mark.parametrize(("hours", "refused"), [(-1, False), (23, False), (25, True)])
def test_a_record_from_the_future_is_refused(hours, refused):
    moment = datetime.now(timezone.utc) + timedelta(hours=hours)
    record = samples.record(measured_at=moment.isoformat(timespec="seconds"))
    document = export_document([record])
    if not refused:
        assert import_document(document) == [record]
        return
    said = f"records[0].measured_at is '{record.measured_at}', but must be at most a day from now"
    with pytest.raises(DocumentError, match=re.escape(said)):
        import_document(document)


def wrapped(records: str) -> str:
    return f'{{"format": "attention-tuner/records", "version": 1, "records": {records}}}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON: Expecting value in line 1, column 1"),
        (wrapped("["), "not JSON"),
        ("[]", "no export of records"),
        ("null", "no export of records"),
        ('{"format": "optuna"}', "no export of records"),
        (wrapped("[]").replace(": 1", ": 2"), "version is 2, but .* reads up to 1; upgrade it"),
        (wrapped("[]").replace(": 1", ": 0"), "version is 0, but must be 1"),
        (wrapped("[]").replace(": 1", ": true"), "version is True, but must be 1"),
        (wrapped("null"), "records is None, but must be a list"),
        (wrapped("{}"), "records is {}, but must be a list"),
        (wrapped("null").replace(', "records": null', ""), "records is not there, but must be"),
        (wrapped("[1]"), r"records\[0\] is 1, but must be an object"),
        (wrapped("[NaN]"), "holds NaN"),
        (wrapped("[-Infinity]"), "holds -Infinity"),
        (wrapped("[1e999]"), r"records\[0\] is inf"),
        (wrapped('[{"uid": 1, "uid": 2}]'), "has 'uid' twice"),
        (wrapped("[]")[:-1] + ', "x": 1}', "'x' is no part"),
        (wrapped("[" * 100_000 + "]" * 100_000), "nested too deeply"),
        (wrapped("[" + "1" * 5000 + "]"), "records|thousands of digits"),
    ],
    ids=lambda value: value[:30],
)
def test_what_is_no_document_is_refused_in_one_sentence(text, said):
    with pytest.raises(DocumentError, match=said) as caught:
        import_document(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_one_name_twice_among_many_is_found_at_once():
    names = ",".join(f'"{n}":0' for n in range(100_000))
    began = time.process_time()
    with pytest.raises(DocumentError, match="has '99999' twice in one object"):
        import_document(f'{{{names},"99999":1}}')
    assert time.process_time() - began < 5  # looked for by each name, half an hour


def test_one_bad_record_refuses_all_and_is_named():
    document = json.loads(export_document([samples.record(n) for n in range(3)]))
    document["records"][1]["measurement"]["median_ms"] = "fast"
    with pytest.raises(DocumentError) as caught:
        import_document(json.dumps(document))
    assert str(caught.value) == (
        "records[1].measurement.median_ms is 'fast', but must be a finite number above 0"
    )


def test_too_many_records_are_refused(monkeypatch):
    text = export_document([samples.record(n) for n in range(3)])
    monkeypatch.setattr(exchange, "MOST_RECORDS", 2)
    with pytest.raises(DocumentError, match="records has 3 items, but may have 2"):
        import_document(text)
    with pytest.raises(DocumentError, match=r"3 records .* are too many"):
        export_document(samples.record(n) for n in range(3))


def test_a_large_file_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "MOST_BYTES", 10)
    path = tmp_path / "large.json"
    path.write_text(" " * 11)
    with pytest.raises(DocumentError, match=r"large\.json is larger than 10 bytes"):
        read_document(path)


def test_a_document_that_takes_far_more_memory_than_it_is_long_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "dicts.json"
    path.write_text('{"records": [' + "{}," * 2_000_000 + "{}]}")
    with pytest.raises(DocumentError, match=r"dicts\.json: the document is too large: it has more"):
        read_document(path)

    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("json.loads", exhausted)
    path.write_text("{}")
    with pytest.raises(DocumentError, match=r"too large: it takes more memory than there is"):
        read_document(path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\x00", b"SQLite format 3\x00\xff"])
def test_a_binary_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "binary.json"
    path.write_bytes(content)
    with pytest.raises(DocumentError, match=r"binary\.json"):
        read_document(path)


def test_a_missing_file_or_a_folder_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing.json"):
        with pytest.raises(DocumentError, match=f"{path.name} cannot be read"):
            read_document(path)


def test_a_byte_order_mark_is_no_error(tmp_path):
    path = tmp_path / "notepad.json"
    path.write_text(export_document([samples.record()]), encoding="utf-8-sig")
    assert read_document(path) == [samples.record()]


def test_writing_replaces_whole_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "records.json"
    path.write_text("old")
    for content in ("new\n", b"new \xff\n"):
        write_atomically(path, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_a_written_file_has_the_permissions_of_any_other(tmp_path):
    write_atomically(tmp_path / "written", "")
    (tmp_path / "other").touch()
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("written", "other")}
    assert len(modes) == 1


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "records.json"
    path.write_text("old")
    with pytest.raises(
        StoreError, match=r"json cannot be written: its text has '\\ud800', which is no"
    ):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(StoreError, match=r"folder[/\\]records\.json cannot be written"):
        write_atomically(tmp_path / "no folder" / "records.json", "new")


def test_what_leads_to_a_file_that_others_write_to_is_added_to(tmp_path):
    log = tmp_path / "log"
    log.write_text("kept\n")
    with log.open("ab") as file:
        number = file.fileno()
        write_atomically(f"/dev/fd/{number}", "one\n")
        write_atomically(f"/proc/self/fd/{number}", "two\n")
        assert os.fstat(number).st_ino == log.stat().st_ino
    assert log.read_text() == "kept\none\ntwo\n"
    with pytest.raises(StoreError, match="/dev/fd/987654 cannot be written: Bad file desc"):
        write_atomically("/dev/fd/987654", "three\n")


@pytest.mark.parametrize("ending", ["-wal", "-journal", "-shm"])
def test_what_belongs_to_a_database_is_not_replaced_by_a_text(tmp_path, ending):
    database = tmp_path / "configs.db"
    Store.open(database).close()
    beside = tmp_path / f"configs.db{ending}"
    beside.write_bytes(b"pages")
    with pytest.raises(StoreError, match=f"^{beside} belongs to the database {database}: name"):
        write_atomically(beside, "{}")
    assert beside.read_bytes() == b"pages"


def test_a_database_is_not_replaced_by_a_text(tmp_path):
    with Store.open(tmp_path / "my.db") as store:
        store.add_record(samples.record())
    before = (tmp_path / "my.db").read_bytes()
    with pytest.raises(StoreError, match=r"my\.db is a database, which is not replaced"):
        write_atomically(tmp_path / "my.db", "{}")
    assert (tmp_path / "my.db").read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_file_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "new\n")
        assert os.read(reader, 9) == b"new\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
