"""Problems that production ran without a record of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernels.attention.problem import Problem
from tests.tuner.search.conftest import H100
from tuner import misses
from tuner.store.errors import StoreError

PROBLEMS = [Problem.on_grid(64, seqlen, True) for seqlen in (100, 200, 300)]


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(misses, "_found", {})
    monkeypatch.setattr(misses, "_written", set())
    monkeypatch.setattr(misses, "_at_exit", True)
    monkeypatch.setattr(misses, "_flusher", threading.current_thread())  # none is started
    monkeypatch.setenv(misses.VARIABLE, str(tmp_path / "misses"))
    return tmp_path / "misses"


def problems(folder: Path) -> list[Problem]:
    return [miss.problem for miss in misses.read(folder).misses]


def test_they_are_written_once(fresh: Path) -> None:
    for _ in range(2):
        for problem in PROBLEMS:
            misses.note(problem, H100, "nearest")
    path = misses.flush()
    assert path is not None
    assert path.parent == fresh
    assert problems(fresh) == PROBLEMS
    assert misses.flush() is None
    assert len(list(fresh.iterdir())) == 1
    (miss, *_) = misses.read(fresh).misses
    assert (miss.hardware, miss.source) == (H100.hardware.key, "nearest")


def test_what_another_process_wrote_is_not_written_again(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    misses.note(PROBLEMS[0], H100, "default")
    misses.flush()
    monkeypatch.setattr(misses, "_written", set())
    assert misses.flush() is None
    misses.note(PROBLEMS[1], H100, "default")
    assert misses.flush() is not None
    assert problems(fresh) == PROBLEMS[:2]


@pytest.mark.parametrize("value", ["", "0", "false", "No", "OFF", " "])
def test_they_are_noted_only_on_request(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(misses.VARIABLE, value)
    misses.note(PROBLEMS[0], H100, "default")
    assert misses.flush() is None


@pytest.mark.parametrize("value", ["1", "true", "Yes", "on"])
def test_one_means_the_users_data_folder(
    own_data_folder: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(misses.VARIABLE, value)
    assert misses.folder().name == "misses"
    assert misses.folder() != Path(value)


def test_they_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misses, "_MOST", 2)
    for problem in PROBLEMS:
        misses.note(problem, H100, "default")
    assert len(misses._found) == 2


def test_what_is_no_file_of_misses_is_passed_over(fresh: Path, caplog) -> None:
    misses.note(PROBLEMS[0], H100, "default")
    path = misses.flush()
    assert path is not None
    document = json.loads(path.read_text())
    broken = [
        "no json",
        "[]",
        "{}",
        json.dumps({**document, "format": 2}),
        json.dumps({**document, "misses": [{"problem": {"headdim": -1}}]}),
        "[" * 100_000,
    ]
    for number, text in enumerate(broken):
        (fresh / f"broken{number}.json").write_text(text)
    assert problems(fresh) == PROBLEMS[:1]
    assert caplog.text.count("passed over") == len(broken)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda form: None, "it is None, but must be an object with format, misses"),
        (lambda form: {**form, "misses": None}, "misses is None, but must be a list"),
        (
            lambda form: {**form, "misses": [7]},
            "misses[0] is 7, but must be an object with problem",
        ),
        (
            lambda form: {**form, "misses": [{**form["misses"][0], "problem": None}]},
            "misses[0].problem is None, but must be an object with headdim, seqlen",
        ),
        (
            lambda form: (form["misses"][0]["problem"].update(seqlen="1"), form)[1],
            "misses[0].problem.seqlen is '1', but must be a whole number of at least 1",
        ),
        (
            lambda form: (form["misses"][0]["problem"].update(headdim=80), form)[1],
            "misses[0].problem.headdim is 80, but must be one of 64, 128, 256",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_plain_words(
    fresh: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Any], Any], said: str
) -> None:
    misses.note(PROBLEMS[0], H100, "default")
    path = misses.flush()
    assert path is not None
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    assert problems(fresh) == []
    assert f"{path} holds no misses ({said}" in caplog.text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes")
@pytest.mark.timeout(60)
def test_what_would_be_waited_for_is_never_read(
    fresh: Path, caplog: pytest.LogCaptureFixture
) -> None:
    misses.note(PROBLEMS[0], H100, "default")
    misses.flush()
    os.mkfifo(fresh / "pipe.json")
    with (fresh / "huge.json").open("wb") as file:
        file.truncate(1 << 40)
    assert problems(fresh) == PROBLEMS[:1]
    assert "pipe.json holds no misses (it is no file)" in caplog.text
    assert "huge.json holds no misses (it has more than" in caplog.text


def test_settling_keeps_what_is_open_and_what_came_since(fresh: Path) -> None:
    for problem in PROBLEMS:
        misses.note(problem, H100, "default")
    misses.flush()
    noted = misses.read(fresh)
    later = Problem.on_grid(64, 400, True)
    misses.note(later, H100, "default")
    misses.flush()
    misses.settle(fresh, noted, noted.misses[:1])
    assert problems(fresh) == [PROBLEMS[0], later]
    misses.settle(fresh, misses.read(fresh), [])
    assert list(fresh.iterdir()) == []
    assert misses.read(fresh / "nowhere").misses == ()


def test_what_many_processes_noted_is_settled_in_files_that_are_read(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(misses, "_MOST_BYTES", 16 << 10)
    monkeypatch.setattr(misses, "_MOST", 20)
    noted = [misses.Miss(Problem.on_grid(64, n, True), "h", "g", "default") for n in range(1, 101)]
    for start in range(0, 100, 20):
        misses._write(fresh, noted[start : start + 20])
    misses.settle(fresh, misses.read(fresh), noted[1:])
    assert set(misses.read(fresh).misses) == set(noted[1:])


def test_a_folder_below_ones_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(misses.VARIABLE, "~/noted")
    misses.note(PROBLEMS[0], H100, "default")
    misses.flush()
    assert problems(tmp_path / "noted") == PROBLEMS[:1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("file", "leads to '.*file', but must be 1, 0 or a folder"),
        ("file/misses", "leads to '.*misses', but must be 1, 0 or a folder"),
        ("x" * 5000, "cannot be read"),
    ],
)
def test_a_folder_that_cannot_serve_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(misses.VARIABLE, str(tmp_path / name))
    misses.note(PROBLEMS[0], H100, "default")
    with pytest.raises(StoreError, match=said):
        misses.flush()
    misses._flush_or_log()  # says so in the log


def test_a_data_folder_that_is_none_is_not_blamed_on_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(misses, "data_folder", lambda: tmp_path / "file")
    monkeypatch.setenv(misses.VARIABLE, "1")
    with pytest.raises(StoreError, match=r"file/misses cannot be read: Not a directory$"):
        misses.read(misses.folder())


_PROCESS = """
import os, sys
from kernels.attention.problem import Problem
from tuner import misses
from tuner.target import Hardware, Target
target = Target(Hardware(90, 132, 80, 700), "x", "3.6.0", "2.11.0", "0")
first = int(sys.argv[1])
for seqlen in range(first, first + 20):
    misses.note(Problem.on_grid(64, seqlen, True), target, "default")
