from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scripts.publish_configs import main
from tests.tuner.store import samples
from tuner.standing import standing
from tuner.store.database import Store
from tuner.store.publish import publish


def database(path: Path, *records: object) -> Path:
    with Store.open(path) as store:
        store.add_records(records)
        store.add_trial(samples.trial())
    return path


def test_the_union_is_published_and_the_stores_rule_decides(tmp_path, capsys):
    slow, fast, raced = (samples.record(n, ms) for n, ms in ((1, 1.5), (2, 1.0), (3, 0.5)))
    verdict = samples.record(4, 1.2, supersedes=(raced.uid,))
    shipped = tmp_path / "configs.db"
    publish(shipped, [slow, raced])
    first, second = (tmp_path / name for name in ("a.db", "b.db"))
    database(first, fast, samples.record(5, 0.1, origin="replay"))
    database(second, fast, verdict)
    main([str(shipped), str(first), str(second), "--output", str(shipped)])
    with Store.read_only(shipped) as store:
        assert {r.uid for r in store.records()} == {r.uid for r in (slow, fast, raced, verdict)}
        assert list(standing(store.records()).values()) == [fast]
        assert store.trials() == []
    out = capsys.readouterr().out
    assert out.count("is added, but does not stand") == 1
    assert out.splitlines()[-1] == "4 records, 1 of which stand"


def test_the_order_of_sources_does_not_matter(tmp_path):
    one = database(tmp_path / "one.db", samples.record(1))
    two = database(tmp_path / "two.db", samples.record(2))
    main([str(one), str(two), "--output", str(tmp_path / "x.db")])
    main([str(two), str(one), "--output", str(tmp_path / "y.db")])
    assert (tmp_path / "x.db").read_bytes() == (tmp_path / "y.db").read_bytes()


@pytest.mark.parametrize("kind", ["missing", "nothing measured"])
def test_a_source_without_records_is_refused_and_the_old_file_stays(tmp_path, capsys, kind):
    shipped, source = tmp_path / "configs.db", tmp_path / "source.db"
    publish(shipped, [samples.record(1)])
    before = shipped.read_bytes()
    if kind != "missing":
        database(source, samples.record(2, origin="replay"))
    with pytest.raises(SystemExit) as end:
        main([str(source), "--output", str(shipped)])
    assert end.value.code == 2
    assert str(source) in capsys.readouterr().err
    assert shipped.read_bytes() == before


def test_what_we_ship_is_what_it_makes(tmp_path):
    shipped = Path(__file__).parents[2] / "configs.db"
    main([str(shipped), "--output", str(tmp_path / "configs.db")])
    with Store.read_only(shipped) as ours, Store.read_only(tmp_path / "configs.db") as made:
        assert ours.records() == made.records()


def test_problems_can_be_left_out_by_name(tmp_path, capsys):
    record = samples.record(1)
    other = samples.record(2, problem=replace(record.problem, seqlen=512))
    source, out = database(tmp_path / "source.db", record, other), tmp_path / "out.db"
    main([str(source), "--without", str(other.problem), "--output", str(out)])
    with Store.read_only(out) as store:
        assert store.records() == [record]
    with pytest.raises(SystemExit):
        main([str(source), "--without", "D1 S1", "--output", str(out)])
    known = f"{other.problem}, {record.problem}"
    expected = f"--without is 'D1 S1', but must be a problem that a source has, such as {known}"
    assert expected in capsys.readouterr().err
