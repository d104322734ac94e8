"""A search that is killed at any moment loses nothing it told of, and the same command resumes."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.patience import ANSWER_S, wait_until
from tuner.store.database import Store

# A replay that takes as long as measuring might, so that there is a middle to be killed in.
SLOWLY = """
import time
import tuner.evaluate.replay as replay
evaluate = replay.ReplayExecutor.evaluate
def slowly(*arguments):
    time.sleep(0.02)
    return evaluate(*arguments)
replay.ReplayExecutor.evaluate = slowly
from tuner.cli import main
main()
"""
TRIALS = 60
ROOT = Path(__file__).parents[3]


def start(spaces: Path, db: Path, hash_seed: int) -> subprocess.Popen[str]:
    words = ["--spaces", spaces, "--db", db, "--hdim", 256, "--seqlen", 512, "--causal"]
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            SLOWLY,
            "search",
            *map(str, words),
            "--trials",
            str(TRIALS),
            "--json",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def events(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_kill_9_at_random_moments(spaces: Path, tmp_path: Path) -> None:
    db = tmp_path / "mine.db"
    told = 0
    for attempt in range(3):
        child = start(spaces, db, hash_seed=attempt)
        assert child.stdout is not None
        first = []
        for line in child.stdout:
            first.append(line)
            if json.loads(line)["event"] == "trial":
                break
        time.sleep(random.uniform(0, 0.2))
        child.kill()
        out, _ = child.communicate(timeout=ANSWER_S)
        seen = events("".join(first) + out)
        # The next one, under another hash seed, goes on where this one was killed.
        (started,) = (event for event in seen if event["event"] == "started")
        assert started["known"] >= told
        told = started["known"] + sum(event["event"] == "trial" for event in seen)
        with closing(sqlite3.connect(db)) as connection:
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        with Store.open(db) as store:
            assert len(store.trials()) >= told
    last = start(spaces, db, hash_seed=99)
    out, err = last.communicate(timeout=2 * ANSWER_S)
    assert last.returncode == 0, err
    (started,) = (event for event in events(out) if event["event"] == "started")
    assert started["known"] >= told
    assert started["known"] + started["trials"] == TRIALS
    with Store.open(db) as store:
        trials = store.trials()
    assert len({trial.candidate for trial in trials}) == len(trials) == TRIALS
    again, _ = start(spaces, db, hash_seed=100).communicate(timeout=2 * ANSWER_S)
    kinds = [event["event"] for event in events(again)]
    assert kinds == ["note", "note", "skipped", "done"]


LOADING = """
import os, time
from pathlib import Path
Path(os.environ["LOADING"]).touch()
try:
    time.sleep(600)
except {caught}:
    raise ImportError("initialization failed")
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGINT")
@pytest.mark.parametrize("caught", ["ZeroDivisionError", "BaseException"])
def test_ctrl_c_while_modules_load_is_silent(tmp_path: Path, caught: str) -> None:
    """Whether they let the exception through or, as extension modules do, turn it into another."""
    (tmp_path / "typer.py").write_text(LOADING.format(caught=caught))
    loading = tmp_path / "loading"
    child = subprocess.Popen(
        [sys.executable, "-m", "tuner", "--help"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "LOADING": str(loading)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_until(loading.exists)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=ANSWER_S) == ("", "")
    assert child.returncode == 130


# Ctrl-C while the application is put together, before it can report it.
ASSEMBLING = """
import signal, typer.main
{before}
def get_command(app):
    signal.raise_signal(signal.SIGINT)
    return lambda: print("served")
typer.main.get_command = get_command
from tuner.cli import main
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGINT")
@pytest.mark.parametrize(
    ("before", "status", "out"),
    [("", 130, ""), ("signal.signal(signal.SIGINT, signal.SIG_IGN)", 0, "served\n")],
    ids=["usual", "ignored"],
)
def test_ctrl_c_before_the_application_runs(before: str, status: int, out: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASSEMBLING.format(before=before)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (status, out, "")
