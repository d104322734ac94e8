"""How shapes are planned: once, by what is in force, with one warning, never amid a CUDA graph."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")

import tuner  # noqa: E402
from kernels.attention import registry  # noqa: E402
from kernels.attention.config import Config  # noqa: E402
from kernels.attention.problem import Problem  # noqa: E402
from tests.patience import promptly  # noqa: E402
from tests.tuner.stand_in import H100, StandIn  # noqa: E402
from tests.tuner.store.samples import trial  # noqa: E402
from tuner import fallback, plans, snapshot  # noqa: E402
from tuner.record import Record  # noqa: E402
from tuner.store import locations  # noqa: E402
from tuner.store.database import Store  # noqa: E402
from tuner.trial import Candidate, Measurement  # noqa: E402

ROOT = Path(__file__).parents[2]
quiet = pytest.mark.filterwarnings("ignore::tuner.plans.UntunedWarning")
TEMPLATE = registry.get("portable")
PROBLEM = Problem(64, 96, True, "fp16", 1, 2)


def other_config(problem: Problem = PROBLEM, number: int = 7) -> Config:
    """A feasible config that is not the default."""
    feasible = list(TEMPLATE.feasible(problem.specialization, 90))
    return next(c for c in feasible[number:] if c != TEMPLATE.default(problem, 90))


def record(problem: Problem = PROBLEM, config: Config | None = None, **more) -> Record:
    return Record(
        problem=problem,
        target=more.pop("target", H100),
        candidate=Candidate("portable", config or other_config(problem)),
        measurement=Measurement(1.0, 0.01, (1.0,), 100.0, 1e-4),
        measured_at="2026-11-28T00:00:00+00:00",
        **{"template_version": TEMPLATE.version, "origin": "cuda", **more},
    )


def tensors(seqlen: int = 96) -> list[torch.Tensor]:
    return [torch.zeros(1, 2, seqlen, 64, dtype=torch.float16) for _ in range(3)]


def call(seqlen: int = 96) -> None:
    tuner.custom_attention_forward(*tensors(seqlen))


def write(path: Path, *records: Record) -> None:
    with Store.open(path) as store:
        store.add_records(records)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shipped records."""
    monkeypatch.setattr("tuner.store.layers.shipped_database", lambda: None)


@quiet
def test_threads_that_meet_a_shape_at_once_get_one_plan(stand_in: StandIn) -> None:
    barrier = threading.Barrier(8)

    def work(number: int) -> object:
        served = []
        for seqlen in range(1, 30):
            q, k, v = tensors(seqlen)
            barrier.wait(10)
            served.append(plans.plan_for(q, k, v, True, False))
        return served

    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(work, range(8))
    assert all(all(a is b for a, b in zip(served, first)) for served in others)
    assert len(stand_in.loaded) == 29


