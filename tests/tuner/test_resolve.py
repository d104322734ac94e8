from __future__ import annotations

from dataclasses import replace

import pytest

from kernels.attention.config import Config
from tuner.resolve import resolve
from tuner.standing import standing

from .search.conftest import H100, ToyTemplate, problem, record, toy  # noqa: F401

OTHER_CARD = replace(H100, hardware=replace(H100.hardware, power_limit_w=350, sm_count=114))
NEWER_TRITON = replace(H100, triton="3.9.0")

pytestmark = pytest.mark.usefixtures("toy")


def source(records: list, what=None, target=H100) -> str:
    return resolve(records, target, what or problem(4096)).source


def test_exact_beats_everything() -> None:
    exact = record(problem(4096), ms=9.0)
    others = [record(problem(2048)), record(problem(4096), target=NEWER_TRITON)]
    resolution = resolve([*others, exact], H100, problem(4096))
    assert (resolution.source, resolution.record) == ("exact", exact)


def test_nearest_is_bounded_in_seqlen_and_in_batch_heads() -> None:
    assert source([record(problem(8192))]) == "nearest"
    assert source([record(problem(2048))]) == "nearest"
    assert source([record(problem(2047))]) == "default"
    assert source([record(problem(8193))]) == "default"
    few = problem(4096, batch=1, heads=1)
    assert source([record(few)], problem(4096, batch=2, heads=2)) == "nearest"
    assert source([record(few)], problem(4096, batch=5, heads=1)) == "default"


def test_of_two_neighbours_the_nearer_seqlen_serves() -> None:
    near, far = record(problem(4096)), record(problem(2048))
    assert resolve([far, near], H100, problem(3500)).record == near
    assert resolve([far, near], H100, problem(2500)).record == far


def test_another_mask_dtype_or_headdim_is_no_neighbour() -> None:
    others = [
        record(problem(4096, causal=False)),
        record(problem(4096, dtype="bf16")),
        record(problem(4096, headdim=64)),
    ]
    assert source(others) == "default"


def test_other_versions_are_stale_and_rank_below_a_fresh_neighbour() -> None:
    by_triton = record(problem(4096), target=NEWER_TRITON)
    by_kernel = record(problem(4096), template_version="ba9876543210")
    assert source([by_triton]) == "stale"
    assert source([by_kernel]) == "stale"
    assert "Triton 3.9.0" in resolve([by_triton], H100, problem(4096)).reason
    assert source([by_triton, record(problem(8192))]) == "nearest"


def test_other_hardware_of_the_same_capability_is_family() -> None:
    family = record(problem(4096), target=OTHER_CARD)
    assert source([family]) == "family"
    assert source([family, record(problem(4096), target=NEWER_TRITON)]) == "stale"
    ampere = replace(H100, hardware=replace(H100.hardware, capability=80))
    assert source([record(problem(4096), target=ampere)]) == "default"


def test_the_marketing_name_is_a_label() -> None:
    renamed = replace(H100, gpu_name="NVIDIA H100 SXM5")
    assert source([record(problem(4096), target=renamed)]) == "exact"


def test_nothing_near_says_why() -> None:
    resolution = resolve([record(problem(512))], H100, problem(4096))
    assert resolution.source == "default"
    assert "2×" in resolution.reason
    assert resolution.candidate.config == ToyTemplate().default(problem(), 90)


@pytest.mark.parametrize(
    "config",
    [
        Config(BLOCK_M=1 << 20, BLOCK_N=64, num_stages=3, flag=True),
        Config(BLOCK_M=256, BLOCK_N=128, num_stages=3, flag=True),
        Config(BLOCK_M="; drop table", BLOCK_N=64, num_stages=3, flag=True),
        Config(num_warps=4),
    ],
)
def test_a_hostile_config_never_serves(config: Config) -> None:
    assert source([record(problem(4096), config=config)]) == "default"


def test_a_record_of_an_unknown_template_is_passed_over() -> None:
    strange = record(problem(4096))
    strange = replace(strange, candidate=replace(strange.candidate, template="lost"), uid="")
    assert source([strange]) == "default"


def test_no_template_is_an_error_with_the_reason() -> None:
    volta = replace(H100, hardware=replace(H100.hardware, capability=70))
    with pytest.raises(LookupError, match="toy: needs sm_80"):
        resolve([], volta, problem())


def test_standing_a_verdict_replaces_what_it_raced_though_its_figure_is_lower() -> None:
    old = record(problem(4096), ms=1.0)
    verdict = record(problem(4096), ms=1.1, supersedes=(old.uid,))
    for order in ([old, verdict], [verdict, old]):
        assert list(standing(order).values()) == [verdict]


def test_standing_the_faster_of_two_that_never_met() -> None:
    fast, slow = record(problem(4096), ms=1.0), record(problem(4096), ms=1.1)
    assert list(standing([slow, fast]).values()) == [fast]
    replay = record(problem(4096), ms=0.5, origin="replay")
    assert list(standing([replay, slow]).values()) == [slow]


def test_standing_keeps_one_per_triton_version_and_card() -> None:
    records = [
        record(problem(4096)),
        record(problem(4096), target=NEWER_TRITON),
        record(problem(4096), target=OTHER_CARD),
    ]
    assert len(standing(records)) == 3


def test_uid_depends_on_content_alone() -> None:
    assert record(problem(4096)).uid == record(problem(4096)).uid
    assert record(problem(4096)).uid != record(problem(4096), ms=1.0001).uid


def test_a_record_whose_config_is_refused_is_named_as_the_reason() -> None:
    broken = record(problem(4096), config=Config(BLOCK_M=99))
    resolution = resolve([broken], H100, problem(4096))
    assert resolution.source == "default"
    assert resolution.reason == (
        "a record of this problem is there, but the toy kernel refuses its config: not in the space"
    )
    beside = resolve([broken], H100, problem(2048))
    assert beside.reason.startswith(f"the neighbour {problem(4096)} is there, but")
    good = record(problem(2048))
    assert resolve([broken, good], H100, problem(4096)).record == good


def test_a_record_from_before_a_parameter_was_added_serves_with_the_choice_it_stands_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = record(
        problem(4096),
        Config(BLOCK_M=128, BLOCK_N=64, num_stages=3),
        template_version="ba9876543210",
    )
    assert source([older]) == "default"
    monkeypatch.setattr(ToyTemplate, "added", {"flag": True})
    resolution = resolve([older], H100, problem(4096))
    assert (resolution.source, resolution.record) == ("stale", older)
    grown = Config(BLOCK_M=128, BLOCK_N=64, num_stages=3, flag=True)
    assert resolution.candidate.config == grown
    # What a config says itself is left alone, and what is not in the space is still refused.
    own = record(problem(4096), Config(grown, flag=False))
    assert resolve([own], H100, problem(4096)).candidate.config["flag"] is False
    alien = record(problem(4096), Config(BLOCK_M=128, BLOCK_N=64))
    assert source([alien]) == "default"
