"""Which executor a command line asks for: `--gpus`, `--executor`, `--ray-address`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernels.attention import registry
from kernels.attention.problem import Problem, Specialization
from tests.tuner.store import samples
from tuner.cli.executors import executor_for
from tuner.cli.failure import CommandError
from tuner.evaluate import local, ray_cluster
from tuner.evaluate.executor import Opening
from tuner.store.database import Store
from tuner.store.publish import publish
from tuner.trial import Candidate

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "x"), "--gpus is 'x', but must be all, or different numbers of GPUs, such as"),
        (("--gpus", "0,0"), "--gpus is '0,0', but must be all, or different numbers"),
        (("--gpus", "-1"), "--gpus is '-1', but must be all"),
        (("--gpus", ""), "--gpus is '', but must be all"),
        (("--gpus", "0", "--backend", "replay"), "--gpus is '0', but a replay needs no GPU"),
        (("--gpus", "all", "--executor", "ray"), "--gpus is 'all', but --executor ray uses all"),
        (("--executor", "slurm"), "--executor is 'slurm', but must be one of local, ray"),
        (("--ray-address", "h:1"), "--ray-address is 'h:1', but needs --executor ray"),
        *(
            (
                ("--executor", "ray", "--ray-address", address),
                f"--ray-address is {address!r}, but must be HOST:PORT, such as 10.0.0.1:6379",
            )
            for address in ("", " ", "head", "head:", "head:x", "head:0", "head:65536", "h\x1b:1")
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(tuner: Run, words: tuple[str, ...], said: str) -> None:
    result = tuner("search", *words)
    assert result.status == 2
    assert result.err.startswith(f"tuner: {said}")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("gpus", "count", "devices"),
    [(None, 2, (0,)), ("all", 2, (0, 1)), ("1", 2, (1,)), ("2, 0", 3, (2, 0))],
)
def test_the_gpus_that_are_opened(
    monkeypatch: pytest.MonkeyPatch, gpus: str | None, count: int, devices: tuple[int, ...]
) -> None:
    opened = []
    monkeypatch.setattr("tuner.device.gpu_count", lambda: count)
    monkeypatch.setattr(
        local, "LocalExecutor", lambda devices, jobs, cold_l2, first: opened.append(devices)
    )
    executor_for("cuda", None, gpus=gpus)
    assert opened == [devices]


@pytest.mark.parametrize(
    ("gpus", "count", "said"),
    [
        ("all", 0, "--gpus is 'all', but there is no NVIDIA GPU here"),
        ("1", 1, "--gpus is '1', but here is GPU 0 only"),
        ("0,5", 4, "--gpus is '0,5', but here are GPUs 0 to 3 only"),
    ],
)
def test_gpus_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch, gpus: str, count: int, said: str
) -> None:
    monkeypatch.setattr("tuner.device.gpu_count", lambda: count)
    with pytest.raises(CommandError) as caught:
        executor_for(None, None, gpus=gpus)
    assert str(caught.value) == said


def test_without_ray_it_says_what_to_install(tuner: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    said = tuner("search", "--executor", "ray")
    assert said.status == 2
    assert said.err == (
        "tuner: the executor ray needs Ray, which is not installed; pip install 'ray>=2.40'\n"
    )


def test_a_cluster_measures_or_rehearses(monkeypatch: pytest.MonkeyPatch, spaces: Path) -> None:
    made = []

    class Cluster:
        evaluate_slots, compile_slots = 3, 2

        def __init__(self, address: str | None, **options: Any) -> None:
            made.append((address, options))

    monkeypatch.setattr(ray_cluster, "RayExecutor", Cluster)
    executor_for(None, None, executor="ray", ray_address="h:1")
    executor = executor_for("replay", spaces, executor="ray")
    assert made[0] == ("h:1", {})
    assert made[1][1]["gpu_options"]["folder"] == str(spaces)
    assert executor.announce().endswith("; rehearsed by 3 evaluators.")


def test_a_search_says_what_to_compile_before_its_gpu_is_ready(
    tuner: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[list[tuple[Candidate, Specialization]]] = []
    target = samples.TARGET

    def opened(*_: object, first: Opening | None, **__: object) -> None:
        said.append(list(first(target)) if first else [])
        raise RuntimeError("that is enough")

    def told(path: Path, *more: str) -> list[tuple[Candidate, Specialization]]:
        words = ("search", "--backend", "cuda", "--hdim", "128", "--causal", "--db")
        result = tuner(*words, path, *more)
        assert result.err == "tuner: --backend is cuda, but that is enough\n"
        return said[-1]

    monkeypatch.setattr(local, "LocalExecutor", opened)
    first, second = Problem.on_grid(128, 16384, True), Problem.on_grid(128, 8192, True)
    template = registry.get("hopper")
    default = Candidate("hopper", template.default(first, 90))
    winner = next(
        Candidate("hopper", config)
        for config in template.feasible(first.specialization, 90)
        if config != default.config
    )
    new = tmp_path / "new.db"
    cold = told(new)
    assert {specialization for _, specialization in cold} == {first.specialization}
    assert (default, first.specialization) in cold
    assert len(cold) > 10  # what is beside the defaults, too
    assert not new.exists()

    (shipped,) = tmp_path.glob("shipped.db")
    shipped.unlink()
    here = samples.record(problem=first, candidate=winner)
    publish(shipped, [replace(here, target=replace(target, triton="9.9.9"), uid="")])
    assert (winner, first.specialization) in told(new)
    assert len(told(new)) == 3  # two defaults and that winner

    # A problem that has its record is not searched; what has trials goes on from those.
    with Store.open(new) as store:
        store.add_record(here)
    assert {c for c, _ in told(new)} == {c for c, _ in told(new, "--force")}
    with Store.open(new) as store:
        store.add_trial(samples.trial(problem=second))
    assert told(new) == []
    assert told(new, "--force")  # begins with the first, of which there is none
    assert told(new, "--from-misses") == []
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database")
    assert told(broken) == []
