"""`tuner show`, `stale`, `export` and `import`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kernels.attention import registry
from tests.tuner.store import samples
from tuner.record import Rival
from tuner.store.database import Store
from tuner.trial import Candidate

Run = Callable[..., Any]


def test_show_lists_problems_with_their_configs(tuner: Run, searched: Path) -> None:
    said = tuner("show", "--db", searched, "--hdim", "256", "--seqlen", "512")
    assert "D256 S512 causal fp16 B32 H8" in said.out
    assert "portable(BLOCK_M=" in said.out
    assert "NVIDIA H100 80GB HBM3" in said.out


@pytest.mark.parametrize(
    ("words", "causals"),
    [((), [False, True]), (("--causal",), [True]), (("--seqlen", "7"), []), (("--heads", "9"), [])],
)
def test_filters(tuner: Run, searched: Path, words: tuple[str, ...], causals: list[bool]) -> None:
    records = tuner("show", "--db", searched, "--hdim", "256", "--json", *words).json
    replayed = [r["problem"]["causal"] for r in records if r["origin"] == "replay"]
    assert replayed == causals


def test_show_all_has_the_replaced_ones_too(tuner: Run, searched: Path, spaces: Path) -> None:
    words = ("--spaces", spaces, "--db", searched, "--hdim", "256", "--trials", "11", "--causal")
    assert tuner("search", *words).status == 0
    of = ("--db", searched, "--hdim", "256", "--seqlen", "512", "--causal", "--json")
    standing = [r for r in tuner("show", *of).json if r["origin"] == "replay"]
    every = [r for r in tuner("show", "--all", *of).json if r["origin"] == "replay"]
    assert (len(standing), len(every)) == (1, 2)
    assert standing[0]["supersedes"] == [r["uid"] for r in every if r != standing[0]]


def test_show_all_reads_the_same_database_by_any_name(
    tuner: Run, searched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(searched.parent))
    for name in (str(searched), f"~/{searched.name}", f"sqlite:///{searched}"):
        monkeypatch.setenv("TUNER_DB", name)
        found = [tuner("show", *more, "--json").json for more in ((), ("--all",))]
        assert all(any(record["origin"] == "replay" for record in records) for records in found)


def test_show_of_nothing_says_so(tuner: Run) -> None:
    said = tuner("show", "--seqlen", "999")
    assert said.status == 0
    assert "tuner search" in said.out


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"margin": 0.0321, "tied": ()}, "1.03×"),
        ({"margin": -0.0321, "tied": ("portable(BLOCK_M=64)",)}, "tied"),
        ({"margin": None, "tied": (), "rivals": ()}, "–"),
    ],
)
def test_the_runner_up_is_shown_only_as_far_as_the_rounds_could_tell(
    tuner: Run, tmp_path: Path, changes: dict[str, Any], shown: str
) -> None:
    with Store.open(tmp_path / "my.db") as store:
        store.add_record(samples.record(**changes))
    lines = tuner("show", "--db", tmp_path / "my.db").out.splitlines()
    head = next(line for line in lines if "vs runner-up" in line)
    end = head.index("vs runner-up") + len("vs runner-up")
    row = next(line for line in lines if "cuda 2" in line)
    assert row[:end].split()[-1] == shown


def test_show_says_that_replayed_records_stand_behind_measured_ones(
    tuner: Run, searched: Path
) -> None:
    of = ("--db", searched, "--hdim", "256", "--seqlen", "512")
    assert "--all" not in tuner("show", *of).out
    with Store.open(searched) as store:
        (replayed,) = (record for record in store.records() if record.problem.causal)
        store.add_record(replace(replayed, origin="cuda", uid=""))
    said = tuner("show", *of)
    assert said.out.splitlines()[-1] == (
        "1 of these problems was also replayed, which never displaces a measurement: --all shows "
        "those records too."
    )
    assert "--all" not in tuner("show", *of, "--no-causal").out
    assert "also replayed" not in tuner("show", "--all", *of).out


def test_export_follows_its_schema(tuner: Run, searched: Path) -> None:
    schema = tuner("export", "--schema").json
    document = tuner("export", "--db", searched).json
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)
    assert len(document["records"]) >= 2


def test_export_and_import_round_trip(tuner: Run, searched: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "records.json", tmp_path / "other.db"
    said = tuner("export", "--db", searched, "--hdim", "256", "-o", file)
    count = len(json.loads(file.read_text())["records"])
    assert (said.status, said.out) == (0, "")
    assert said.err == f"tuner: {count} records in {file}\n"
    first = tuner("import", file, "--db", other)
    assert first.out.startswith(f"{count} new, 0 already there")
    again = tuner("import", file, "--db", other)
    assert again.out.startswith(f"0 new, {count} already there")
    assert tuner("export", "--db", other, "--hdim", "256").out == file.read_text()
    report = tuner("import", file, "--db", tmp_path / "third.db", "--json").json
    assert len(report["added"]) == len(report["now_standing"]) == count
    assert report["replaced"] == []


def test_export_as_a_python_file(tuner: Run, searched: Path, tmp_path: Path) -> None:
    file = tmp_path / "attention.py"
    words = ("export", "--format", "python", "--db", searched, "-o", file)
    said = tuner(*words)
    assert said.status == 0
    assert said.out == ""
    assert "configs for NVIDIA H100 80GB HBM3" in said.err
    assert f"tuner: Wrote {file}." in said.err.splitlines()
    text = file.read_text(encoding="utf-8")
    assert "def _custom_attn_fwd(" in text
    assert "def _custom_attn_fwd_portable(" in text
    assert text.count("        Record(") == 2
    assert tuner(*words[:-2]).out == text
    assert tuner(*words, "--causal").status == 0
    assert file.read_text(encoding="utf-8").count("        Record(") == 1


def test_export_as_a_python_file_holds_the_winners_of_every_template(
    tuner: Run, tmp_path: Path
) -> None:
    problem = samples.PROBLEM
    default = registry.get("portable").default(problem, 90)
    displaced = samples.bare_record(candidate=Candidate("portable", default))
    winner = samples.bare_record(
        candidate=Candidate("hopper", registry.get("hopper").default(problem, 90)),
        supersedes=(displaced.uid,),
    )
    with Store.open(tmp_path / "my.db") as store:
        store.add_records([displaced, winner])
    text = tuner("export", "--format", "python", "--db", tmp_path / "my.db").out
    (row,) = (line for line in text.splitlines() if line.startswith("        Record("))
    assert "Hopper(" in row


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--format", "python", "--all"), "--all is given, but goes with --format json only"),
        (("--format", "python", "--schema"), "--schema is given, but goes with --format json only"),
        (("--target", "sm_90"), "--target is given, but goes with --format python only"),
        (("--format", "c"), "--format is 'c', but must be one of json, python"),
    ],
)
def test_options_of_export_that_do_not_fit(tuner: Run, words: Any, sentence: str) -> None:
    said = tuner("export", *words)
    assert said.status == 2
    assert sentence in said.err


def test_import_checks_every_file_before_it_touches_the_database(
    tuner: Run, searched: Path, tmp_path: Path
) -> None:
    good, bad, other = tmp_path / "good.json", tmp_path / "bad.json", tmp_path / "other.db"
    tuner("export", "--db", searched, "-o", good)
    bad.write_text(good.read_text().replace('"headdim": 256', '"headdim": -256'))
    said = tuner("import", good, bad, "--db", other)
    assert said.status == 2
    assert "bad.json" in said.err
    assert "headdim" in said.err
    assert not other.exists()


def test_stale_lists_records_of_another_kernel(
    tuner: Run, searched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.liveness.current", lambda record: record.problem.causal)
    listed = tuner("stale", "--db", searched, "--json").json
    older = [e["record"]["problem"] for e in listed if "older portable kernel" in e["reason"]]
    assert {"causal": False, "seqlen": 512}.items() <= older[0].items()
    assert not any(problem["causal"] for problem in older)


def test_nothing_in_a_record_is_markup(tuner: Run, tmp_path: Path) -> None:
    target = replace(samples.TARGET, gpu_name="[/]GPU :bug:", triton="[/b]9")
    peers = (Rival("[/x]peer", 1.4, 0.02),)
    candidate = replace(samples.candidate(), template="[red]mine")
    with Store.open(tmp_path / "my.db") as store:
        store.add_record(samples.record(target=target, peers=peers, candidate=candidate))
    said = tuner("show", "--db", tmp_path / "my.db")
    assert said.status == 0
    assert all(text in said.out for text in ("[/]GPU :bug:", "[/b]9", "[/x]peer", "[red]mine"))
    said = tuner("stale", "--db", tmp_path / "my.db")
    assert said.status == 0
    assert "[red]mine" in said.out


def test_stale_names_the_other_triton(
    tuner: Run, searched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.device.installed_version", lambda distribution: "9.9.9")
    listed = tuner("stale", "--db", searched, "--json").json
    assert any("here is 9.9.9" in entry["reason"] for entry in listed)
    causal = [entry for entry in listed if entry["record"]["problem"]["causal"]]
    assert 0 < len(causal) < len(listed)
    assert tuner("stale", "--db", searched, "--json", "--causal").json == causal
    assert "here is 9.9.9" in tuner("stale", "--db", searched).out


@pytest.mark.parametrize("width", ["²", "٣", "-1", "x", ""])
def test_a_width_that_is_none_is_passed_over(
    tuner: Run, searched: Path, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("LINES", width)
    for words, expected in ((("--db", searched), "S512"), (("--help",), "--hdim")):
        said = tuner("show", *words)
        assert said.status == 0, said.err
        assert expected in said.out
        monkeypatch.setenv("COLUMNS", width)  # it was left out


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_show_breaks_no_cell_in_a_narrow_terminal(
    tuner: Run, searched: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = tuner("show", "--db", searched).out.splitlines()
    figures = [
        line for line in lines if re.match(r" D\d+ S\d+ \w+ ", line) and "portable" not in line
    ]
    assert figures
    assert all(len(line) <= width and "×" in line for line in figures)
    assert any(" from" in line for line in lines) is (width >= 80)
    assert any("vs runner-up" in line for line in lines) is (width == 200)


@pytest.mark.parametrize("width", [1, 20, 45])
def test_show_keeps_tflops_in_the_narrowest_terminal(
    tuner: Run, searched: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = tuner("show", "--db", searched).out.splitlines()
    assert any(re.fullmatch(r" problem +TFLOP/s *", line) for line in lines)
    assert any(re.fullmatch(r" D256 S512 causal fp16 B32 H8 +\d+ *", line) for line in lines)


def test_show_all_finds_a_database_in_the_home_folder(
    tuner: Run, searched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(searched.parent))
    monkeypatch.setenv("USERPROFILE", str(searched.parent))
    monkeypatch.setenv("TUNER_DB", f"~/{searched.name}")
    assert tuner("show", "--all", "--json").json
