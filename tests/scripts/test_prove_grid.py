"""Records of a grid race the fastest that is known of their like."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from kernels.attention.config import Config
from kernels.attention.problem import Problem
from scripts import prove_grid
from scripts.prove_grid import (
    Report,
    Row,
    prove,
    proven_by,
    rivals,
    searched,
    table,
)
from scripts.prove_search import Run
from tests.tuner.search.conftest import ToyExecutor, ToyTemplate, problem, record
from tuner.evaluate.space_file import read_folder
from tuner.record import Record
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.trial import Candidate

BEST = Candidate("toy", Config(BLOCK_M=128, BLOCK_N=64, num_stages=3, flag=True))
WORSE = Config(BLOCK_M=128, BLOCK_N=64, num_stages=2, flag=True)  # by a tenth
OTHER, WORST = (Config(BLOCK_M=64, BLOCK_N=64, num_stages=n, flag=True) for n in (3, 2))


def of_other(template: str, problem: Problem) -> Record:
    """A record of a config that is nobody's rival."""
    return replace(record(problem, WORST), candidate=Candidate(template, WORST))


def test_the_nearest_spaces_have_the_first_say() -> None:
    spaces = read_folder(prove_grid.SPACES / "h200")
    own = Problem.on_grid(128, 8192, True)
    kind, found = rivals(of_other("hopper", own), spaces, {})
    assert kind == "own"
    assert [candidate.template for candidate in found[:6]] == ["hopper"] * 6
    assert len(found) == len(set(found)) <= prove_grid.MOST
    # By its cycles, though the portable template's space beside it has none.
    headers = [(space.header.problem, space.header.template) for space in spaces]
    hopper = spaces[headers.index((own, "hopper"))]
    measured = {t.candidate: t.measurement for t in hopper.trials.values() if t.measurement}
    assert found[0] == min(measured, key=lambda candidate: measured[candidate].steady_ms)
    assert measured[found[0]].cycles
    winner = replace(of_other("hopper", own), candidate=found[0])
    _, others = rivals(winner, spaces, {})
    assert (others[:-1], len(others)) == (found[1:], prove_grid.MOST)  # its own leaves a place
    long, bf16 = replace(own, seqlen=16384), replace(own, dtype="bf16")
    for near in (long, bf16):
        kind, others = rivals(of_other("hopper", near), spaces, {})
        assert (kind, others[:6]) == ("near", found[:6])
    # Of a template of which nothing was recorded there, its own problem is no better known.
    assert rivals(of_other("toy", own), spaces, {})[0] == "near"
    kind, proven = rivals(of_other("toy", own), spaces, {own: [BEST]})
    assert (kind, proven[:7]) == ("own", [BEST, *found[:6]])
    without = [space for space in spaces if space.header.problem.headdim != 64]
    none = of_other("hopper", Problem.on_grid(64, 4096, True))
    assert rivals(none, without, {}) == ("none", [])


def test_of_two_cards_each_has_its_fastest_and_the_first_its_say_first() -> None:
    cards = [read_folder(prove_grid.SPACES / name) for name in ("h100", "h200")]
    of = Problem.on_grid(64, 4096, True)
    alone = [rivals(of_other("hopper", of), card, {})[1][:6] for card in cards]
    assert alone[0] != alone[1]
    for first, second in ((0, 1), (1, 0)):
        _, both = rivals(of_other("hopper", of), [*cards[first], *cards[second]], {})
        more = [candidate for candidate in alone[second] if candidate not in alone[first]]
        assert both[: 6 + len(more)] == [*alone[first], *more][: prove_grid.MOST]


def test_the_winners_of_other_records_race_those_of_its_dtype_first(toy: ToyTemplate) -> None:
    short, long, own = problem(1024), problem(8192), problem(4096)
    bf16 = replace(own, dtype="bf16")
    mine = record(own, WORST)
    records = [record(short, WORSE), record(bf16, BEST.config), record(long, OTHER), mine]
    worse, other = Candidate("toy", WORSE), Candidate("toy", OTHER)
    assert rivals(mine, [], {}, records) == ("near", [other, worse, BEST])
    masked = [record(replace(short, causal=False), WORSE), mine]
    assert rivals(mine, [], {}, masked) == ("none", [])
    # What won elsewhere alone can be faster, too.
    rows: list[Row] = []
    prove([record(short, WORSE), record(own, BEST.config)], [], {}, ToyExecutor(), lambda: 99.0,
          rows, lambda: None)  # fmt: skip
    assert [(row["problem"], row["best"]) for row in rows] == [
        (str(short), str(BEST)), (str(own), str(BEST))
    ]  # fmt: skip