def test_one_warning_for_each_key_and_none_for_neighbours(stand_in, alone, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seqlen in range(1, 100):
            call(seqlen)
    (warning,) = caught
    assert warning.category is tuner.UntunedWarning
    assert warning.filename == __file__
    assert "D64 S1 causal fp16 B1 H2 runs by a default config: no record within 2×" in str(
        warning.message
    )
    write(tmp_path / "mine.db", record())
    tuner.use(tmp_path / "mine.db")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(96)
        call(97)


def test_one_warning_for_each_key_from_whatever_source(stand_in, alone, tmp_path: Path) -> None:
    write(tmp_path / "mine.db", record(target=replace(record().target, triton="2.0.0")))
    tuner.use(tmp_path / "mine.db")
    with pytest.warns(tuner.UntunedWarning, match=" stale config"):
        call(96)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(8000)
    assert tuner.lookup(64, 8000, batch=1, heads=2, target=record().target).source == "default"


def test_one_warning_for_what_no_template_serves_whatever_its_size(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "_announced", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seqlen in range(1, 30):
            tuner.attention(*(torch.zeros(1, 2, seqlen, 80).half() for _ in range(3)))
            grown = [torch.zeros(1, 2, seqlen, 80).half().requires_grad_() for _ in range(3)]
            tuner.custom_attention_forward(*grown, causal=False)
            tuner.flash_attn_func(*(t.transpose(1, 2) for t in grown))
    (warning,) = caught
    assert warning.category is tuner.FallbackWarning
    assert warning.filename == __file__
    assert "no template serves D80 full fp16 on sm_90 (hopper: headdim is 80, but must" in str(
        warning.message
    )
    assert not stand_in.launched


@quiet
def test_two_seqlens_of_one_compiled_graph_run_by_their_own_configs(
    stand_in: StandIn, alone, tmp_path: Path
) -> None:
    problems = [replace(PROBLEM, seqlen=seqlen) for seqlen in (96, 700)]
    configs = [other_config(number=number) for number in (7, 20)]
    assert configs[0] != configs[1]
    write(tmp_path / "mine.db", *map(record, problems, configs))
    tuner.use(tmp_path / "mine.db")
    torch._dynamo.reset()
    compiled = torch.compile(
        tuner.custom_attention_forward, backend="aot_eager", fullgraph=True, dynamic=True
    )
    for seqlen in (96, 700):
        compiled(*tensors(seqlen))
    assert [candidate.config for candidate, _ in stand_in.loaded] == configs


@pytest.mark.parametrize(
    ("more", "source"),
    [
        ({"target": replace(H100, triton="9.9")}, "stale"),
        ({"template_version": "000000000000"}, "stale"),
        ({"target": replace(H100, hardware=replace(H100.hardware, power_limit_w=350))}, "family"),
    ],
)
def test_records_from_elsewhere_serve_with_a_warning(
    stand_in: StandIn, alone, tmp_path: Path, more: dict, source: str
) -> None:
    write(tmp_path / "mine.db", record(**more))
    tuner.use(tmp_path / "mine.db")
    with pytest.warns(tuner.UntunedWarning, match=f"{source} config"):
        call()
    assert stand_in.loaded[-1][0].config == other_config()


@quiet
def test_a_changed_database_is_noticed_when_a_new_shape_is_met(
    stand_in: StandIn, alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.db"
    write(path)
    before = tuner.use(path)
    call()
    write(path, record())
    monkeypatch.setattr(snapshot, "LOOK_EVERY_S", 0.0)
    snapshot._holder.next_look = 0.0
    monkeypatch.setenv("TUNER_REFRESH", "0")
    call(95)
    assert tuner.snapshot_hash() == before
    monkeypatch.delenv("TUNER_REFRESH")
    stand_in.capturing = 1
    call(94)
    assert tuner.snapshot_hash() == before
    stand_in.capturing = None
    call()  # not new: nobody looks
    assert tuner.snapshot_hash() == before
    call(93)
    assert tuner.snapshot_hash() != before
    assert stand_in.loaded[-1][0].config == other_config()
    call()
    assert stand_in.loaded[-1][0].config == other_config()


@quiet
@pytest.mark.parametrize("name", ["~/mine.db", "sqlite:///{path}"])
def test_a_change_is_noticed_by_whatever_name_the_file_goes(
    stand_in: StandIn, alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / "mine.db"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(snapshot, "LOOK_EVERY_S", 0.0)
    write(path)
    tuner.use(name.format(path=path))
    call(95)
    write(path, record())
    call(96)
    assert stand_in.loaded[-1][0].config == other_config()


@quiet
def test_a_graph_goes_on_as_it_began(stand_in: StandIn, alone, tmp_path: Path) -> None:
    write(tmp_path / "mine.db", record())
    call()
    default = stand_in.loaded[-1][0]
    stand_in.capturing = 1
    call()
    tuner.use(tmp_path / "mine.db")
    call()
    assert [candidate for candidate, _ in stand_in.loaded] == [default]
    stand_in.capturing = None
    call()
    assert stand_in.loaded[-1][0].config == other_config()


@quiet
def test_refreshing_on_request(stand_in: StandIn, alone, tmp_path: Path, caplog) -> None:
    path = tmp_path / "mine.db"
    write(path)
    before = tuner.use(path)
    call()
    assert tuner.refresh() == before
    call()
    assert len(stand_in.loaded) == 1
    with Store.open(path) as store:
        store.add_trial(trial())
    assert tuner.refresh() == before
    call()
    assert len(stand_in.loaded) == 1  # trials change nothing that is in force
    write(path, record())
    after = tuner.refresh()
    assert after != before
    assert after == tuner.snapshot_hash()
    call()
    assert stand_in.loaded[-1][0].config == other_config()
    path.write_bytes(b"no database")
    assert tuner.refresh() == after  # what was read stays
    assert "going on with the records read before" in caplog.text


@quiet
def test_a_locked_database_holds_up_nothing(
    stand_in: StandIn, alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.db"
    with Store.open(path, write_ahead_log=False) as store:
        store.add_record(record())
    before = tuner.use(path)
    write(path, record(replace(PROBLEM, seqlen=64)))
    monkeypatch.setattr(snapshot, "LOOK_EVERY_S", 0.0)
    locker = sqlite3.connect(path, isolation_level=None)
    try:
        locker.execute("BEGIN EXCLUSIVE")
        with promptly():
            call(95)
        assert tuner.snapshot_hash() == before
        assert stand_in.loaded[-1][0].config == other_config()  # what was read stays in force
    finally:
        locker.close()
    call(94)
    assert tuner.snapshot_hash() != before


def test_the_environment_names_the_database(
    stand_in: StandIn, alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "mine.db", record())
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "mine.db"))
    assert locations.user_database() == str(tmp_path / "mine.db")
    digest = tuner.use()
    found = tuner.lookup(64, 96, batch=1, heads=2, target=H100)
    assert (found.source, found.candidate.config) == ("exact", other_config())
    assert tuner.use(db=tmp_path / "mine.db") == digest


_FORK = """
import os, sys, threading, warnings
from tests.tuner.stand_in import standing_in
from tests.tuner.test_plans import call
from tuner import plans

warnings.simplefilter("ignore")
with standing_in():
    held, done = threading.Event(), threading.Event()

    def hold():
        with plans._lock:
            held.set()
            done.wait()

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        call()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    done.set()
    call()
    sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_does_not_wait_for_a_lock_that_a_thread_of_its_parent_held() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _FORK], cwd=ROOT, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            said, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the child too
            raise
    assert process.returncode == 0, said


@quiet
def test_a_graph_begun_after_a_change_follows_it(stand_in: StandIn, alone, tmp_path: Path) -> None:
    call()
    write(tmp_path / "mine.db", record())
    tuner.use(tmp_path / "mine.db")
    stand_in.capturing = 1
    call()
    assert stand_in.loaded[-1][0].config == other_config()
    stand_in.capturing = None
    pinned = other_config(number=20)
    with tuner.pin(dict(pinned)):
        stand_in.capturing = 2
        call()
        assert stand_in.loaded[-1][0].config == pinned


@quiet
def test_a_graph_follows_a_change_within_an_earlier_graph(stand_in: StandIn, alone) -> None:
    call()
    default = stand_in.loaded[-1][0]
    first, second = (other_config(number=number) for number in (7, 20))
    stand_in.capturing = 1
    for config in (first, second):
        tuner.pin(dict(config))
        call()
        assert [candidate for candidate, _ in stand_in.loaded] == [default]
    stand_in.capturing = 2
    call()
    assert stand_in.loaded[-1][0].config == second


@quiet
def test_what_changes_while_a_call_is_being_remembered_is_not_missed(
    stand_in: StandIn, alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = stand_in.prepare

    def interrupted(*arguments):
        launch = prepare(*arguments)
        if not plans._pinned:
            tuner.pin(dict(other_config()))  # as another thread might
        return launch

    monkeypatch.setattr(stand_in, "prepare", interrupted)
    call()
    call()
    assert stand_in.loaded[-1][0].config == other_config()
    call()
    assert stand_in.launched == ["launched", "launched", "repeated"]


@quiet
def test_plans_do_not_grow_without_bound(
    stand_in: StandIn, alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "_KEPT", 3)
    for seqlen in (1, 2, 3, 4, 5, 1):
        call(seqlen)
        assert len(plans._plans) <= 3
    assert stand_in.launched == ["launched"] * 5 + ["repeated"]
