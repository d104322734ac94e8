"""Worker processes: deadlines, deaths, noise, and never outliving the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.kill_nine import alive
from tests.patience import ANSWER_S, SILENCE_S, promptly, wait_until
from tuner.evaluate.process import Crashed, HandlerError, Timeout, Worker

FACTORY = "fake_workers:misbehaving"


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(FACTORY)
    yield worker
    worker.close()


def test_requests_are_answered_by_one_process(worker: Worker) -> None:
    value = {"text": "ä\n", "numbers": [1, 2.5, None]}
    assert worker.request("echo", {"value": value}, ANSWER_S) == value
    first = worker.request("pid", {}, ANSWER_S)
    assert worker.request("pid", {}, ANSWER_S) == first == worker.pid


def test_a_reply_larger_than_a_pipe(worker: Worker) -> None:
    text = "x" * 3_000_000
    assert worker.request("echo", {"value": text}, ANSWER_S) == text


def test_what_libraries_print_is_no_reply(worker: Worker) -> None:
    for number in range(20):
        assert worker.request("noisy", {"text": str(number)}, ANSWER_S) == str(number)


def test_a_hang_ends_the_whole_group(worker: Worker, tmp_path: Path) -> None:
    worker.request("echo", {"value": 1}, ANSWER_S)
    file = tmp_path / "pids"
    with promptly(60), pytest.raises(Timeout, match=r"within 10 s"):
        worker.request("hang_with_family", {"file": str(file)}, SILENCE_S)
    pids = [int(pid) for pid in file.read_text().split()]
    assert len(pids) == 2
    assert wait_until(lambda: not any(map(alive, pids)))
    assert worker.request("echo", {"value": 2}, ANSWER_S) == 2


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("die", {"number": int(signal.SIGSEGV)}, "killed by SIGSEGV: CUDA error: something bad"),
        ("abort", {}, "killed by SIGABRT"),
        ("exit", {"code": 3}, "exited with code 3"),
        ("give_up", {}, "an illegal memory access was encountered"),
    ],
)
def test_a_death_is_told_and_the_next_request_is_fine(
    worker: Worker, name: str, arguments: dict[str, int], reason: str
) -> None:
    before = worker.request("pid", {}, ANSWER_S)
    with pytest.raises(Crashed) as caught:
        worker.request(name, arguments, ANSWER_S)
    assert str(caught.value) == reason
    assert caught.value.note == ("the culprit" if name == "die" else None)
    assert worker.pid is None
    assert worker.request("pid", {}, ANSWER_S) != before


def test_a_deadline_is_for_silence(worker: Worker) -> None:
    assert worker.request("long", {"steps": 4, "step_s": SILENCE_S / 3}, SILENCE_S) == "done"
    with pytest.raises(Timeout) as caught:
        worker.request("long", {"steps": 8, "step_s": 600}, SILENCE_S)
    assert caught.value.note == "step 0"


def test_an_exception_of_a_handler_leaves_the_worker_alive(worker: Worker) -> None:
    before = worker.request("pid", {}, ANSWER_S)
    with pytest.raises(HandlerError, match="ValueError: invalid literal"):
        worker.request("fail", {}, ANSWER_S)
    assert worker.request("pid", {}, ANSWER_S) == before


def test_a_worker_that_cannot_start_says_why() -> None:
    worker = Worker(FACTORY, {"fail_at_start": True})
    with pytest.raises(Crashed, match="RuntimeError: no such GPU"):
        worker.request("echo", {"value": 1}, ANSWER_S)
    worker.close()


def test_killed_from_outside_while_idle(worker: Worker) -> None:
    pid = worker.request("pid", {}, ANSWER_S)
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not alive(pid))
    with pytest.raises(Crashed, match="killed by SIGKILL"):
        worker.request("echo", {"value": 1}, ANSWER_S)
    assert worker.request("echo", {"value": 1}, ANSWER_S) == 1


def test_what_somebody_else_killed_is_asked_again(worker: Worker, tmp_path: Path) -> None:
    once, ever = str(tmp_path / "once"), str(tmp_path / "ever")
    assert worker.persist("killed", {"marks": once, "times": 1}, ANSWER_S) == "done"
    with pytest.raises(Crashed, match="killed by SIGKILL") as caught:
        worker.persist("killed", {"marks": ever, "times": 9}, ANSWER_S)
    assert caught.value.killed
    assert len(Path(ever).read_text()) == 3
    # A candidate's own crash is not tried again, nor is a hang that we ended.
    before = worker.request("pid", {}, ANSWER_S)
    with pytest.raises(Crashed) as caught:
        worker.persist("die", {"number": int(signal.SIGSEGV)}, ANSWER_S)
    assert not caught.value.killed
    assert worker.pid is None
    assert worker.request("pid", {}, ANSWER_S) != before
    with pytest.raises(Timeout):
        worker.persist("hang", {}, 0.3)
    assert worker.pid is None


def test_close_ends_a_request_under_way(worker: Worker) -> None:
    pid = worker.request("pid", {}, ANSWER_S)
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            worker.request("hang", {}, 60)
        except Crashed as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.2)
    worker.close()
    worker.close()
    thread.join(ANSWER_S)
    assert [str(error) for error in caught] == ["the worker was closed"]
    assert not alive(pid)
    with pytest.raises(Crashed, match="closed"):
        worker.request("echo", {"value": 1}, ANSWER_S)


def test_no_descriptor_is_left_behind(worker: Worker) -> None:
    worker.request("echo", {"value": 1}, ANSWER_S)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(Crashed):
            worker.request("exit", {"code": 1}, ANSWER_S)
        worker.request("echo", {"value": 1}, ANSWER_S)
    assert wait_until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before)


PARENT = """
import sys
sys.path[:] = sys.argv[2:]
from tuner.evaluate.process import Worker
worker = Worker("fake_workers:misbehaving")
worker.request("echo", {"value": 1}, 30)
worker.request("hang_with_family", {"file": sys.argv[1]}, 60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_its_parent(how: signal.Signals, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(file), *sys.path], stderr=subprocess.DEVNULL
    )
    assert wait_until(lambda: file.exists() and len(file.read_text().split()) == 2)
    pids = [int(pid) for pid in file.read_text().split()]
    assert all(map(alive, pids))
    parent.send_signal(how)
    parent.wait(ANSWER_S)
    assert wait_until(lambda: not any(map(alive, pids)))