def test_a_record_has_its_regret_and_time_ends_it(toy: ToyTemplate) -> None:
    far, near, own = problem(1024), problem(2048), problem(4096)
    other = problem(4096, causal=False)  # of whose like nothing is known
    records = [record(of, WORSE) for of in (other, far, near, own)]
    report = Report({})
    kept: list[int] = []
    left = iter([100.0, 100.0, 10.0])
    prove(
        records, [], {own: [BEST]}, ToyExecutor(), lambda: next(left), report.rows,
        lambda: kept.append(len(report.rows)),
    )  # fmt: skip
    assert [(row["problem"], row["kind"]) for row in report.rows] == [
        (str(own), "own"),
        (str(far), "near"),
    ]
    assert kept == [1, 2]
    assert [row["regret"] for row in report.rows] == [pytest.approx(1.1, abs=0.005)] * 2
    assert report.rows[0]["best"] == str(BEST)
    prove(records, [], {own: [BEST]}, ToyExecutor(), lambda: 100.0, report.rows, lambda: None)
    assert [row["problem"] for row in report.rows] == [str(own), str(far), str(near)]
    read = Report.from_json(json.loads(json.dumps(asdict(report))))
    assert read == report
    printed = table(read, len(records))
    assert "own: 0.9" in printed
    assert "(geometric mean of 2 of 4 problems)" in printed
    assert "searched" not in printed


def test_a_grid_is_searched_from_cold(toy: ToyTemplate, tmp_path: Path) -> None:
    problems = [problem(4096), problem(2048)]
    path = tmp_path / "grid.db"
    asked: list[list[Candidate]] = []

    def opened(first: Any) -> ToyExecutor:
        asked.append([candidate for candidate, _ in first(ToyExecutor.target)])
        return ToyExecutor()

    report = searched(problems, opened, path, 60.0)
    assert report.target == asdict(ToyExecutor.target)
    made = report.search
    assert made is not None
    assert asked[0][0] == Candidate("toy", toy.default(problems[0], 90))
    with Store.read_only(path) as store:
        assert {held.problem for held in store.records()} == set(problems)
        assert sum(len(store.trials(of)) for of in problems) == made["trials"] > 40
    assert made["records"] == 2
    assert made["cut_short"] == []
    assert made["parts"].keys() >= {"wall", "waiting", "finals", "searching"}
    assert Report.from_json(json.loads(json.dumps(asdict(report)))) == report
    assert f"{made['trials']} trials, 2 records; cut short: none" in table(report, 2)
    for wrong in ({"seconds": -1.0}, {"trials": "many"}, {"cut_short": [1]}, {"cut_short": "ab"}):
        with pytest.raises(ValueError, match="its search has figures that cannot be"):
            Report.from_json({"target": {}, "rows": [], "search": made | wrong})


@pytest.mark.usefixtures("toy")
def test_exhaustive_winners_of_a_proof_count_unless_cut_short() -> None:
    of, cut = problem(4096), problem(8192)
    runs = {
        str(of): [Run("ours", candidate=BEST), Run("exhaustive", candidate=BEST)],
        str(cut): [Run("exhaustive", candidate=BEST, note="cut short after 9 of 600 trials")],
    }
    forms = {name: [run.to_json() for run in each] for name, each in runs.items()}
    assert proven_by({"target": {}, "runs": forms}) == {of: [BEST], cut: []}


