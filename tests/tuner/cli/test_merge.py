"""`tuner merge`."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.attention import registry
from tests.tuner.store import samples, strategies
from tuner.search.objective import MARK
from tuner.snapshot import Snapshot
from tuner.store.database import Store
from tuner.store.exchange import export_document
from tuner.trial import Candidate

Run = Callable[..., Any]

MOMENTS = ("2026-11-28T04:00:00Z", "2026-11-28T05:00:00Z")


def database(path: Path, records: Any = (), trials: Any = ()) -> Path:
    with Store.open(path) as store:
        store.add_records(records)
        store.add_trials(trials)
    return path


def state(path: Path) -> tuple[Any, ...]:
    with Store.read_only(path) as store:
        return store.records(), store.trials()


@st.composite
def related_trials(draw: st.DrawFn) -> list[Any]:
    """Trials of few candidates that meet, some at the very same second with other results."""
    return [
        replace(
            samples.trial(draw(st.integers(0, 2))),
            measured_at=draw(st.sampled_from(MOMENTS)),
            measurement=samples.measurement(draw(st.sampled_from([1.0, 2.0]))),
        )
        for _ in range(draw(st.integers(0, 5)))
    ]


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(strategies.related_records(), st.lists(related_trials(), min_size=3, max_size=3), st.data())
def test_it_is_commutative_associative_and_idempotent(
    tuner: Run, tmp_path_factory: pytest.TempPathFactory, records: Any, trials: Any, data: Any
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    sources = []
    for name, some in zip("abc", trials):
        part = data.draw(st.lists(st.sampled_from(records), unique=True)) if records else []
        sources.append(database(folder / f"{name}.db", part, some))
    before = [state(source) for source in sources]
    ends = []
    # Each comes first once; the store's own test has all six orders.
    for number, order in enumerate(list(permutations(sources))[::2]):
        at_once, in_turn = folder / f"{number}.db", folder / f"{number}-in-turn.db"
        assert tuner("merge", *order, "-o", at_once).status == 0
        for source in (*order, order[0]):
            assert tuner("merge", source, "-o", in_turn).status == 0
        ends += [state(at_once), state(in_turn)]
        again = tuner("merge", *order, at_once, "-o", at_once, "--json").json
        assert (again["added"], again["now_standing"], again["replaced"]) == ([], [], [])
        assert again["trials"] == 0
        ends.append(state(at_once))
    assert all(end == ends[0] for end in ends)
    assert {r.uid for r in ends[0][0]} == {r.uid for held, _ in before for r in held}
    assert [state(source) for source in sources] == before


def test_an_empty_file_is_a_database_without_tables(tuner: Run, tmp_path: Path) -> None:
    empty, document, out = tmp_path / "empty.db", tmp_path / "empty.json", tmp_path / "out.db"
    empty.touch()
    document.touch()
    said = tuner("merge", empty, "-o", out)
    assert (said.status, said.err) == (2, tuner("show", "--db", empty).err)
    assert said.err == f"tuner: {empty} holds no tables yet\n"
    assert "is not JSON" in tuner("merge", document, "-o", out).err
    assert not out.exists()


def test_databases_and_documents_together(tuner: Run, tmp_path: Path) -> None:
    first = database(tmp_path / "a.db", [samples.record(1)], [samples.trial(1)])
    document = tmp_path / "b.json"
    document.write_text(export_document([samples.record(2)]), encoding="utf-8")
    said = tuner("merge", first, document, "-o", tmp_path / "c.db")
    assert said.out == (
        f"2 new records, 0 already there, and 1 new trials, in {tmp_path / 'c.db'}.\n"
    )
    assert state(tmp_path / "c.db")[1] == [samples.trial(1)]


def test_measurements_for_two_objectives_stay_apart(tuner: Run, tmp_path: Path) -> None:
    record, trial = samples.record(1), samples.trial(1)
    many = database(tmp_path / "many.db", [record], [trial])
    single = replace(samples.record(2), note=MARK, uid="")
    launches = database(tmp_path / "single.db", [single], [replace(trial, reason=MARK)])
    out = tmp_path / "out.db"
    said = tuner("merge", many, launches, "-o", out)
    assert (said.status, out.exists()) == (2, False)
    assert said.err == (
        f"tuner: '{launches}' was measured for latency, but must be for throughput, as '{many}' "
        "is: a database holds measurements for one objective\n"
    )
    assert tuner("merge", launches, "-o", out).status == 0
    before = state(out)
    document = tmp_path / "many.json"
    document.write_text(export_document([record]), encoding="utf-8")
    for words, option in (
        (("merge", many, "-o", out), "--output"),
        (("import", document, "--db", out), "--db"),
    ):
        said = tuner(*words)
        assert said.status == 2
        assert said.err.endswith(
            f"{out} holds measurements for latency, not throughput: give another {option}\n"
        )
    assert state(out) == before


def damage(path: Path, number: int) -> None:
    """Spoil the record and the trial of this number, and date the trial later."""
    with closing(sqlite3.connect(path)) as connection, connection:
        key = samples.candidate(number).config.key
        connection.execute("update records set tflops = -1 where config = ?", [key])
        late = "2026-11-28T09:00:00Z"
        connection.execute(
            "update trials set tflops = -1, measured_at = ? where config = ?", [late, key]
        )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes")
@pytest.mark.timeout(60)
def test_a_document_may_come_through_a_pipe(tuner: Run, tmp_path: Path) -> None:
    """As in `tuner merge <(cat a.json) -o all.db`: what is read of it is gone."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = export_document([samples.record()])
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pipe.write_text, text)
        said = tuner("merge", str(pipe), "-o", str(tmp_path / "all.db"))
    assert said.status == 0, said.err
    assert state(tmp_path / "all.db") == ([samples.record()], [])


