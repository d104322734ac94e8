"""What the commands without a GPU cost, and that they work where torch and Triton do not exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.patience import in_one_of

Run = Callable[..., Any]

LIGHT = {
    "help": ("--help",),
    "help of a command": ("search", "--help"),
    "version": ("--version",),
    "show": ("show",),
    "lookup": ("lookup", "--hdim", "128", "--seqlen", "3000", "--target", "sm_90"),
    "export": ("export",),
    "export as Python": ("export", "--format", "python", "--target", "sm_90"),
}


@pytest.mark.parametrize("words", LIGHT.values(), ids=LIGHT.keys())
def test_light_commands_import_nothing_heavy(child: Run, words: tuple[str, ...]) -> None:
    said = child(*words)
    assert said.status == 0, said.err
    assert said.imported == []


@pytest.mark.parametrize("words", LIGHT.values(), ids=LIGHT.keys())
def test_light_commands_answer_within_a_second(child: Run, words: tuple[str, ...]) -> None:
    def seconds(run: Callable[[], object]) -> float:
        # Of the CPU, so that it matters little what else this machine does.
        before = os.times()
        run()
        after = os.times()
        return sum(after[2:4]) - sum(before[2:4])

    def load() -> None:
        libraries = "import pydantic, sqlalchemy, typer.main"
        subprocess.run([sys.executable, "-c", libraries], check=True)

    pairs = []

    def fast() -> bool:
        command, loading = seconds(lambda: child(*words)), seconds(load)
        pairs.append((command, loading))
        # A machine so slow that the libraries alone take a third of a second is given more.
        return command < max(1, 3.5 * loading)

    assert in_one_of(3, fast), pairs


def test_search_by_replay_needs_neither_torch_nor_triton(
    child: Run, spaces: Path, tmp_path: Path
) -> None:
    words = ("--spaces", spaces, "--db", tmp_path / "mine.db", "--hdim", "256", "--trials", "12")
    said = child("search", *words)
    assert said.status == 0, said.err
    assert "torch" not in said.imported
    assert "triton" not in said.imported


@pytest.mark.parametrize(
    "words",
    [*LIGHT.values(), ("stale",), ("doctor",)],
    ids=[*LIGHT.keys(), "stale", "doctor"],
)
def test_where_torch_and_triton_do_not_exist(child: Run, words: tuple[str, ...]) -> None:
    said = child(*words, blocked="torch,triton")
    assert said.status == 0, said.err


def test_search_where_torch_and_triton_do_not_exist(
    child: Run, spaces: Path, tmp_path: Path
) -> None:
    words = ("--spaces", spaces, "--db", tmp_path / "mine.db", "--hdim", "256", "--trials", "12")
    said = child("search", *words, blocked="torch,triton")
    assert said.status == 0, said.err
    assert "D256 S512 causal" in said.out


def test_compile_where_triton_does_not_exist_is_one_sentence(child: Run) -> None:
    said = child("compile", "--hdim", "64", blocked="triton")
    assert said.status == 2
    assert said.err.count("\n") == 1
    assert "Triton" in said.err


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 0.5])
def test_a_search_that_is_refused_while_its_libraries_load_says_that_alone(delay: float) -> None:
    """The thread that loads them outlives it, and its imports fail in a process that ends."""
    code = (
        "import sys, time\n"
        "import tuner\n"
        "from tuner.search import samplers\n"
        "samplers.begin_warm_up('surrogate')\n"
        f"time.sleep({delay})\n"
        "sys.exit('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "refused\n")


def test_a_paragraph_of_help_breaks_only_where_it_must(
    tuner: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert "might crown another: of those that the rounds" in tuner("show", "--help").out
    assert "how far that record is, and what tuning" in tuner("--help").out


def test_help_shows_no_value_for_a_flag(tuner: Run) -> None:
    commands = re.findall(r"^│ ([a-z]+) ", tuner("--help").out, re.MULTILINE)
    assert len(commands) > 9
    for words in ([], *([command] for command in commands)):
        assert "<bool>" not in tuner(*words, "--help").out, words


@pytest.mark.parametrize("command", ["show", "export"])
def test_filters_are_described_as_such(tuner: Run, command: str) -> None:
    said = tuner(command, "--help").out
    assert "Only of this batch size." in said
    assert "16384" not in said


def test_without_a_command_it_is_help(tuner: Run) -> None:
    said = tuner()
    assert said.status == 0
    assert said.err == ""
    assert "lookup" in said.out


def test_the_installed_command(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("tuner")
    if not command.exists():
        pytest.skip("attention-tuner is not installed beside pytest")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("tuner ")


def test_output_may_be_cut_off(tmp_path: Path) -> None:
    code = "from tuner.cli import main; main()"
    done = subprocess.run(
        f"{sys.executable} -c '{code}' export --schema | head -c 10",
        shell=True, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False,
        env=os.environ,
    )  # fmt: skip
    assert done.stderr == ""
