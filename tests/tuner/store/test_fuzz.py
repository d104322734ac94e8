"""Importers and databases fed with anything: they refuse in one sentence, or take what is whole."""

from __future__ import annotations

import gzip
import json
import lzma
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.tuner.store import samples
from tuner.evaluate.replay import shipped_spaces
from tuner.evaluate.space_file import read_space
from tuner.evaluate.t4 import SpaceError
from tuner.record import Record
from tuner.store.database import Store
from tuner.store.errors import DocumentError, StoreError
from tuner.store.exchange import export_document, import_document, read_document
from tuner.store.layers import Layers
from tuner.store.merge import contents
from tuner.store.rows import trial_row

T = TypeVar("T")
VALID = export_document([samples.record(1), samples.record(2, 2.0)])

_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["", "0" * 16, "fp16", "2026-02-30T00:00:00Z", "\x00", "é" * 3000])
)
_json = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=12,
)
quick = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def attempt(read: Callable[[], T], refusal: type[Exception] = StoreError) -> tuple[T | None, str]:
    """What `read` returns, or its refusal, which is one sentence. Nothing else may be raised."""
    try:
        return read(), ""
    except refusal as error:
        said = str(error)
    assert said
    assert "\n" not in said
    assert len(said) < 2500
    return None, said


def assert_refused_or_whole(text: str) -> None:
    records, _ = attempt(lambda: import_document(text), DocumentError)
    if records is not None:
        assert all(isinstance(record, Record) for record in records)
        again = import_document(export_document(records))
        assert {record.uid for record in again} == {record.uid for record in records}


@quick
@given(st.text() | _json.map(json.dumps))
@example("[" * 100_000)
@example("1" * 10_000)
@example('{"a": 1e999}')
def test_any_text(text: str) -> None:
    assert_refused_or_whole(text)


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for name, item in value.items():
            found += places(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += places(item, (*path, index))
    return found


@quick
@given(st.data())
def test_a_document_with_anything_anywhere(data: st.DataObject) -> None:
    document = json.loads(VALID)
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(places(document)))
        place = document
        for name in parents:
            place = place[name]
        if data.draw(st.booleans()):
            place[last] = data.draw(_json)
        elif isinstance(place, dict):
            del place[last]
            place[data.draw(st.text(max_size=12))] = data.draw(_json)
    assert_refused_or_whole(json.dumps(document))


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """`content` cut, overwritten or repeated somewhere."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(changed) - 1)))
        how = draw(st.sampled_from(["cut", "overwrite", "repeat", "flip"]))
        if how == "cut":
            del changed[at : at + draw(st.integers(1, 5000))]
        elif how == "overwrite":
            some = draw(st.binary(min_size=1, max_size=40))
            changed[at : at + len(some)] = some
        elif how == "repeat":
            changed[at:at] = changed[at : at + draw(st.integers(1, 200))]
        elif changed:
            changed[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(changed)


@quick
@given(damaged(VALID.encode()))
def test_a_damaged_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "records.json"
    path.write_bytes(content)
    records, said = attempt(lambda: read_document(path), DocumentError)
    assert said.startswith(str(path)) or records is not None
    whole = {samples.record(1).uid, samples.record(2, 2.0).uid}
    assert {record.uid for record in records or ()} <= whole


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "whole.db"
    with Store.open(path, write_ahead_log=False) as store:
        store.add_records(samples.bare_record(number) for number in range(40))
        store.add_trials(samples.trial(number) for number in range(10))
    return path


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_damaged_database(tmp_path: Path, database: Path, data: st.DataObject) -> None:
    """Every way in ends in a StoreError or in records that are whole; lookups go on regardless."""
    whole = {samples.bare_record(number).uid for number in range(40)}
    path = tmp_path / "damaged.db"
    path.write_bytes(data.draw(damaged(database.read_bytes())))
    for read in (
        lambda: contents(path).records,
        lambda: Layers.load(path, shipped=path).standing(),
    ):
        records, said = attempt(read)
        assert str(path) in said or records is not None
        assert {record.uid for record in records or ()} <= whole
    Layers.load(path, strict=False, shipped=path)

    def write() -> None:
        with Store.open(path) as store:
            store.add_record(samples.record(1))
            store.trials()

    attempt(write)


_cells = (
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.binary(max_size=8)
    | st.text(max_size=20)
    | _json.map(json.dumps)
)


@settings(quick, max_examples=50)
@given(st.data())
def test_a_table_of_anything(tmp_path: Path, database: Path, data: st.DataObject) -> None:
    """Tables that hold a row to nothing, and rows of which any cell may be anything."""
    path = tmp_path / "strange.db"
    path.write_bytes(database.read_bytes())
    with closing(sqlite3.connect(path)) as connection, connection:
        for name in ("records", "trials"):
            rows = connection.execute(f"select * from {name} limit 1")
            columns = [column for column, *_ in rows.description]
            (first,) = rows.fetchall()
            connection.execute(f"drop table {name}")
            connection.execute(f"create table {name} ({', '.join(columns)})")
            whole = data.draw(st.booleans())
            spoilt = data.draw(st.sets(st.sampled_from(range(len(columns))), min_size=1))
            row = [
                data.draw(_cells) if index in spoilt else cell if whole else None
                for index, cell in enumerate(first)
            ]
            places = ", ".join("?" * len(columns))
            connection.execute(f"insert into {name} values ({places})", row)
    assert Layers.load(path, strict=False).standing()  # the shipped ones
    attempt(lambda: Layers.load(path, shipped=path).standing())
    attempt(lambda: contents(path))


@pytest.mark.parametrize("evidence", ["5", '"ab"', "[]", "[[1, 2]]", "null", "true", "{}"])
def test_a_row_without_a_shape(tmp_path: Path, database: Path, evidence: str) -> None:
    path = tmp_path / "shapeless.db"
    path.write_bytes(database.read_bytes())
    with closing(sqlite3.connect(path)) as connection, connection:
        for name in ("records", "trials"):
            rows = connection.execute(f"select * from {name} limit 0")
            columns = ", ".join(column for column, *_ in rows.description)
            connection.execute(f"drop table {name}")
            connection.execute(f"create table {name} ({columns})")
            values = [evidence, "null"]
            connection.execute(f"insert into {name} (evidence, config) values (?, ?)", values)
    assert Layers.load(path, shipped=path).standing() == []
    assert not contents(path).trials


def test_a_view_in_place_of_a_table_is_not_read(tmp_path: Path, database: Path) -> None:
    path = tmp_path / "view.db"
    path.write_bytes(database.read_bytes())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("drop table records")
        connection.execute(
            "create view records as with recursive endless(x) as "
            "(select 1 union all select x + 1 from endless) select x as uid from endless"
        )
    _, said = attempt(lambda: Store.read_only(path))
    assert said.startswith(f"{path} is damaged: a table is missing")


def spaces() -> list[Path]:
    return sorted(path for path in shipped_spaces().iterdir() if path.name.endswith(".xz"))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_damaged_recorded_space(tmp_path: Path, data: st.DataObject) -> None:
    plain = lzma.decompress(spaces()[0].read_bytes())[:60_000]
    packed = data.draw(st.booleans())
    if packed:
        content = data.draw(damaged(gzip.compress(plain, mtime=0)))
    else:
        content = gzip.compress(data.draw(damaged(plain)), mtime=0)
    path = tmp_path / "space.json.gz"
    path.write_bytes(content)
    _, said = attempt(lambda: read_space(path).check(trial_row), SpaceError)
    assert path.name in said or not said
