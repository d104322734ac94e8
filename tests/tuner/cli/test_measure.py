"""`tuner compile`, `bench`, `record` and `doctor`, as far as they go without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.patience import SILENCE_S
from tests.tuner.cli.conftest import H100, RECORDED
from tuner import device, doctor
from tuner.cli import executors
from tuner.evaluate.replay import ReplayExecutor
from tuner.evaluate.space_file import read_space, write_space
from tuner.trial import Outcome

Run = Callable[..., Any]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_gpu", lambda: False)


@pytest.mark.parametrize(
    "words", [("bench",), ("record", "--hdim", "64", "--seqlen", "512")], ids=" ".join
)
def test_without_a_gpu_measuring_is_refused(
    tuner: Run, no_gpu: None, words: tuple[str, ...]
) -> None:
    said = tuner(*words)
    assert said.status == 2
    assert said.err == f"tuner: `tuner {words[0]}` measures, but there is no NVIDIA GPU here\n"


def test_compile_says_what_each_config_uses(tuner: Run) -> None:
    pytest.importorskip("triton")
    words = ("--sm", "90", "--hdim", "64", "--causal", "--limit", "1", "--jobs", "1")
    forms = tuner("compile", *words, "--json").json_lines
    assert sorted(form["candidate"]["template"] for form in forms) == ["hopper", "portable"]
    for form in forms:
        assert form["outcome"] == "ok"
        assert form["resources"]["registers"] > 0
        assert form["blocks_per_sm"] >= 1
    table = tuner("compile", *words).out
    assert "shared memory" in table
    assert "2 ok" in table


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_space_of_which_nothing_compiles_is_an_error(tuner: Run, words: tuple[str, ...]) -> None:
    pytest.importorskip("triton")
    # Set before its workers start, since Triton reads it when it is imported.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        shape = ("--hdim", "64", "--causal", "--limit", "1", "--jobs", "1")
        said = tuner("compile", *shape, "--template", "portable", *words)
    assert said.status == 2
    assert "tuner: none of 1 configs compiled (1 " in said.err


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Lets `record` take a folder of spaces for the GPU."""

    class Measuring(ReplayExecutor):
        origin = "cuda"

    def take(folder: Path) -> None:
        monkeypatch.setattr(device, "has_gpu", lambda: True)
        monkeypatch.setattr(executors, "open_executor", lambda *a, **m: Measuring(folder))

    return take


def test_record_writes_spaces_that_replay(
    tuner: Run, spaces: Path, measuring: Callable[[Path], None], tmp_path: Path
) -> None:
    measuring(spaces)
    words = ("--hdim", "256", "--seqlen", "512", "--no-causal", "-o", tmp_path / "out")
    said = tuner("record", *words, "--db", tmp_path / "work.db")
    assert said.status == 0, said.err
    (path,) = (tmp_path / "out").iterdir()
    (known,) = (p for p in spaces.iterdir() if read_space(p).header.problem == RECORDED[1])
    mine, theirs = read_space(path), read_space(known)
    assert mine.trials.keys() == theirs.trials.keys()
    assert mine.header.peers.keys() == {"cudnn", "fa2"}
    crashed = [t for t in mine.trials.values() if t.outcome is Outcome.CRASHED]
    assert crashed
    assert all(trial.reason for trial in crashed)


def test_record_of_a_problem_that_is_refused_is_an_error(
    tuner: Run, spaces: Path, measuring: Callable[[Path], None], tmp_path: Path
) -> None:
    measuring(spaces)
    db = tmp_path / "work.db"
    said = tuner("record", "--hdim", "64", "--seqlen", "512", "-o", tmp_path / "out", "--db", db)
    assert said.status == 2
    assert said.err.count("\n") == 1
    assert "was not recorded, only" in said.err
    assert not db.exists()
    assert not (tmp_path / "out").exists()


def test_record_where_no_candidate_succeeds_is_an_error(
    tuner: Run, spaces: Path, measuring: Callable[[Path], None], tmp_path: Path
) -> None:
    (path,) = (p for p in spaces.iterdir() if read_space(p).header.problem == RECORDED[1])
    folder = tmp_path / "failing"
    folder.mkdir()
    trials = read_space(path).trials.values()
    write_space(folder / path.name, [t for t in trials if t.outcome is Outcome.CRASHED])
    measuring(folder)
    words = ("--hdim", "256", "--seqlen", "512", "--no-causal", "-o", tmp_path / "out")
    said = tuner("record", *words, "--db", tmp_path / "work.db")
    assert said.status == 2
    assert said.err.splitlines()[-1].startswith(
        "tuner: no candidate succeeded, so nothing was recorded: "
    )
    assert not list((tmp_path / "out").iterdir())


def test_doctor(tuner: Run) -> None:
    findings = tuner("doctor", "--json").json
    assert {f["verdict"] for f in findings} <= {"ok", "warn"}
    assert all(f["remedy"] for f in findings if f["verdict"] != "ok")
    table = tuner("doctor").out
    assert all(f["name"] in table for f in findings)


def test_doctor_fails_on_a_database_that_is_none(tuner: Run, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.db"
    garbage.write_text("no database" * 100)
    said = tuner("doctor", "--db", garbage, "--json")
    assert said.status == 1
    (found,) = (f for f in said.json if f["name"] == "your database")
    assert found["verdict"] == "fail"
    assert str(garbage) in found["seen"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "does not run: Permission denied"),
        ("exit 3", "does not run"),
        ("echo true 9.4; echo Written by Jim Meyering.", "does not answer as ptxas does"),
        ("sleep 600", "does not run: no answer within 10.0 s"),
    ],
)
def test_doctor_fails_on_a_ptxas_that_is_none(
    tuner: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, said: str
) -> None:
    ptxas = tmp_path / "ptxas"
    if script is None:
        ptxas.mkdir()
    else:
        ptxas.write_text(f"#!/bin/sh\n{script}\n".replace("sleep", "exec sleep"))
        ptxas.chmod(0o700)
    monkeypatch.setattr(doctor, "_PTXAS_TIMEOUT_S", SILENCE_S)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(ptxas))
    (found,) = (f for f in tuner("doctor", "--json").json if f["name"] == "ptxas")
    assert (found["verdict"], found["seen"]) == ("fail", f"{ptxas} {said}")
    assert "TRITON_PTXAS_PATH" in found["remedy"]


@pytest.mark.parametrize("location", ["~nobody-of-this-name/x", "mysql://host/x", "a\0b", ""])
def test_doctor_fails_on_a_name_that_is_none(tuner: Run, location: str) -> None:
    said = tuner("doctor", "--db", location, "--json")
    assert said.status == 1
    (found,) = (f for f in said.json if f["name"] == "your database")
    assert found["verdict"] == "fail"


def test_the_table_of_bench(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    from rich.console import Console

    from tuner.bench import Lap, Report, Row
    from tuner.cli.bench_table import print_bench

    def lap(ms: float) -> Lap:
        return Lap(ms, 0.01, RECORDED[0].flops / ms * 1e-9, (ms,) * 3)

    row = Row(
        RECORDED[0], 0.5, 68.7, 0.75, 1.5, 1e-3, True,
        {"ours": lap(0.5), "cudnn": lap(0.4)}, {"fa2": "not on this card"},
    )  # fmt: skip
    print_bench(Console(width=160), Report(H100, "2026-11-28T04:00:00+00:00", (row,)))
    said = capsys.readouterr().out
    for text in ("NVIDIA H100", "speedup_vs_sdpa", "1.50", "0.80×", "no fa2: not on this card"):
        assert text in said
