"""A real Ray cluster of several nodes on this machine, whose evaluators replay; parts of it die."""

from __future__ import annotations

import inspect
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed")

from ray.cluster_utils import Cluster  # noqa: E402

from kernels.attention import registry  # noqa: E402
from kernels.attention.config import Config  # noqa: E402
from tests.patience import SILENCE_S, in_one_of, wait_until  # noqa: E402
from tests.tuner.evaluate.test_rehearsal import (  # noqa: E402
    PROBLEM,
    TRIALS,
    Watch,
    search,
    told,
    undisturbed,  # noqa: F401 – a fixture
)
from tuner.evaluate import rehearsal  # noqa: E402
from tuner.evaluate.ray_cluster import PLACING_S, RayExecutor  # noqa: E402
from tuner.evaluate.rehearsal import Rehearsal  # noqa: E402
from tuner.evaluate.replay import ReplayExecutor  # noqa: E402
from tuner.record import Record  # noqa: E402
from tuner.search.events import Event, TrialEnded  # noqa: E402
from tuner.trial import Candidate, Outcome  # noqa: E402

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("ray"),  # one cluster at a time
]


@contextmanager
def two_nodes() -> Iterator[Cluster]:
    """A head that only drives, and two nodes with a GPU and compilers each."""
    # A lost node is noticed within 2 s here; Ray's own 15 s and more are for real networks.
    health = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
    }
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "num_gpus": 0, "_system_config": health},
    )
    try:
        for _ in range(2):
            made.add_node(num_cpus=2, num_gpus=1)
        made.wait_for_nodes()
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """One for a test that loses nodes."""
    with two_nodes() as made:
        yield made


@pytest.fixture(scope="class")
def lasting() -> Iterator[Cluster]:
    """One for tests that leave it as it was, and a last that adds to it."""
    with two_nodes() as made:
        yield made


def rehearsed(cluster: Cluster, pace: float = 0.0, placing_s: float = 60.0) -> Rehearsal:
    executor = RayExecutor(
        cluster.address,
        gpu_factory=rehearsal.GPU_FACTORY,
        gpu_options=rehearsal.options(None, pace),
        compile_factory=rehearsal.COMPILE_FACTORY,
        compile_options=rehearsal.options(None),
    )
    executor._placing_s = placing_s  # not at the start, which takes longer on a busy machine
    return Rehearsal(executor, ReplayExecutor())


def in_the_middle(
    executor: Rehearsal, path: Path, *deeds: Callable[[RayExecutor], None]
) -> tuple[Record, list[Event]]:
    """Search, and do a deed after every eighth trial that is told."""
    events: list[Event] = []
    left = list(deeds)
    inner = executor._processes
    assert isinstance(inner, RayExecutor)

    def watch(event: Event) -> None:
        events.append(event)
        if left and len(told(events)) == 8 * (len(deeds) - len(left) + 1):
            left.pop(0)(inner)

    found = search(executor, path, watch)
    assert not left, "too few trials to do it in the middle"
    return found, events


def assert_nothing_lost(found: Record, events: list[Event], expected: Record) -> None:
    assert found.candidate == expected.candidate
    assert found.measurement == expected.measurement
    assert len(told(events)) == TRIALS
    assert set(told(events).values()) == {1}
    recorded = ReplayExecutor()
    for event in events:
        if isinstance(event, TrialEnded):
            trial = event.trial
            asked = recorded.evaluate(PROBLEM, trial.candidate, None).result()
            assert trial.outcome is asked.outcome


def assert_every_gpu_serves_again(executor: Rehearsal) -> None:
    inner = executor._processes
    assert isinstance(inner, RayExecutor)
    assert wait_until(lambda: inner._idle.qsize() == inner.evaluate_slots)


