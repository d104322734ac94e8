"""What code of ours may not do, and what a stranger's data cannot make it do."""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import HEADDIMS, Problem
from tests.test_house import SOURCES, imported
from tests.tuner.store import samples
from tuner.liveness import refusal, revived
from tuner.resolve import resolve
from tuner.store.database import Store
from tuner.store.exchange import export_document
from tuner.store.files import write_atomically
from tuner.store.layers import Layers
from tuner.store.publish import publish
from tuner.trial import Candidate

# Modules that run what they read.
PICKLES = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml",
}  # fmt: skip
RUNNERS = {"eval", "exec", "compile", "__import__", "input"}
RUNNING_METHODS = {
    ("os", "system"), ("os", "popen"), ("torch", "load"), ("torch", "save"), ("tempfile", "mktemp"),
}  # fmt: skip


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: "/".join(path.parts[-3:]))
def test_nothing_that_is_read_is_run(path: Path) -> None:
    assert not {name.partition(".")[0] for name in imported(path)} & PICKLES
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            assert node.func.id not in RUNNERS, f"{path}:{node.lineno}"
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            called = (node.func.value.id, node.func.attr)
            assert called not in RUNNING_METHODS, f"{path}:{node.lineno}"
        for keyword in node.keywords:
            shell = keyword.arg == "shell" and getattr(keyword.value, "value", True)
            assert not shell, f"{path}:{node.lineno}"


def test_sql_goes_through_sqlalchemy() -> None:
    """But for the connection itself, which SQLAlchemy is handed, and its pragmas."""
    drivers = {"sqlite3", "psycopg", "psycopg2", "asyncpg", "MySQLdb"}
    using = {
        path.name for path in SOURCES if {n.partition(".")[0] for n in imported(path)} & drivers
    }
    assert using == {"sqlite.py"}
    found = [
        (path, statement)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and (statement := statement_of(node)) is not None
    ]
    assert len(found) > 10
    # No statement is put together from pieces.
    for path, statement in found:
        assert is_whole(path, statement), f"{path}:{statement.lineno}: {ast.unparse(statement)}"


@pytest.mark.parametrize(
    "code",
    [
        'connection.execute(f"drop table {name}")',
        'connection.execute("drop table %s" % name)',
        'connection.execute("drop table {}".format(name))',
        "connection.execute(sql)",
        'connection.exec_driver_sql("".join(parts))',
        "connection.execute(text(sql))",
        "connection.execute(statement=sql)",
        "connection.scalar(select(text(sql)))",
        "execute(engine, sql)",
        "connection.executescript(sql)",
    ],
)
def test_a_statement_of_pieces_would_be_seen(code: str) -> None:
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    statements = [found for call in calls if (found := statement_of(call)) is not None]
    assert not all(is_whole(Path("mine.py"), statement) for statement in statements)


# Names of statements that are whole: built by SQLAlchemy, or handed on by what is given literals.
WHOLE = {
    ("database.py", "query"), ("database.py", "statement"), ("database.py", "there"),
    ("sqlite.py", "statement"), ("sqlite.py", "_IMMEDIATE"), ("sqlite.py", "_PATIENCE"),
    ("study_file.py", "studies"),
}  # fmt: skip
BUILDERS = {"select", "delete", "insert", "update", "upsert"}


