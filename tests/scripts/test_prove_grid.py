"""Records of a grid race the fastest that is known of their like."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kernels.attention.config import Config
from kernels.attention.problem import Problem
from scripts import prove_grid
from scripts.prove_grid import Row, prove, proven_by, rivals, rows_of, table
from scripts.prove_search import Run
from tests.tuner.search.conftest import ToyExecutor, ToyTemplate, problem, record
from tuner.evaluate.space_file import read_folder
from tuner.trial import Candidate

BEST = Candidate("toy", Config(BLOCK_M=128, BLOCK_N=64, num_stages=3, flag=True))
WORSE = Config(BLOCK_M=128, BLOCK_N=64, num_stages=2, flag=True)  # by a tenth
OTHER, WORST = (Config(BLOCK_M=64, BLOCK_N=64, num_stages=n, flag=True) for n in (3, 2))


def test_the_nearest_spaces_have_the_first_say() -> None:
    spaces = read_folder(prove_grid.SPACES / "h200")
    own = Problem.on_grid(128, 8192, True)
    kind, found = rivals(own, spaces, {})
    assert kind == "own"
    assert [candidate.template for candidate in found[:6]] == ["hopper"] * 6
    assert len(found) == len(set(found)) <= prove_grid.MOST
    kind, near = rivals(Problem.on_grid(128, 16384, True), spaces, {})
    assert (kind, near[:6]) == ("near", found[:6])
    kind, other = rivals(Problem.on_grid(128, 8192, True, "bf16"), spaces, {})
    assert (kind, other[:6]) == ("near", found[:6])
    kind, proven = rivals(own, spaces, {own: [BEST]})
    assert proven[:7] == [BEST, *found[:6]]
    without = [space for space in spaces if space.header.problem.headdim != 64]
    assert rivals(Problem.on_grid(64, 4096, True), without, {}) == ("none", [])


def test_the_winners_of_other_records_race_those_of_its_dtype_first(toy: ToyTemplate) -> None:
    short, long, own = problem(1024), problem(8192), problem(4096)
    bf16 = replace(own, dtype="bf16")
    records = [
        record(short, WORSE), record(bf16, BEST.config), record(long, OTHER), record(own, WORST)
    ]  # fmt: skip
    worse, other = Candidate("toy", WORSE), Candidate("toy", OTHER)
    assert rivals(own, [], {}, records) == ("near", [other, worse, BEST])
    masked = [record(replace(short, causal=False), WORSE), record(own, WORST)]
    assert rivals(own, [], {}, masked) == ("none", [])


def test_a_record_has_its_regret_and_time_ends_it(toy: ToyTemplate) -> None:
    far, near, own = problem(1024), problem(2048), problem(4096)
    other = problem(4096, causal=False)  # of whose like nothing is known
    records = [record(of, WORSE) for of in (other, far, near, own)]
    rows: list[Row] = []
    kept: list[int] = []
    left = iter([100.0, 100.0, 10.0])
    prove(
        records, [], {own: [BEST]}, ToyExecutor(), lambda: next(left), rows,
        lambda: kept.append(len(rows)),
    )  # fmt: skip
    assert [(row["problem"], row["kind"]) for row in rows] == [
        (str(own), "own"),
        (str(far), "near"),
    ]
    assert kept == [1, 2]
    assert [row["regret"] for row in rows] == [pytest.approx(1.1, abs=0.005)] * 2
    assert rows[0]["best"] == str(BEST)
    prove(records, [], {own: [BEST]}, ToyExecutor(), lambda: 100.0, rows, lambda: None)
    assert [row["problem"] for row in rows] == [str(own), str(far), str(near)]
    assert rows_of(json.loads(json.dumps({"target": {}, "rows": rows}))) == ({}, rows)
    printed = table(json.loads(json.dumps(rows)), len(records))
    assert "own: 0.9" in printed
    assert "(geometric mean of 2 of 4 problems)" in printed


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
    assert rows_of({"target": {"gpu": "H200"}, "rows": [row]}) == ({"gpu": "H200"}, [row])
    assert rows_of({"target": {}, "rows": [row | {"regret": None, "tflops": None}]})
    for wrong in ({"regret": 0.0}, {"regret": -1.0}, {"tflops": -1.0}, {"raced": -1}):
        with pytest.raises(ValueError, match="figures that cannot be"):
            rows_of({"target": {}, "rows": [row | wrong]})