def test_a_binary_travels_to_the_host_of_the_evaluator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))  # of all in this cluster
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("RAY_TMPDIR", tempfile.gettempdir())  # its sockets want a short path
    (tmp_path / "temporary").mkdir()
    only = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1})
    try:
        executor = RayExecutor(only.address, gpu_factory=rehearsal.GPU_FACTORY)
        with executor:
            default = registry.get("portable").default(PROBLEM, 90)
            candidate = Candidate("portable", default)
            compiled = executor.compile(PROBLEM, candidate).result(120)
            assert compiled.outcome is Outcome.OK, compiled.reason
            assert not list(tmp_path.rglob("*.cubin"))
            assert executor.evaluate(PROBLEM, candidate, None).result(60).candidate == candidate
            assert len(list(tmp_path.rglob("*.cubin"))) == 1
            assert executor.race(PROBLEM, [candidate], 3).result(60)
        assert list((tmp_path / "temporary").iterdir()) == []
    finally:
        ray.shutdown()
        only.shutdown()


def kill_an_actor(executor: RayExecutor) -> None:
    ray.kill(executor._actors[0], no_restart=False)


def kill_an_actors_process(executor: RayExecutor) -> None:
    os.kill(pids_of_one_that_serves(executor)[0], signal.SIGKILL)


def kill_an_evaluators_process(executor: RayExecutor) -> None:
    """What the actor itself started: the one that would own the GPU."""
    os.kill(pids_of_one_that_serves(executor)[1], signal.SIGKILL)


def pids_of_one_that_serves(executor: RayExecutor) -> tuple[int, int]:
    """Those of the last actor that was not killed, or is back."""
    for actor in reversed(executor._actors):
        try:
            own, evaluators = ray.get(actor.pids.remote(), timeout=SILENCE_S)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            continue
        if evaluators is not None:
            return own, evaluators
    raise AssertionError("no actor serves")


class TestOfOneCluster:
    def test_every_gpu_has_an_actor_and_the_rest_compiles(self, lasting: Cluster) -> None:
        with rehearsed(lasting) as executor:
            assert executor.evaluate_slots == 2
            assert executor.compile_slots == 2  # of 4 cores, one for each GPU
            text = executor._processes.announce()
            assert text.startswith("Measuring on 2× NVIDIA H100 80GB HBM3 (sm_90, 132 SMs, 79 GiB,")
            assert " of a Ray cluster, Triton 3.6.0" in text
        assert not ray.is_initialized()

    def test_a_compilation_whose_process_is_killed_is_made_again(
        self, lasting: Cluster, tmp_path: Path
    ) -> None:
        executor = RayExecutor(
            lasting.address,
            gpu_factory=rehearsal.GPU_FACTORY,
            compile_factory="tests.tuner.evaluate.fake_workers:host_killer",
            compile_options={"marks": str(tmp_path)},
        )
        with executor:
            candidate = Candidate("portable", registry.get("portable").default(PROBLEM, 90))
            compiled = executor.compile(PROBLEM, candidate).result(120)
        assert compiled.outcome is Outcome.OK, compiled.reason
        assert (tmp_path / "killed").exists()

    def test_processes_that_are_killed_cost_no_trial(
        self,
        lasting: Cluster,
        tmp_path: Path,
        undisturbed: Record,  # noqa: F811
    ) -> None:
        deeds = (kill_an_actor, kill_an_actors_process, kill_an_evaluators_process)
        with rehearsed(lasting, pace=4.0) as executor:
            found, events = in_the_middle(executor, tmp_path / "killed.db", *deeds)
            assert_every_gpu_serves_again(executor)
        assert_nothing_lost(found, events, undisturbed)

    def test_wall_clock_shrinks_with_evaluators(
        self,
        lasting: Cluster,
        tmp_path: Path,
        undisturbed: Record,  # noqa: F811
    ) -> None:
        walls: list[float] = []

        def wall(nodes: int) -> float:
            while len(lasting.worker_nodes) < nodes:
                lasting.add_node(num_cpus=1, num_gpus=1)
            lasting.wait_for_nodes()
            watch = Watch()
            with rehearsed(lasting, pace=5.0) as executor:
                assert executor.evaluate_slots == nodes
                # First the compilers start, which on few cores takes longer than all the rest.
                configs = registry.get("portable").feasible(PROBLEM.specialization, 90)
                first = [Candidate("portable", config) for config in islice(configs, 8)]
                wait([executor.compile(PROBLEM, candidate) for candidate in first])
                found = search(executor, tmp_path / f"{len(walls)}.db", watch)
            assert found.candidate == undisturbed.candidate
            walls.append(watch.seconds)
            return watch.seconds

        two = wall(2)
        assert in_one_of(2, lambda: wall(4) < 0.75 * two), walls