def statement_of(call: ast.Call) -> ast.expr | None:
    """What a call would have a database run; None if it is none of those that do."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    match call.func:
        case ast.Name("execute" | "_patiently"):  # of tuner.store.sqlite, which take the engine
            return given[1]
        case ast.Attribute(ast.Name("standalone"), "text"):
            return None
        case ast.Name("text") | ast.Attribute(_, "text"):
            return given[0] if given else None
        case ast.Attribute(
            _, "execute" | "exec_driver_sql" | "executemany" | "executescript" | "scalar"
            | "scalars" | "stream"
        ):  # fmt: skip
            return given[0] if given else None
    return None


def is_whole(path: Path, statement: ast.expr) -> bool:
    match statement:
        case ast.Constant(str()):
            return True
        case ast.Name(name):
            return (path.name, name) in WHOLE
        case ast.Call(ast.Name("text")):  # looked at by itself
            return True
    while isinstance(statement, ast.Call | ast.Attribute):  # as in select(…).where(…)
        statement = statement.func if isinstance(statement, ast.Call) else statement.value
    return isinstance(statement, ast.Name) and statement.id in BUILDERS


_values = (
    st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.sampled_from([0, -1, 1, 3, 7, 8, 16, 64, 128, 1 << 20])
    | st.text(max_size=8)
)


@st.composite
def hostile_configs(draw: st.DrawFn, name: str) -> tuple[Problem, Config]:
    """A template's own config with some of its parameters missing, foreign or absurd."""
    problem = Problem.on_grid(draw(st.sampled_from(HEADDIMS)), 4096, draw(st.booleans()))
    config = dict(registry.get(name).default(problem, 90))
    for key in draw(st.lists(st.sampled_from(sorted(config)), min_size=0, max_size=4)):
        if draw(st.booleans()):
            config[key] = draw(_values)
        else:
            config.pop(key, None)
    config.update(draw(st.dictionaries(st.text(max_size=6), _values, max_size=2)))
    return problem, Config(config)


@pytest.mark.parametrize("name", registry.names())
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_only_what_is_in_the_space_may_launch(name: str, data: st.DataObject) -> None:
    problem, config = data.draw(hostile_configs(name))
    template = registry.get(name)
    if template.supports(problem.specialization, 90) is not None:
        return
    if refusal(Candidate(name, config), problem, 90) is None:
        space = template.space(problem.specialization)
        config = revived(Candidate(name, config)).config  # as it would launch
        assert set(config) == set(space)
        for parameter, value in config.items():
            assert (type(value), value) in [(type(v), v) for v in space[parameter]]


def hostile() -> Iterator[Config]:
    default = registry.get("portable").default(samples.PROBLEM, 90)
    yield Config({**default, "BLOCK_M": 1 << 40})
    yield Config({**default, "BLOCK_N": 0})
    yield Config({**default, "BLOCK_N": -128})
    yield Config({**default, "num_warps": 4096})
    yield Config({**default, "num_stages": "; rm -rf /"})
    yield Config({**default, "BLOCK_M": True})
    yield Config({**default, "extra": 1})
    yield Config({})


@pytest.mark.parametrize("config", list(hostile()), ids=str)
def test_a_hostile_row_is_stored_and_never_resolved(config: Config, tmp_path: Path) -> None:
    """Its uid is right and its figures tempting: only the template's space can tell."""
    portable = registry.get("portable")
    record = replace(
        samples.record(ms := 1),
        candidate=Candidate("portable", config),
        template_version=portable.version,
        measurement=samples.measurement(ms * 1e-6),
        uid="",
    )
    path = tmp_path / "hostile.db"
    with Store.open(path) as store:
        assert store.add_record(record)
    layers = Layers.load(path, shipped=path)
    assert layers.standing() == [record]
    for problem in (record.problem, replace(record.problem, seqlen=record.problem.seqlen + 1)):
        found = resolve(layers.standing(), record.target, problem)
        assert found.source == "default"
        assert found.candidate.config != config


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o027])
def test_files_have_no_more_permissions_than_the_user_grants(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with Store.open(tmp_path / "data" / "mine.db") as store:
            store.add_record(samples.record())
            for path in (tmp_path / "data").iterdir():  # also the log and its index
                assert mode(path) & (0o111 | mask | 0o022) == 0, path
        publish(tmp_path / "shipped.db", [samples.record()])
        write_atomically(tmp_path / "records.json", export_document([samples.record()]))
    finally:
        os.umask(before)
    for path in (tmp_path / "shipped.db", tmp_path / "records.json"):
        assert mode(path) & (0o111 | mask | 0o022) == 0, path
    assert mode(tmp_path / "data") & (mask | 0o022) == 0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
