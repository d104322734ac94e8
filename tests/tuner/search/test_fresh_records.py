"""What of an earlier search counts, and when a record makes another needless."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernels.attention import registry
from kernels.attention.config import Config
from tuner.search.candidates import enumerate_candidates
from tuner.search.events import ProblemSkipped, ProblemStarted, TrialEnded
from tuner.store.database import Store
from tuner.trial import Candidate

from .conftest import SMALL, ToyExecutor, ToyTemplate
from .test_driver import P, run


def test_trials_of_a_template_that_is_not_searched_do_not_count(
    executor: ToyExecutor, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(executor, store, trials=20)
    portable = registry.get("portable")
    other = Candidate("portable", portable.default(P, 90))
    trial = store.trials()[0]
    store.add_trial(replace(trial, candidate=other, template_version=portable.version))
    monkeypatch.setattr(registry, "names", lambda: ("portable", "toy"))
    (_, events) = run(executor, store, trials=21, templates=("toy",))
    assert isinstance(events[0], ProblemStarted)
    assert len([event for event in events if isinstance(event, TrialEnded)]) == 1


def test_a_record_whose_config_is_refused_by_now_is_searched_again(
    executor: ToyExecutor, store: Store
) -> None:
    run(executor, store, trials=20)
    (found,) = store.records()
    refused = Candidate("toy", Config(found.candidate.config, num_stages=9))
    lucky = replace(found.measurement, median_ms=found.measurement.median_ms / 9)
    store.add_record(replace(found, candidate=refused, measurement=lucky, uid=""))
    (again,), events = run(executor, store, trials=20)
    assert [type(event) for event in events] == [ProblemSkipped]  # the living one stands
    assert again == found


def test_the_same_command_again_runs_nothing(executor: ToyExecutor, store: Store) -> None:
    run(executor, store, trials=20)
    before = len(executor.compiled)
    (again,), events = run(executor, store, trials=20)
    assert len(executor.compiled) == before
    assert again is not None
    assert [type(event) for event in events] == [ProblemSkipped]


def test_an_interrupted_search_goes_on_where_it_stopped(
    executor: ToyExecutor, store: Store
) -> None:
    executor.stop_after = 11
    with pytest.raises(KeyboardInterrupt):
        run(executor, store, trials=30)
    told = {trial.candidate for trial in store.trials()}
    assert len(told) == 11
    assert store.records() == []
    second = ToyExecutor(seed=1)
    (found,), events = run(second, store, trials=30)
    assert found is not None
    assert len(second.evaluated) == 30 - 11
    assert not told & set(second.evaluated)
    assert len(store.trials()) == 30
    started = next(e for e in events if isinstance(e, ProblemStarted))
    assert (started.known, started.trials) == (11, 19)


def test_trials_of_an_older_kernel_are_made_again(
    executor: ToyExecutor, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old,), _ = run(executor, store, trials=20)
    monkeypatch.setattr(ToyTemplate, "version", "another kernel")
    executor.evaluated.clear()
    assert old is not None
    (new,), events = run(executor, store, trials=20, inherited=[old])
    assert new is not None
    started = next(e for e in events if isinstance(e, ProblemStarted))
    assert started.known == 0
    assert len(executor.evaluated) >= 20
    assert (new.template_version, new.supersedes) == ("another kernel", (old.uid,))


def test_one_config_more_is_one_trial_more(
    executor: ToyExecutor, store: Store, toy: ToyTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(executor, store, sampler="exhaustive")
    before = set(executor.evaluated)
    space = toy.space(P.specialization)
    monkeypatch.setattr(
        ToyTemplate, "space", lambda self, s: {**space, "BLOCK_N": (16, 32, 64, 128, 8)}
    )
    real = ToyTemplate.reject
    monkeypatch.setattr(
        ToyTemplate,
        "reject",
        lambda self, s, c, cap: (
            "one is enough"
            if c["BLOCK_N"] == 8 and c != Config(BLOCK_M=16, BLOCK_N=8, num_stages=1, flag=False)
            else real(self, s, c, cap)
        ),
    )
    enumerate_candidates.cache_clear()
    executor.evaluated.clear()
    run(executor, store, sampler="exhaustive")
    assert [c.config["BLOCK_N"] for c in executor.evaluated] == [8]
    assert not set(executor.evaluated) & before


@pytest.mark.parametrize("trials", [None, 60])
def test_one_config_more_is_one_trial_more_where_all_were_tried(
    executor: ToyExecutor, store: Store, toy: ToyTemplate, monkeypatch: pytest.MonkeyPatch,
    trials: int | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(ToyTemplate, "space", lambda self, specialization: SMALL)
    run(executor, store, trials=trials)
    assert len(executor.evaluated) == 16
    monkeypatch.setattr(ToyTemplate, "space", lambda self, s: {**SMALL, "num_stages": (2, 3, 4)})
    added = Config(BLOCK_M=64, BLOCK_N=64, num_stages=4, flag=True)
    monkeypatch.setattr(
        ToyTemplate,
        "reject",
        lambda self, s, c, cap: "one is enough" if c["num_stages"] == 4 and c != added else None,
    )
    enumerate_candidates.cache_clear()
    executor.evaluated.clear()
    run(executor, store, trials=trials)
    assert [c.config for c in executor.evaluated] == [added]
    executor.evaluated.clear()
    run(executor, store, trials=trials)
    assert executor.evaluated == []


def test_more_trials_asked_for_than_tried(executor: ToyExecutor, store: Store) -> None:
    run(executor, store, trials=10)
    run(executor, store, trials=15)
    assert len(executor.evaluated) == 15


def test_replayed_trials_are_none_of_the_measured_ones_asked_for(
    executor: ToyExecutor, store: Store
) -> None:
    executor.origin = "replay"
    run(executor, store, trials=20)
    executor.origin = "cuda"
    run(executor, store, trials=10, seed=1)
    _, events = run(executor, store, trials=25)
    started = next(e for e in events if isinstance(e, ProblemStarted))
    assert (started.known, started.trials) == (10, 15)


def test_a_record_is_fresh_for_fewer_templates_too(
    executor: ToyExecutor, store: Store, toy: ToyTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(ToyTemplate):
        name = "other"

    toys = {"toy": toy, "other": Other()}
    monkeypatch.setattr(registry, "names", lambda: tuple(toys))
    monkeypatch.setattr(registry, "get", toys.__getitem__)
    run(executor, store, trials=None)
    executor.evaluated.clear()
    for templates in (None, ("other",), ("toy",)):
        _, events = run(executor, store, trials=None, templates=templates)
        assert [type(event) for event in events] == [ProblemSkipped]
    assert executor.evaluated == []