child = os.fork()
if child == 0:
    assert not misses._found
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
loaded = {"torch", "triton", "optuna", "sqlalchemy"} & set(sys.modules)
assert not loaded, loaded
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_many_processes_lose_nothing(fresh: Path) -> None:
    def run(number: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _PROCESS, str(1 + 10 * number)],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    with ThreadPoolExecutor(4) as pool:
        for done in pool.map(run, range(8)):
            assert done.returncode == 0, done.stderr
    assert {problem.seqlen for problem in problems(fresh)} == set(range(1, 91))


_SERVER = """
import os, sys
from kernels.attention.problem import Problem
from tests.patience import wait_until
from tests.tuner.search.conftest import H100
from tuner import misses

misses._EVERY_S = 0.1
misses.note(Problem.on_grid(64, 100, True), H100, "default")
if sys.argv[1] == "fork" and os.fork():
    os.wait()
    os._exit(0)
misses.note(Problem.on_grid(64, 200, True), H100, "default")
wait_until(lambda: any(m.problem.seqlen == 200 for m in misses.read(misses.folder()).misses))
os._exit(0)  # as who is killed: without what is done at exit
"""


@pytest.mark.parametrize("kind", ["killed", "fork"])
def test_a_process_that_is_killed_has_written_what_it_had_noted_before(
    fresh: Path, kind: str
) -> None:
    if kind == "fork" and not hasattr(os, "fork"):
        pytest.skip("there is no fork here")
    done = subprocess.run([sys.executable, "-c", _SERVER, kind], timeout=120, check=False)
    assert done.returncode == 0
    assert {problem.seqlen for problem in problems(fresh)} >= {200}


@pytest.mark.filterwarnings("ignore::tuner.plans.UntunedWarning")
def test_the_steps_of_a_decoder_are_not_noted(fresh: Path, stand_in) -> None:
    import torch

    import tuner

    for seqlen in range(1, 20):
        q, k = (torch.zeros(1, 2, rows, 64, dtype=torch.float16) for rows in (1, seqlen))
        tuner.attention(q, k, k)
    q = torch.zeros(1, 2, 600, 64, dtype=torch.float16)
    tuner.custom_attention_forward(q, q, q)
    tuner.flush_misses()
    assert [problem.seqlen for problem in problems(fresh)] == [1, 600]


@pytest.mark.filterwarnings("ignore::tuner.plans.UntunedWarning")
def test_the_runtime_notes_what_has_no_record_of_its_own_when_it_is_met_first(
    fresh: Path, stand_in, tmp_path: Path
) -> None:
    import torch

    import tuner
    from tests.tuner import test_plans

    tuned = Problem(64, 55, True, "fp16", 1, 2)
    test_plans.write(tmp_path / "mine.db", test_plans.record(tuned))
    tuner.use(tmp_path / "mine.db")
    for seqlen in (50, 55, 60, 50, 55, 60):
        q = torch.zeros(1, 2, seqlen, 64, dtype=torch.float16)
        tuner.custom_attention_forward(q, q, q)
    assert tuner.flush_misses() is not None
    assert [problem.seqlen for problem in problems(fresh)] == [50, 60]
    assert stand_in.launched == ["launched"] * 3 + ["repeated"] * 3