def test_a_node_that_is_lost_costs_no_trial_and_another_takes_its_place(
    cluster: Cluster,
    tmp_path: Path,
    undisturbed: Record,  # noqa: F811
) -> None:
    node = next(iter(cluster.worker_nodes))

    def lose_a_node(executor: RayExecutor) -> None:
        cluster.remove_node(node, allow_graceful=False)

    def add_another(executor: RayExecutor) -> None:
        cluster.add_node(num_cpus=2, num_gpus=1)

    with rehearsed(cluster, pace=6.0) as executor:
        path = tmp_path / "lost.db"
        found, events = in_the_middle(executor, path, lose_a_node, add_another)
        assert_every_gpu_serves_again(executor)
    assert_nothing_lost(found, events, undisturbed)


def lose_all(cluster: Cluster) -> None:
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node, allow_graceful=False)


def test_who_is_lost_is_waited_for_five_minutes() -> None:
    assert inspect.signature(RayExecutor).parameters["placing_s"].default == PLACING_S == 300


def test_without_any_gpu_left_the_search_ends_in_one_sentence(
    cluster: Cluster, tmp_path: Path
) -> None:
    with rehearsed(cluster, pace=4.0, placing_s=8.0) as executor:
        # Whichever wait ends first: with the hosts of the GPUs those of the compilers are lost.
        said = (
            r"^no (GPU of the Ray cluster|host of the Ray cluster that can compile)"
            r" has come back within 8 s$"
        )
        with pytest.raises(ConnectionError, match=said):
            in_the_middle(executor, tmp_path / "none.db", lambda _: lose_all(cluster))


def test_a_compilation_waits_for_a_host_that_comes_back_and_not_for_ever(cluster: Cluster) -> None:
    candidate = Candidate("portable", registry.get("portable").default(PROBLEM, 90))
    with rehearsed(cluster, placing_s=60.0) as executor:
        inner = executor._processes
        assert isinstance(inner, RayExecutor)
        lose_all(cluster)
        future = inner.compile(PROBLEM, candidate)
        with pytest.raises(TimeoutError):
            future.result(4)
        cluster.add_node(num_cpus=2, num_gpus=1)
        assert future.result(120).outcome is Outcome.OK
        lose_all(cluster)
        inner._placing_s = 4.0
        config = {**candidate.config, "defer_rescale": not candidate.config["defer_rescale"]}
        candidate = Candidate("portable", Config(config))
        future = inner.compile(PROBLEM, candidate)
        said = r"^no host of the Ray cluster that can compile has come back within 4 s$"
        with pytest.raises(ConnectionError, match=said):
            future.result(120)
        inner._placing_s = 60.0
        cluster.add_node(num_cpus=2, num_gpus=1)
        assert inner.compile(PROBLEM, candidate).result(120).outcome is Outcome.OK


def test_a_cluster_without_a_gpu_or_out_of_reach_is_one_sentence() -> None:
    with pytest.raises(RuntimeError, match=r"^the Ray cluster at 127\.0\.0\.1:1 cannot be reached"):
        RayExecutor("127.0.0.1:1")
    only = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    try:
        with pytest.raises(RuntimeError, match=r"^the Ray cluster has no GPU$"):
            RayExecutor(only.address)
        assert not ray.is_initialized()
    finally:
        only.shutdown()