def test_what_is_damaged_in_one_is_taken_whole_from_another(tuner: Run, tmp_path: Path) -> None:
    records = [samples.record(number) for number in range(3)]
    trials = [samples.trial(number) for number in range(3)]
    one, two = tmp_path / "a.db", tmp_path / "b.db"
    for path, spoilt in ((one, 0), (two, 1)):
        damage(database(path, records, trials), spoilt)
    whole = state(database(tmp_path / "whole.db", records, trials))
    for number, order in enumerate(permutations([one, two])):
        out = tmp_path / f"{number}.db"
        assert tuner("merge", *order, "-o", out).status == 0
        assert state(out) == whole
    said = tuner("merge", one, two, "-o", one, "--json").json  # in place
    assert (said["added"], said["trials"]) == ([records[0].uid], 1)
    assert state(one) == whole
    again = tuner("merge", one, two, "-o", one, "--json").json
    assert (again["added"], again["already_there"], again["trials"]) == ([], 3, 0)


def test_an_import_puts_damaged_records_right(tuner: Run, tmp_path: Path) -> None:
    mine, document = database(tmp_path / "mine.db", [samples.record(1)]), tmp_path / "whole.json"
    document.write_text(export_document([samples.record(1)]), encoding="utf-8")
    damage(mine, 1)
    said = tuner("import", document, "--db", mine, "--json")
    assert said.json["added"] == said.json["now_standing"] == [samples.record(1).uid]
    assert state(mine)[0] == [samples.record(1)]
    assert tuner("import", document, "--db", mine).err == ""


def test_the_same_record_stands_everywhere_where_a_former_kernels_was_faster(
    tuner: Run, tmp_path: Path
) -> None:
    template = registry.get("portable")
    default = Candidate("portable", template.default(samples.PROBLEM, 90))
    of_now = {"candidate": default, "template_version": template.version}
    other = {**of_now, "problem": replace(samples.PROBLEM, seqlen=4096)}
    living = samples.bare_record(1, 2.0, **of_now)
    former = samples.bare_record(1, 1.0, candidate=default)
    later_living = samples.bare_record(1, 2.5, **other)
    later_former = samples.bare_record(1, 1.5, **{**other, "template_version": "0123456789ab"})

    document, out = tmp_path / "some.json", tmp_path / "out.db"
    document.write_text(export_document([former, later_living]), encoding="utf-8")
    for command in (("import", document, "--db"), ("merge", document, "-o")):
        out.unlink(missing_ok=True)
        database(out, [living, later_former])
        said = tuner(*command, out, "--json").json
        assert set(said["added"]) == {former.uid, later_living.uid}
        assert said["now_standing"] == [later_living.uid]
        assert said["replaced"] == [later_former.uid]

    standing = {living.uid, later_living.uid}
    assert {record["uid"] for record in tuner("show", "--db", out, "--json").json} == standing
    exported = tuner("export", "--db", out).json["records"]
    assert {record["uid"] for record in exported} == standing
    reasons = {found["reason"] for found in tuner("stale", "--db", out, "--json").json}
    assert all(reason.startswith("Triton ") for reason in reasons)  # whichever is installed
    for record in (living, later_living):
        shape = ("--hdim", 128, "--causal", "--seqlen", record.problem.seqlen)
        words = (*map(str, shape), "--dtype", record.problem.dtype, "--target", "h100")
        (found,) = tuner("lookup", *words, "--db", out, "--json").json["lookups"]
        assert found["record"]["uid"] == record.uid
    resolution = Snapshot.load(out).resolve(samples.TARGET, samples.PROBLEM)
    assert resolution.record == living  # what attention itself runs by


@pytest.mark.parametrize("content", [None, b"", b"{}", b"SQLite format 3\0 but no more"])
def test_a_source_that_is_none_leaves_the_output_untouched(
    tuner: Run, tmp_path: Path, content: bytes | None
) -> None:
    bad, good = tmp_path / "bad", database(tmp_path / "good.db", [samples.record(1)])
    if content is not None:
        bad.write_bytes(content)
    said = tuner("merge", good, bad, "-o", tmp_path / "c.db")
    assert said.status == 2
    assert str(bad) in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "c.db").exists()


def test_what_claims_to_be_of_the_future_is_refused(tuner: Run, tmp_path: Path) -> None:
    future = replace(samples.trial(1), measured_at="2999-01-01T00:00:00Z")
    bad = database(tmp_path / "bad.db", trials=[future])
    said = tuner("merge", bad, "-o", tmp_path / "c.db")
    assert said.status == 2
    assert f"{bad} holds a trial of 2999-01-01T00:00:00Z, but must have none" in said.err


def test_an_output_whose_name_is_too_long_is_not_begun(tuner: Run, tmp_path: Path) -> None:
    database(tmp_path / "one.db", [samples.record()])
    output = tmp_path / "out" / ("x" * 250)
    said = tuner("merge", tmp_path / "one.db", "-o", output)
    assert said.status == 2
    assert "its name is longer than 247 bytes" in said.err
    assert not output.parent.exists()


def test_no_output_is_an_error_that_names_it(tuner: Run, tmp_path: Path) -> None:
    said = tuner("merge", database(tmp_path / "a.db"))
    assert said.status == 2
    assert "--output" in said.err
