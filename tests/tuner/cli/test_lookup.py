"""`tuner lookup`: which config, from where, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernels.attention.problem import Problem
from tests.tuner.store import samples
from tuner import cuda_driver
from tuner.cli.targets import choose_target
from tuner.device import has_gpu
from tuner.store.database import Store
from tuner.target import Hardware

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "target", lambda: None)


@pytest.fixture
def lookup(tuner: Run, searched: Path) -> Run:
    return lambda *words: tuner("lookup", "--db", searched, "--hdim", "256", "--causal", *words)


@pytest.mark.parametrize(
    ("seqlen", "more", "source"),
    [
        ("512", ("--batch", "32"), "exact"),
        ("513", ("--batch", "32"), "nearest"),
        ("512", ("--batch", "32", "--target", "sm_90"), "family"),
        ("512", ("--batch", "32", "--target", "sm_80"), "default"),
    ],
)
def test_sources(lookup: Run, seqlen: str, more: tuple[str, ...], source: str) -> None:
    (found,) = lookup("--seqlen", seqlen, "--target", "H100", *more, "--json").json["lookups"]
    assert found["source"] == source
    assert found["reason"]


def test_a_family_of_gpus_has_no_size(lookup: Run) -> None:
    said = lookup("--seqlen", "512", "--target", "sm_80").out
    assert said.startswith("target    any sm_80: --target\n")
    assert "no record within 2× of the seqlen" in said
    assert "on any sm_80" in said


def test_it_explains_in_words(lookup: Run) -> None:
    said = lookup("--seqlen", "700", "--target", "sm90-132x-80gib-700w")
    assert said.status == 0
    place = "" if has_gpu() else ", where that GPU is"
    search = "tuner search --hdim 256 --seqlen 700 --causal --dtype fp16 --batch"
    for word in (
        "config    portable(",
        "source    nearest",
        "why       ",
        "1.37× in seqlen",
        "record ",
        "tuning    about ",
        f"typically{place}: {search}",  # the replay's trials are another machine's
    ):
        assert word in said.out


def test_any_card_of_a_capability_has_no_figures_of_its_own(lookup: Run) -> None:
    said = lookup("--seqlen", "512", "--batch", "32", "--target", "sm_90")
    assert said.out.splitlines()[0] == "target    any sm_90: --target"
    assert "80 GiB, 700 W, this is sm_90\n" in said.out


def test_without_a_gpu_it_says_which_card_it_assumed(lookup: Run, searched: Path) -> None:
    said = lookup("--seqlen", "512").out.splitlines()[0]
    assert "NVIDIA H100 80GB HBM3 (sm_90, 132 SMs" in said
    assert said.endswith("assumed, since there is no GPU here and no other card has more records")
    target = replace(samples.TARGET, gpu_name="Another", hardware=Hardware(80, 108, 40, 400))
    with Store.open(searched) as store:
        assert len(store.records()) > 1
        store.add_record(samples.record(target=target, measured_at="2031-01-01T00:00:00+00:00"))
    assert lookup("--seqlen", "512").out.splitlines()[0] == f"{said}; --target names another card"


def test_of_cards_with_as_many_records_it_assumes_the_one_that_had_them_first() -> None:
    other = replace(samples.TARGET, gpu_name="Another", hardware=Hardware(80, 108, 40, 400))
    newer = replace(other, driver="999.0")
    years = [(samples.TARGET, 2030), (other, 2029), (samples.TARGET, 2027), (newer, 2028)]
    records = [
        samples.record(number, target=target, measured_at=f"{year}-01-01T00:00:00+00:00")
        for number, (target, year) in enumerate(years)
    ]
    assert choose_target(None, records)[0] == samples.TARGET
    assert choose_target(None, records[1:])[0] == other  # has more, and its latest target


def test_it_says_what_tuning_would_cost(lookup: Run, searched: Path) -> None:
    words = ("--target", "sm90-132x-80gib-700w", "--json")
    (replayed,) = lookup("--seqlen", "512", "--batch", "32", *words).json["lookups"]
    assert not replayed["retuning"]["measured"]
    problem = Problem(256, 512, True, "fp16", 32, 8)
    with Store.open(searched) as store:
        for trial in store.trials(problem):
            store.add_trial(replace(trial, origin="cuda"))
    (near,) = lookup("--seqlen", "512", "--batch", "32", *words).json["lookups"]
    (far,) = lookup("--seqlen", "9999", *words).json["lookups"]
    assert near["retuning"]["measured"]
    assert not far["retuning"]["measured"]
    (long,) = lookup("--seqlen", "1048576", *words).json["lookups"]  # seconds a launch
    assert long["retuning"]["seconds"] > 10 * far["retuning"]["seconds"]
    for found in (near, far):
        assert found["retuning"]["trials"] == 60
        assert found["retuning"]["seconds"] > 15
    assert far["retuning"]["command"].endswith(
        "--seqlen 9999 --causal --dtype fp16 --batch 1 --heads 8"
    )


def test_it_shows_the_snapshot_that_the_runtime_names(lookup: Run, searched: Path) -> None:
    from tuner.snapshot import Snapshot

    digest = Snapshot.load(searched).digest
    assert lookup("--seqlen", "512", "--json").json["snapshot"] == digest
    assert f"snapshot  {digest}: " in lookup("--seqlen", "512").out


def test_on_a_gpu_the_target_is_that_gpu(lookup: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.tuner.cli.conftest import H100

    monkeypatch.setattr(cuda_driver, "target", lambda: H100)
    assert "the GPU of this machine" in lookup("--seqlen", "512").out


def test_several_at_once(tuner: Run, searched: Path) -> None:
    words = ("--hdim", "64,128", "--seqlen", "512,1000", "--target", "sm_90", "--json")
    assert len(tuner("lookup", "--db", searched, *words).json["lookups"]) == 8
