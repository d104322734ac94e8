"""`tuner search` by replay, from an empty database to a table of records."""

from __future__ import annotations

import json
import lzma
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernels.attention.config import Config
from tests.patience import promptly
from tuner.evaluate.replay import shipped_spaces
from tuner.evaluate.space_file import read_space, write_space
from tuner.evaluate.t4 import SUFFIXES
from tuner.trial import Candidate, Outcome

Run = Callable[..., Any]


@pytest.fixture
def search(tuner: Run, spaces: Path, tmp_path: Path) -> Run:
    """A search of what is recorded, with 20 trials, in a database of its own."""
    words = ("--spaces", spaces, "--db", tmp_path / "mine.db", "--hdim", "256", "--seqlen", "512")
    return lambda *more: tuner("search", *words, "--trials", "20", *more)


def test_it_says_first_that_it_replays_and_ends_with_the_table(search: Run) -> None:
    said = search()
    assert said.status == 0
    assert "replaying measurements recorded on NVIDIA H100" in said.err.splitlines()[0]
    assert "TFLOP/s" in said.out
    assert "D256 S512 causal fp16 B32 H8" in said.out
    assert "D256 S512 full fp16 B32 H8" in said.out
    assert "vs cudnn" in said.out
    assert "vs default" in said.out
    *_, times, remark = said.out.splitlines()
    assert "CPU seconds" in times
    assert "displace no measured ones" in remark


