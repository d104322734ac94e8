"""Scripts that are given what they cannot use: one sentence of the parser's, and exit code 2."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tuner.store.database import Store

# the script, its words with {} for the folder below, and the sentence
BAD = [
    ("check_compiles", "--jobs 0", "--jobs is 0, but must be a whole number of at least 1"),
    ("check_compiles", "91", "CAPABILITY is 91, but must be one of 80, "),
    ("measure_host_time", "--hdim 96", "--hdim is 96, but must be one of 64, 128, 256"),
    ("prove_search", "--budget x", "--budget is 'x', but must be a time above zero"),
    ("prove_search", "--trials 0", "--trials is 0, but must be a whole number of at least 1"),
    ("prove_search", "--repeats 0", "--repeats is 0, but must be a whole number of at least 1"),
    ("prove_grid", "{}/missing", "missing does not exist"),
    ("prove_grid", "{}/none.db --budget x", "--budget is 'x', but must be a time above zero"),
    ("show_effects", "{}/missing", "missing cannot be read: No such file"),
    ("show_effects", "{}", "cannot be read: Is a directory"),
    ("show_effects", "{}/foreign", "foreign is no recorded space"),
    ("show_effects", "{}/empty", "empty is no recorded space"),
    ("draw_results", "{}/missing", "missing does not exist"),
    ("draw_results", "{}/foreign", "foreign is not an SQLite database"),
    ("draw_results", "{}/empty", "empty holds no tables yet"),
    ("draw_results", "{}/none.db", "none.db holds no fp16 records measured on H100"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "foreign").write_text("neither a space nor a database\n" * 9)
    (tmp_path / "empty").touch()
    Store.open(tmp_path / "none.db").close()
    return tmp_path


@pytest.mark.parametrize(("script", "words", "sentence"), BAD)
def test_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], script: str, words: str, sentence: str
) -> None:
    if script == "measure_host_time":
        pytest.importorskip("torch")
    main = importlib.import_module(f"scripts.{script}").main
    with pytest.raises(SystemExit) as ended:
        main([word.format(folder) for word in words.split()])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert sentence in said.err.splitlines()[-1]
