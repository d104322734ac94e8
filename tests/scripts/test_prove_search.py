from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from kernels.attention.config import Config
from scripts import prove_search
from scripts.prove_search import Run, prove, raced, table
from tests.patience import ANSWER_S, SILENCE_S, promptly
from tests.tuner.search.conftest import ToyExecutor, ToyTemplate, problem
from tuner.evaluate.executor import Race
from tuner.evaluate.space_file import read_folder
from tuner.evaluate.wire import candidate_to_json
from tuner.store.errors import StoreError
from tuner.trial import Candidate, Measurement

P = problem()
BEST = Candidate("toy", Config(BLOCK_M=128, BLOCK_N=64, num_stages=3, flag=True))
OTHER = Candidate("toy", Config(BLOCK_M=1))


def measured(samples: list[float], tflops: float = 400.0) -> Measurement:
    return Measurement(sorted(samples)[len(samples) // 2], 0.0, tuple(samples), tflops, 0.0)


def plain(_: object) -> ToyExecutor:
    return ToyExecutor()


def test_ours_and_exhaustive_start_cold_and_their_winners_race(
    toy: ToyTemplate, tmp_path: Path
) -> None:
    executors: list[ToyExecutor] = []

    def opened(_: object) -> ToyExecutor:
        executors.append(ToyExecutor(seed=len(executors)))
        return executors[-1]

    kept: list[int] = []
    runs = prove(
        P, opened, ("ours", "exhaustive"), 3, 25, lambda: 1e3,
        lambda runs: kept.append(len(runs)), spaces=tmp_path,
    )  # fmt: skip
    assert [(run.contestant, run.seed) for run in runs] == [
        ("ours", 0), ("ours", 1), ("ours", 2), ("exhaustive", 0),
    ]  # fmt: skip
    assert kept == [1, 2, 3, 4, 4]
    assert [run.evaluations for run in runs[:3]] == [25, 25, 25]
    assert runs[3].evaluations > 100
    assert runs[3].candidate == BEST
    (space,) = read_folder(tmp_path)  # of the exhaustive search alone
    assert space.header.problem == P
    assert len(space.trials) >= runs[3].evaluations
    assert all(run.regret is not None and run.regret < 1.06 for run in runs)
    assert min(run.regret for run in runs if run.regret) == 1.0
    assert BEST in executors[-1].raced
    printed = table({str(P): runs})
    assert "regret of ours over 3 runs" in printed
    assert json.loads(json.dumps([run.to_json() for run in runs]))[3]["candidate"]


def test_a_space_that_cannot_be_written_loses_no_run(
    toy: ToyTemplate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(prove_search, "write_spaces", full)
    (run,) = prove(P, plain, ("exhaustive",), 1, None, lambda: 1e3, lambda _: None, spaces=tmp_path)
    assert run.candidate == BEST
    assert "its space was not written: No space left on device" in run.note


def test_what_does_not_fit_into_the_budget_is_left_out(toy: ToyTemplate) -> None:
    left = iter([1e3, 10.0])
    runs = prove(P, plain, ("ours", "exhaustive"), 1, 5, lambda: next(left), lambda _: None)
    assert runs[1].seconds == 0
    assert runs[0].candidate is not None
    assert "left out" in runs[1].note
    assert runs[1].candidate is None


def test_a_rival_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    script = tmp_path / "rival.py"
    monkeypatch.setattr(prove_search, "RIVALS", script)
    script.write_text("raise SystemExit('no card')")
    assert prove_search.rival(P, "autotune", ANSWER_S).note == "failed: no card"
    script.write_text("")
    assert prove_search.rival(P, "autotune", ANSWER_S).note == "failed: no reply"
    script.write_text("print('chatter'); print('{\"evaluations\": 3, \"ms\": 2.0}')")
    run = prove_search.rival(P, "helion", ANSWER_S)
    assert (run.evaluations, run.believed_ms) == (3, 2.0)
    assert run.tflops == pytest.approx(P.flops / 2.0 * 1e-9)


def test_what_a_rival_said_before_it_was_killed_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "rival.py"
    monkeypatch.setattr(prove_search, "RIVALS", script)
    monkeypatch.setattr(prove_search, "RIVAL_GRACE_S", 2.0)
    reply = {"evaluations": 7, "ms": 2.0, "candidate": candidate_to_json(BEST), "note": "7 of 9"}
    script.write_text(
        "import sys, time\n"
        "print('why', file=sys.stderr, flush=True)\n"
        f"print('chatter'); print({json.dumps(reply)!r}); print('{{\"evalu', end='', flush=True)\n"
        "time.sleep(600)\n"
    )
    log = tmp_path / "prove.autotune.log"
    log.write_text("earlier\n")
    run = prove_search.rival(P, "autotune", SILENCE_S, log.open("a+"))
    assert (run.evaluations, run.candidate) == (7, BEST)
    assert run.note == "7 of 9; did not end in time"
    assert log.read_text() == "earlier\nwhy\n"
    script.write_text(f"print({json.dumps(reply)!r}); raise SystemExit('no card')")
    run = prove_search.rival(P, "autotune", ANSWER_S, log.open("a+"))
    assert (run.evaluations, run.note) == (7, "7 of 9; failed: no card")


def test_rivals_share_what_is_left_and_ours_does_not(
    toy: ToyTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: dict[str, float] = {}
    beside: list[object] = []

    def rival(of: object, contestant: str, limit: float, log: object, best: object) -> Run:
        limits[contestant] = limit + prove_search.RIVAL_GRACE_S
        beside.append(best)
        return Run(contestant)

    def searched(
        of: object, opened: object, options: object, contestant: str, spaces: object
    ) -> Run:
        limits[contestant] = options.budget_s
        return Run(contestant, candidate=BEST)

    monkeypatch.setattr(prove_search, "rival", rival)
    monkeypatch.setattr(prove_search, "searched", searched)
    spent = iter([0.0, 100.0, 300.0])
    prove(
        P, plain, ("ours", "autotune", "helion"), 1, 5,
        lambda: 500.0 + prove_search.RACE_S - next(spent), lambda _: None,
    )  # fmt: skip
    assert limits == {"ours": 500.0, "autotune": 200.0, "helion": 200.0}
    assert beside == [None, BEST]  # whom Helion's kernel is timed with


def test_opening_takes_from_the_budget(toy: ToyTemplate, monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[float | None] = []
    real = prove_search.search

    def search(problems, executor, store, inherited, options, observer) -> object:
        budgets.append(options.budget_s)
        return real(problems, executor, store, inherited, options, observer)

    def opened(_: object) -> ToyExecutor:
        time.sleep(0.3)
        return ToyExecutor()

    monkeypatch.setattr(prove_search, "search", search)
    options = prove_search.Options(5, 30.0, force=True)
    run = prove_search.searched(P, opened, options, "ours")
    assert 20 < budgets[0] <= 29.7
    assert run.seconds > 0.3


def test_numpy_gets_one_thread_where_nobody_asks_for_more() -> None:
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
    bare = {name: value for name, value in os.environ.items() if name not in names}
    print_them = (
        "import builtins, os, sys\n"
        "real = builtins.__import__\n"
        "def watched(name, *rest, **more):\n"
        "    if name == 'numpy' and 'numpy' not in sys.modules:\n"
        f"        print([os.environ.get(name) for name in {names}])\n"
        "    return real(name, *rest, **more)\n"
        "builtins.__import__ = watched\n"
        "import scripts.prove_search\n"
        "import numpy\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", print_them], env={**bare, "OMP_NUM_THREADS": "3"},
        cwd=Path(prove_search.__file__).parents[1], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.splitlines()[0] == "['1', '3']"


def test_who_crashes_in_the_race_has_no_rate() -> None:
    runs = [Run("ours", candidate=BEST), Run("autotune", candidate=OTHER, tflops=1.0)]
    race = Race({BEST: measured([1.0] * 4)}, {}, {OTHER: "crashed"})
    raced(runs, race)
    raced(runs, race)  # with --add it races again
    assert (runs[0].tflops, runs[0].regret) == (400.0, 1.0)
    assert runs[1].tflops is None
    assert runs[1].note == "did not race: crashed"


def test_equal_kernels_have_no_regret() -> None:
    draw = random.Random(0).gauss
    regrets = []
    for _ in range(20):
        equal = [Candidate("toy", Config(BLOCK_M=n)) for n in range(10)]
        runs = [Run("ours", n, candidate=one) for n, one in enumerate(equal)]
        rounds = {one: measured([draw(1.0, 0.03) for _ in range(100)]) for one in equal}
        raced(runs, Race(rounds, {}, {}))
        regrets += [run.regret for run in runs]
    assert abs(fmean(regrets) - 1) < 0.0015  # by the least of the medians 1.006


def test_a_slower_kernel_has_its_regret_and_drift_has_none() -> None:
    drift = [1.0 + 0.01 * number for number in range(30)]
    runs = [Run("ours", candidate=BEST), Run("exhaustive", candidate=OTHER)]
    race = Race({BEST: measured([1.02 * ms for ms in drift]), OTHER: measured(drift)}, {}, {})
    raced(runs, race)
    assert runs[0].regret == pytest.approx(1.02)
    assert runs[1].regret == 1.0
    assert runs[0].tied == runs[1].tied == ()


@pytest.mark.usefixtures("toy")
def test_a_kernel_that_is_not_ours_is_compared_through_one_that_is() -> None:
    runs = [
        Run("exhaustive", candidate=OTHER),
        Run("ours", candidate=BEST),
        Run("helion", tflops=300.0, beside=BEST, times=1.5),
    ]
    again = Run.from_json(json.loads(json.dumps(runs[2].to_json())))
    assert again == runs[2]
    slow = [1.1 + 0.001 * (number % 3) for number in range(12)]
    raced(runs, Race({OTHER: measured([1.0] * 12), BEST: measured(slow)}, {}, {}))
    assert runs[2].regret == pytest.approx(1.5 * runs[1].regret)
    assert runs[2].tflops == pytest.approx(400 / 1.5)


def test_a_rival_that_hangs_is_ended_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "rival.py"
    monkeypatch.setattr(prove_search, "RIVALS", script)
    monkeypatch.setattr(prove_search, "RIVAL_GRACE_S", 0.5)
    # The grandchild holds the pipes open, as a compiler does.
    script.write_text(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    )
    with promptly(60):
        assert prove_search.rival(P, "helion", 1.0).note == "did not end in time"


def test_parts_add_up(toy: ToyTemplate) -> None:
    executors: list[ToyExecutor] = []

    def opened(_: object) -> ToyExecutor:
        executors.append(ToyExecutor(seed=len(executors)))
        return executors[-1]

    def of(runs: list[Run]) -> dict[str, object]:
        return {"target": {"gpu": "x"}, "runs": {str(P): [run.to_json() for run in runs]}}

    first = prove(P, opened, ("ours",), 2, 25, lambda: 1e3, lambda _: None)
    report = json.loads(json.dumps(of([*first, Run("exhaustive", note="left out")])))
    earlier = prove_search.kept(report)[str(P)]
    assert earlier == first
    both = prove(
        P, opened, ("ours", "exhaustive"), 2, 25, lambda: 1e3, lambda _: None, earlier
    )  # fmt: skip
    assert [(run.contestant, run.seed) for run in both] == [
        ("ours", 0), ("ours", 1), ("exhaustive", 0),
    ]  # fmt: skip
    assert len(executors) == 3 + 2  # two searches and a race; one search and a race of all
    assert {run.candidate for run in both} == set(executors[-1].raced)
    assert set(executors[-1].raced) <= set(executors[-1].compiled)
    assert prove_search.runs_of(report) == ({"gpu": "x"}, {str(P): first})


@pytest.mark.usefixtures("toy")
def test_what_came_to_nothing_or_was_cut_short_is_made_again() -> None:
    ours = Run("ours", 0, 60.0, candidate=BEST)
    lost = [
        Run("ours", 1, 60.0, candidate=BEST, note="cut short after 9 of 60 trials"),
        Run("exhaustive", 0, 60.0, candidate=BEST, note="cut short after 9 of 600 trials"),
        Run("autotune", 0, 60.0, note="failed: no card"),
        Run("helion", 0, 60.0, note="did not end in time"),
    ]
    worth = [
        Run("autotune", 0, 60.0, 9, BEST, note="tried 9 of 600 configs; did not end in time"),
        Run("helion", 0, 60.0, tflops=300.0),
    ]
    runs = [ours, *lost, *worth]
    report = {"target": {}, "runs": {str(P): [run.to_json() for run in runs]}}
    assert prove_search.kept(json.loads(json.dumps(report))) == {str(P): [ours, *worth]}


def test_runs_that_the_race_tells_apart_are_counted() -> None:
    one, two = Run("ours", 0, candidate=BEST), Run("ours", 1, candidate=OTHER)
    for run in (one, two):
        run.parts = {"searching": 0.5, "wall": 20.0}
    noise = random.Random(0)
    even = [1.0 + 0.01 * noise.random() for _ in range(40)]
    odd = [1.0 + 0.01 * noise.random() for _ in range(40)]
    raced([one, two], Race({BEST: measured(even), OTHER: measured(odd)}, {}, {}))
    assert (one.tied, two.tied) == ((str(OTHER),), (str(BEST),))
    assert "2 winners, 0 pairs that the race tells apart" in table({"S": [one, two]})
    slow = [1.02 * ms for ms in odd]
    raced([one, two], Race({BEST: measured(even), OTHER: measured(slow)}, {}, {}))
    printed = table({"S": [one, two], "T": [replace(one, note="a | b")]})
    assert "2 winners, 1 pairs that the race tells apart" in printed
    assert "at most 2.5% of the wall clock" in printed
    rows = printed.split("\n\n")[0].splitlines()
    assert len(rows) == 2 + 3  # one table, and what is said of each shape below it
    assert r"a \| b" in rows[-1]


def test_the_whole_of_it_in_two_parts(
    toy: ToyTemplate,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    from tuner.evaluate import local

    script = tmp_path / "rival.py"
    script.write_text("import sys; print('why', file=sys.stderr); print('{\"ms\": 2.0}')")
    monkeypatch.setattr(prove_search, "RIVALS", script)
    monkeypatch.setattr(local, "LocalExecutor", lambda first: plain(first))
    monkeypatch.setattr(prove_search, "has_gpu", lambda: True)
    output = tmp_path / "prove.json"
    words = ["--shapes", "128", "--budget", "540s", "--trials", "5", "--add", "--output", output]
    prove_search.main([*map(str, words), "--contestants", "ours", "--repeats", "2"])
    prove_search.main([*map(str, words), "--contestants", "ours,exhaustive,helion"])
    (runs,) = json.loads(output.read_text())["runs"].values()
    assert [run["contestant"] for run in runs] == ["ours", "ours", "exhaustive", "helion"]
    assert (tmp_path / "prove.helion.log").read_text() == "why\n"
    assert "regret of ours over 2 runs" in capsys.readouterr().out

    def full(path: Path, content: str) -> None:
        raise StoreError(f"{path} cannot be written: no space")

    with monkeypatch.context() as patched:
        patched.setattr(prove_search.refusals, "write_atomically", full)
        with pytest.raises(SystemExit) as ended:
            prove_search.main([*map(str, words), "--contestants", "ours", "--repeats", "3"])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert "regret of ours over 2 runs" in said.out  # the third has not raced
    assert "| ours 2 |" in said.out
    assert said.err.endswith("prove.json cannot be written: no space\n")
    report = json.loads(output.read_text())
    report["target"]["gpu_name"] = "another"
    output.write_text(json.dumps(report))
    with pytest.raises(SystemExit):
        prove_search.main([*map(str, words), "--contestants", "ours"])
    assert "but this is" in capsys.readouterr().err


def test_a_log_that_cannot_be_written_is_named(
    toy: ToyTemplate,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    from tuner.evaluate import local

    monkeypatch.setattr(local, "LocalExecutor", lambda first: plain(first))
    monkeypatch.setattr(prove_search, "has_gpu", lambda: True)
    (tmp_path / "prove.helion.log").mkdir()
    with pytest.raises(SystemExit) as ended:
        prove_search.main(["--contestants", "helion", "--output", str(tmp_path / "prove.json")])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("prove.helion.log cannot be written: Is a directory")
