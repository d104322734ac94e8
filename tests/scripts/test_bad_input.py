"""Scripts that are given what they cannot use: one sentence of the parser's, and exit code 2."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from kernels.attention.problem import Problem
from tuner.device import has_gpu
from tuner.store.database import Store

ROOT = Path(__file__).resolve().parents[2]
NEEDS = {
    "measure_host_time": ("torch",),
    "measure_prefill": ("torch", "triton", "transformers"),
    "rival_tuners": ("torch",),
    "draw_results": ("matplotlib",),
    "draw_samplers": ("matplotlib",),
}

# the script, its words with {} for the folder below, and the sentence
PROBLEM = json.dumps(asdict(Problem(64, 256, True, "fp16", 1, 2)), separators=(",", ":"))
PROBLEM = PROBLEM.replace("{", "{{").replace("}", "}}")
BAD = [
    ("check_compiles", "--jobs 0", "--jobs is 0, but must be a whole number of at least 1"),
    ("check_compiles", "91", "CAPABILITY is 91, but must be one of 80, "),
    ("measure_host_time", "--hdim 96", "--hdim is 96, but must be one of 64, 128, 256"),
    ("prove_search", "--budget x", "--budget is 'x', but must be a time above zero"),
    ("prove_search", "--trials 0", "--trials is 0, but must be a whole number of at least 1"),
    ("prove_search", "--repeats 0", "--repeats is 0, but must be a whole number of at least 1"),
    ("prove_grid", "{}/missing", "missing does not exist"),
    ("prove_grid", "{}/none.db --budget x", "--budget is 'x', but must be a time above zero"),
    ("prove_grid", "{}/none.db --search x", "--search is 'x', but must be a time above zero"),
    ("prove_grid", "{}/none.db --search 9m", "none.db', but must be a new file with --search"),
    ("prove_grid", "{}/new.db --search 9m --output {}/other.json", "but must be a new file with"),
    ("prove_grid", "{}/no/new.db --search 9m", "must be in a folder that is there"),
    ("prove_grid", "{}/none.db --output {}", "but must be a file"),
    ("prove_grid", "{}/none.db --output {}/other.json", "this script wrote: 'target' is missing"),
    ("prove_grid", "{}/none.db --proof {}/missing", "but cannot be read: No such file"),
    ("prove_grid", "{}/none.db --proof {}/foreign", "must be a file that prove_search.py wrote"),
    ("prove_grid", "{}", "is a directory"),
    ("prove_grid", "{}/foreign", "foreign is not an SQLite database"),
    ("prove_grid", "{}/empty", "empty holds no tables yet"),
    ("prove_grid", f"{{}}/{'x' * 300}", "File name too long"),
    ("prove_grid", "{}/none.db --output {}/pipe", "pipe', but must be a file"),
    ("prove_grid", "{}/none.db --proof {}/pipe", "pipe', but must be a file"),
    ("prove_search", "--add --output {}/pipe", "pipe', but must be a file"),
    ("prove_search", "--add --output {}/other.json", "this script wrote: 'target' is missing"),
    ("prove_search", "--add --output {}/list.json", "must be a file that this script wrote\n"),
    ("prove_search", "--shapes 64,1", "--shapes is '1', but must be one of 64, 128, 256"),
    ("prove_search", "--contestants=", "--contestants is '', but must be one of ours, exhaustive"),
    ("prove_search", "--add --output {}/runs.json", "must be a file that this script wrote"),
    ("prove_search", "--spaces {}/none.db", "none.db', but must be a folder"),
    ("prove_search", "--output {}/none.db", "must be no database"),
    ("compare_peers", "--output {}/no/x", "must be in a folder that is there"),
    ("compare_peers", "--rounds 0", "--rounds is 0, but must be a whole number of at least 1"),
    ("compare_peers", "--dtype=", "--dtype is '', but must be one of fp16, bf16"),
    ("show_effects", "{}/pipe", "pipe', but must be a file"),
    ("show_effects", "{}/missing", "missing cannot be read: No such file"),
    ("show_effects", "{}", "but must be a file"),
    ("show_effects", "{}/foreign", "foreign is no recorded space"),
    ("show_effects", "{}/empty", "empty is no recorded space"),
    ("draw_results", "{}/missing", "missing does not exist"),
    ("draw_results", "{}/none.db --gpu \x1b[31m", r"measured on \x1b[31m"),
    ("draw_results", "{}/foreign", "foreign is not an SQLite database"),
    ("draw_results", "{}/empty", "empty holds no tables yet"),
    ("draw_results", "{}/none.db", "none.db holds no fp16 records measured on H100"),
    ("draw_results", "{}/none.db --output {}/x.exe", "must end in .svg or .png or .pdf"),
    ("draw_results", "{}/none.db --output {}", "but must be a file"),
    ("draw_results", "{}/none.db --output {}/no/x.svg", "must be in a folder that is there"),
    ("draw_samplers", "{}/missing", "missing', but cannot be read: No such file"),
    ("draw_samplers", "{}", "but must be a file"),
    ("draw_samplers", "{}/foreign", "foreign', but must be a file that score_samplers.py wrote"),
    ("draw_samplers", "{}/none.db", "none.db', but must be a file that score_samplers.py wrote"),
    ("draw_samplers", "{}/other.json", "wrote: it is no report of scores"),
    ("draw_samplers", "{}/half.json", "wrote: it is no report of scores"),
    ("score_samplers", "--output {}/none.db", "none.db', but must be no database"),
    ("score_samplers", "--output {}", "but must be a file"),
    ("score_samplers", "--output {}/no/x.json", "must be in a folder that is there"),
    ("score_samplers", f"--output {{}}/{'x' * 300}", "must be a file's name: File name too long"),
    ("score_samplers", "--output {}/x.json --add", "x.json', but cannot be read: No such file"),
    (
        "score_samplers",
        "--output {}/other.json --add",
        "must be a file that this script wrote: it is",
    ),
    ("score_samplers", "--output {}/x.json --starts y", "--starts is 'y', but must be one of cold"),
    ("score_samplers", "--output {}/x.json --samplers x", "--samplers is 'x', but must be one of"),
    ("score_samplers", "--output {}/x.json --seeds 0", "--seeds is 0, but must be a whole number"),
    ("score_samplers", "--output {}/x.json --evaluations 0", "--evaluations is 0, but must be"),
    (
        "score_samplers",
        "--output {}/x.json --seeds 1000001",
        "--seeds is 1000001, but must be a whole number of at least 1 and at most 1000000",
    ),
    ("score_samplers", "--output {}/dangling", "must be in a folder that is there"),
    (
        "draw_samplers",
        "{}/huge.json",
        "huge.json', but must be a file that score_samplers.py wrote",
    ),
    ("score_samplers", "--output {}/x.json --batch 0", "--batch is 0, but must be a whole number"),
    ("score_samplers", "--output {}/x.json --jobs 0", "--jobs is 0, but must be a whole number"),
    ("score_samplers", "--output {}/x.json --spaces {}/no", "no', but must be a folder"),
    ("score_samplers", "--output {}/x.json --spaces {}/bad", "is no recorded space"),
    ("score_samplers", "--output {}/x.json --spaces {}/none", "none holds no recorded space"),
    ("measure_prefill", "--heads 0", "--heads is 0, but must be a whole number of at least 1"),
    ("measure_prefill", "--layers 0", "--layers is 0, but must be a whole number of at least 1"),
    ("measure_prefill", "--seqlen 64,0", "--seqlen is 0, but must be a whole number of at least 1"),
    ("measure_prefill", "--seqlen 64,1000001", "--seqlen is 1000001, but must be a whole number"),
    ("measure_prefill", "--layers 1000000 --tokens 1", "must all be of sizes that memory can hold"),
    ("measure_prefill", "--rounds 1", "--rounds is 1, but must be a whole number of at least 2"),
    ("measure_prefill", "--heads 3", "--hidden is 2048, but must be a multiple of twice --heads"),
    ("measure_prefill", "", "this measures, but there is no NVIDIA GPU here"),
    ("rival_tuners", "", "the following arguments are required"),
    ("rival_tuners", "x y z", "invalid choice: 'x'"),
    ("rival_tuners", "helion [] 9", "PROBLEM is '[]', but must be a problem in JSON"),
    ("rival_tuners", f"helion {PROBLEM} nan", "SECONDS is nan, but must be a number above zero"),
    ("rival_tuners", f"helion {PROBLEM} 9 {{}}", "but must be a candidate in JSON"),
    ("rival_tuners", f"autotune {PROBLEM} 9", "this measures, but there is no NVIDIA GPU here"),
    ("kill_nine", "--kills 0", "--kills is 0, but must be a whole number of at least 3"),
    ("kill_nine", "--kills -3", "--kills is -3, but must be a whole number of at least 3"),
    ("publish_configs", "{}/none.db --output {}/x.db", "none.db, but must hold a measured record"),
    (
        "publish_configs",
        "{}/none.db --without= --output {}/x.db",
        "--without is '', but must be a problem that a source has",
    ),
    ("publish_configs", "{}/none.db --output {}", "but must be a file"),
    ("publish_configs", "{}/none.db --output {}/no/x.db", "must be in a folder that is there"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "foreign").write_text("neither a space nor a database\n" * 9)
    (tmp_path / "empty").touch()
    Store.open(tmp_path / "none.db", write_ahead_log=False).close()
    (tmp_path / "other.json").write_text('{"results": []}')
    (tmp_path / "list.json").write_text("[]")
    scores = json.loads((ROOT / "docs" / "samplers.json").read_text())
    scores["results"][-1]["curve"] = [10**400]
    (tmp_path / "huge.json").write_text(json.dumps(scores))
    del scores["results"][-1]["curve"]
    (tmp_path / "half.json").write_text(json.dumps(scores))
    (tmp_path / "dangling").symlink_to(tmp_path / "no" / "x.json")
    runs = {"target": {}, "runs": {"D64": [{"tied": [], "contestant": "ours", "seconds": "x"}]}}
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bad").mkdir()
    (tmp_path / "none").mkdir()
    (tmp_path / "bad" / "space.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(("script", "words", "sentence"), BAD)
def test_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], script: str, words: str, sentence: str
) -> None:
    for module in NEEDS.get(script, ()):
        pytest.importorskip(module)
    if "no NVIDIA GPU" in sentence and has_gpu():
        pytest.skip("there is an NVIDIA GPU here")
    if "pipe" in words and not hasattr(os, "mkfifo"):
        pytest.skip("needs named pipes")
    before = sorted(folder.rglob("*"))
    main = importlib.import_module(f"scripts.{script}").main
    with pytest.raises(SystemExit) as ended:
        main([word.format(folder) for word in words.split()])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    (_,) = said.err.splitlines()
    assert sentence in said.err
    assert sorted(folder.rglob("*")) == before


def test_a_module_that_is_no_program_says_so() -> None:
    script = ROOT / "scripts" / "helion_attention.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "helion_attention.py is no program: rival_tuners.py imports it\n"