def test_the_sampler_leaves_the_cores_to_the_compilers(
    search: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    assert search("--causal").status == 0
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    assert os.environ["OMP_NUM_THREADS"] == "3"  # whoever asks for threads gets them


def test_progress_without_a_terminal_is_lines(search: Run) -> None:
    lines = search("--causal").err.splitlines()
    assert any("20 trials of" in line for line in lines)
    assert any("trial 20/20: best" in line and " left" in line for line in lines)
    assert any("interleaved rounds" in line for line in lines)


def test_the_same_command_again_tries_nothing(search: Run) -> None:
    search()
    again = search()
    assert again.status == 0
    assert again.err.count("fresh record") == 2
    assert "trial " not in again.err


def test_more_trials_go_on_from_those_there_are(search: Run) -> None:
    search("--causal", "--json")
    lines = search("--causal", "--json", "--trials", "30").json_lines
    started = next(line for line in lines if line["event"] == "started")
    assert (started["event"], started["known"], started["trials"]) == ("started", 20, 10)


def test_force_searches_again(search: Run) -> None:
    search("--causal")
    assert "trial 20/20" in search("--causal", "--force").err


def test_json_lines(search: Run) -> None:
    lines = search("--causal", "--json").json_lines
    kinds = [line["event"] for line in lines]
    # Of which recording, and that it lacks a template.
    assert kinds == ["note", "note", "started", *["trial"] * 20, "finals", "ended", "done"]
    (record,) = lines[-1]["records"]
    assert record["origin"] == "replay"
    assert record["problem"]["seqlen"] == 512
    assert sum(lines[-2]["counts"].values()) == 20


def test_what_was_not_recorded_is_refused_by_name(search: Run, tmp_path: Path) -> None:
    said = search("--batch", "3")
    assert said.status == 2
    assert "was not recorded" in said.err.splitlines()[-1]
    assert not (tmp_path / "mine.db").exists()


def test_of_a_grid_what_is_recorded_is_searched(tuner: Run, spaces: Path, tmp_path: Path) -> None:
    words = ("--spaces", spaces, "--db", tmp_path / "mine.db", "--trials", "10", "--json")
    lines = tuner("search", *words).json_lines
    assert len(lines[-1]["records"]) == 2
    assert not any(line["event"] == "skipped" for line in lines)


def test_a_budget_ends_the_search(search: Run) -> None:
    with promptly(60):  # of minutes
        lines = search("--budget", "8s", "--trials", "600", "--json").json_lines
    # What time is left goes to problems that were cut short, which then end once more.
    ended = [line for line in lines if line["event"] == "ended"]
    assert len({str(line["problem"]) for line in ended}) == len(lines[-1]["records"]) == 2
    for problem in ended:
        assert problem["seconds"]["wall"] < 6
        assert sum(problem["counts"].values()) < 600


@pytest.mark.parametrize("sampler", ["random", "exhaustive"])
def test_samplers(search: Run, sampler: str) -> None:
    assert search("--causal", "--sampler", sampler).status == 0


def test_the_shipped_spaces(tuner: Run) -> None:
    assert any(path.name.endswith(SUFFIXES) for path in shipped_spaces().rglob("*"))
    words = ("--backend", "replay", "--hdim", "128", "--seqlen", "8192", "--causal")
    said = tuner("search", *words, "--trials", "15")
    assert said.status == 0, said.err
    assert "D128 S8192 causal" in said.out
    again = tuner("search", *words, "--trials", "15")
    assert "fresh record" in again.err


def test_what_a_replay_lacks_is_said(tuner: Run) -> None:
    words = ("search", "--backend", "replay", "--hdim", "128")
    said = tuner(*words, "--trials", "2")
    assert said.status == 0, said.err
    left, replayed = (
        int(found[1])
        for pattern in (r"Left out: (\d+) problems that were not recorded\.", r"\[1/(\d+)\]")
        if (found := re.search(pattern, said.err))
    )
    assert left + replayed == 12
    assert re.search(rf"Without hopper in \d of {replayed}, where it was not recorded\.", said.err)
    assert "Left out" not in tuner(*words, "--seqlen", "8192", "--causal", "--trials", "2").err


def test_recordings_that_fit_no_present_kernel_are_said_to(
    tuner: Run, spaces: Path, tmp_path: Path
) -> None:
    (path,) = (p for p in spaces.iterdir() if read_space(p).header.problem.causal)
    former = [
        replace(trial, candidate=Candidate("portable", Config(config, former=1)))
        for config, trial in read_space(path).trials.items()
    ]
    folder = tmp_path / "former"
    folder.mkdir()
    write_space(folder / path.name, former)
    words = ("--spaces", folder, "--db", tmp_path / "mine.db", "--causal")
    said = tuner("search", *words, "--hdim", "256", "--seqlen", "512", "--trials", "5")
    assert said.status == 2
    *_, line, last = said.err.splitlines()
    why = f"none of the {len(former)} recorded configs of portable fits its present kernel: "
    assert f": {why}parameters are " in line
    assert last.startswith(f"tuner: {why}parameters are ")


def test_a_replay_of_few_configs_tries_those_alone(
    tuner: Run, spaces: Path, tmp_path: Path
) -> None:
    (path,) = (p for p in spaces.iterdir() if read_space(p).header.problem.causal)
    trials = list(read_space(path).trials.values())
    few = [trial for trial in trials if trial.outcome is Outcome.OK][:20]
    folder = tmp_path / "few"
    folder.mkdir()
    write_space(folder / path.name, few)
    words = ("--spaces", folder, "--db", tmp_path / "mine.db", "--causal")
    said = tuner("search", *words, "--hdim", "256", "--seqlen", "512")
    assert said.status == 0
    assert "20 trials of 20 feasible configs" in said.err
    assert "20 ok" in said.err


def value_of(name: str, value: object) -> Callable[[Any], object]:
    """Sets the figure `name` of a result."""

    def spoil(result: Any) -> None:
        for figure in result["measurements"]:
            if figure["name"] == name:
                figure["value"] = value

    return spoil


SPOILT = {
    "no runtimes": (
        lambda r: r["times"].update(runtimes=[]),
        "a config that is ok has no runtimes",
    ),
    "no such outcome": (
        lambda r: r.update(outcome="fine"),
        "outcome is 'fine', but must be one of",
    ),
    "a negative time": (value_of("time", -1), "time is -1 ms, but must be among its runtimes of"),
    "no time at all": (
        lambda r: r["times"].update(runtimes=[1e-320]),
        "a time is 1e-320, but must be a number from 1e-9",
    ),
    "a difference that is none": (value_of("max_diff", float("nan")), "max_diff is nan, but must"),
    "negative registers": (value_of("registers", -5), "resources.registers is -5, but must be"),
    "an endless compilation": (
        lambda r: r["times"].update(compilation=float("inf")),
        "compile_s is inf, but must be a finite number of at least 0",
    ),
    "another day": (
        lambda r: r.update(timestamp="2026-02-30T00:00:00Z"),
        "measured_at is '2026-02-30T00:00:00Z', but must be a moment of UTC that exists",
    ),
}


@pytest.mark.parametrize(("spoil", "why"), SPOILT.values(), ids=SPOILT.keys())
def test_a_spoilt_recording_is_refused_before_anything_is_written(
    tuner: Run, spaces: Path, tmp_path: Path, spoil: Callable[[Any], object], why: str
) -> None:
    folder, db = tmp_path / "spoilt", tmp_path / "mine.db"
    folder.mkdir()
    for path in spaces.iterdir():
        document = json.loads(lzma.decompress(path.read_bytes()))
        if not document["metadata"]["problem"]["causal"]:  # the second of two problems
            spoilt = path.name
            # The slowest: a search comes to it late, if at all.
            spoil(max(document["results"], key=lambda r: r["times"].get("runtimes", [0])))
        (folder / path.name).write_bytes(lzma.compress(json.dumps(document).encode()))
    words = ("--spaces", folder, "--db", db, "--hdim", "256", "--trials", "12")
    said = tuner("search", *words)
    assert said.status == 2
    assert said.err.startswith(f"tuner: {folder / spoilt} is ")
    assert why in said.err
    assert said.err.count("\n") == 1
    assert not db.exists()
    assert tuner("search", *words, "--causal").status == 0  # the other one is not at fault


def test_a_template_that_was_not_recorded_is_said_to_be(
    tuner: Run, spaces: Path, tmp_path: Path
) -> None:
    db = tmp_path / "mine.db"
    words = ("--hdim", "256", "--seqlen", "512", "--causal", "--template", "hopper")
    said = tuner("search", "--spaces", spaces, "--db", db, *words)
    assert said.status == 2
    assert said.err.splitlines()[-1] == (
        "tuner: D256 S512 causal fp16 B32 H8 was not recorded of hopper; there is no GPU here to "
        "measure it"
    )
    assert not db.exists()


def test_a_headdim_of_no_template_is_not_called_unrecorded(tuner: Run) -> None:
    said = tuner("search", "--backend", "replay", "--hdim", "96")
    assert said.status == 2
    assert "--hdim is 96, but must be one of 64, 128, 256" in said.err
    assert "recorded" not in said.err


def test_latency_wants_a_database_and_a_card_of_its_own(tuner: Run, tmp_path: Path) -> None:
    said = tuner("search", "--objective", "latency", "--backend", "replay")
    assert said.status != 0
    assert "needs a --db" in said.err
    said = tuner(
        "search", "--objective", "latency", "--backend", "replay", "--db", tmp_path / "x.db"
    )
    assert said.status != 0
    assert "latency cannot be replayed" in said.err