def test_rows_have_figures_that_can_be() -> None:
    row: Row = dict.fromkeys(("problem", "note", "record", "best"), "")
    row |= {"kind": "own", "regret": 0.99, "tflops": 600.0, "raced": 2}  # below one by chance
    form: dict[str, Any] = {"target": {"gpu": "H200"}, "rows": [row]}
    assert Report.from_json(form) == Report({"gpu": "H200"}, [row])
    form["rows"] = [row | {"regret": None, "tflops": None}]
    assert Report.from_json(form).rows[0]["regret"] is None
    for wrong in ({"regret": 0.0}, {"regret": -1.0}, {"tflops": -1.0}, {"raced": -1}):
        with pytest.raises(ValueError, match="figures that cannot be"):
            Report.from_json({"target": {}, "rows": [row | wrong]})
    with pytest.raises(ValueError, match="names no problem"):
        Report.from_json({"target": {}, "rows": [row | {"problem": 1}]})


@pytest.mark.parametrize(
    ("dtype", "grid", "raced"),
    [("fp16", "", 25), ("bf16", "", 26), ("fp16", "-shipped", 36), ("bf16", "-shipped", 32)],
)
def test_the_published_grids_are_such_reports(dtype: str, grid: str, raced: int) -> None:
    path = prove_grid.SPACES.parents[1] / "docs" / f"grid-{dtype}{grid}.json"
    report = Report.from_json(json.loads(path.read_text()))
    problems = {row["problem"] for row in report.rows}
    assert len(problems) == raced
    assert problems <= {str(problem) for problem in prove_grid.plan(dtypes=(dtype,))}


def test_the_whole_of_it_from_cold_and_on_from_where_it_ended(
    toy: ToyTemplate,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    from tuner.evaluate import local

    caches: list[str | None] = []

    def opened(first: object = None) -> ToyExecutor:
        caches.append(os.environ.get("TRITON_CACHE_DIR"))
        if len(caches) == 2:
            raise RuntimeError("the second process finds no GPU")
        return ToyExecutor()

    monkeypatch.setenv("TRITON_CACHE_DIR", "warm")
    monkeypatch.setattr(local, "LocalExecutor", opened)
    monkeypatch.setattr(prove_grid, "has_gpu", lambda: True)
    monkeypatch.setattr(prove_grid, "SPACES", tmp_path)
    monkeypatch.setattr(prove_grid, "plan", lambda dtypes: [problem(4096, dtype=dtypes[0])])
    database, output = tmp_path / "grid.db", tmp_path / "grid.json"
    words = [str(database), "--output", str(output)]
    with pytest.raises(RuntimeError, match="finds no GPU"):
        prove_grid.main([*words, "--search", "60s", "--dtype", "bf16"])
    assert caches[0] != "warm"
    searched_for = json.loads(output.read_text())["search"]
    assert (searched_for["records"], searched_for["budget_s"]) == (1, 60.0)
    with Store.open(database) as store:
        (mine,) = store.records()
        assert mine.problem.dtype == "bf16"
        store.add_record(record(problem(2048, dtype="bf16"), WORSE))
        other = replace(mine.target, hardware=replace(mine.target.hardware, sm_count=7))
        store.add_record(replace(mine, target=other, uid=""))  # of another card
    prove_grid.main(words)
    assert caches[-1] == "warm"
    report = json.loads(output.read_text())
    assert report["search"] == searched_for
    assert len(report["rows"]) == 2
    printed = capsys.readouterr().out
    assert "searched from cold" in printed
    assert "of 2 problems" in printed

    def full(path: Path, content: str) -> None:
        raise StoreError(f"{path} cannot be written: no space")

    output.write_text(json.dumps({**report, "rows": []}))
    with monkeypatch.context() as patched:
        patched.setattr(prove_grid.refusals, "write_atomically", full)
        with pytest.raises(SystemExit) as ended:
            prove_grid.main(words)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert "of 2 problems" in said.out  # its first row is not lost
    assert said.err.endswith("grid.json cannot be written: no space\n")
    report["target"]["gpu_name"] = "another"
    output.write_text(json.dumps(report))
    with pytest.raises(SystemExit):
        prove_grid.main(words)


def test_a_database_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")

    def full(*_: object) -> Report:
        raise StoreError("grid.db cannot be written: the disk is full")

    monkeypatch.setattr(prove_grid, "has_gpu", lambda: True)
    monkeypatch.setattr(prove_grid, "searched", full)
    words = [str(tmp_path / "grid.db"), "--search", "60s", "--output", str(tmp_path / "grid.json")]
    with pytest.raises(SystemExit) as ended:
        prove_grid.main(words)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("error: grid.db cannot be written: the disk is full")
