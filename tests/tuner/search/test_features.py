from __future__ import annotations

import numpy as np
import pytest

from kernels.attention import registry
from kernels.attention.capability import limits
from kernels.attention.config import Config
from kernels.attention.problem import HEADDIMS, Specialization
from tuner.occupancy import blocks_per_sm
from tuner.search.candidates import enumerate_candidates
from tuner.search.features import candidate_features, parameter_features
from tuner.trial import Candidate

from .conftest import H100, ToyTemplate, problem


def test_numbers_are_ordered_and_wide_ones_logarithmic() -> None:
    points = [{"tile": tile, "stages": stages} for tile in (16, 32, 64) for stages in (1, 2, 3)]
    found = parameter_features(points)
    assert found[:, 0].tolist() == [0.0] * 3 + [0.5] * 3 + [1.0] * 3
    assert found[:3, 1].tolist() == [0.0, 0.5, 1.0]


def test_sizes_between_powers_of_two_also_tell_what_divides_them() -> None:
    found = parameter_features([{"x": x} for x in (16, 48, 32, 96, 72, 64)])
    assert found[:, 1].tolist() == pytest.approx([0.5, 0.5, 1.0, 1.0, 0.0, 1.0])
    assert parameter_features([{"x": x} for x in (16, 32, 64, 128, 256)]).shape == (5, 1)


def test_words_are_as_far_apart_as_the_ends_of_a_range() -> None:
    found = parameter_features([{"layout": word} for word in ("a", "b", "c")])
    distances = [np.linalg.norm(found[i] - found[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert distances == pytest.approx([1.0] * 3)


def test_what_never_varies_says_nothing() -> None:
    assert parameter_features([{"a": 1, "b": True}, {"a": 1, "b": False}]).shape == (2, 1)
    assert parameter_features([{"a": 1}, {"a": 1}]).shape == (2, 0)


def test_a_missing_parameter_stands_in_the_middle() -> None:
    found = parameter_features([{"a": 1}, {"a": 3}, {}])
    assert found[:, 0].tolist() == [0.0, 1.0, 0.5]


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("causal", [False, True])
def test_the_portable_template_has_features_beyond_its_parameters(
    headdim: int, causal: bool
) -> None:
    what = problem(headdim=headdim, causal=causal)
    feasible = enumerate_candidates(what.specialization, 90, ("portable",)).feasible
    found = candidate_features(feasible, what, H100.hardware)
    assert found.shape[1] >= parameter_features([c.config for c in feasible]).shape[1] + 4
    assert found.min() == 0.0
    assert found.max() == 1.0
    assert len(np.unique(found, axis=0)) == len(feasible)


def test_a_template_that_estimates_nothing_has_its_parameters_only(toy: ToyTemplate) -> None:
    what = problem()
    feasible = enumerate_candidates(what.specialization, 90).feasible
    assert candidate_features(feasible, what, H100.hardware).shape == (len(feasible), 4)


def test_templates_share_columns_and_are_told_apart(toy: ToyTemplate) -> None:
    what = problem()
    portable = enumerate_candidates(what.specialization, 90, ("portable",)).feasible
    both = [*portable, Candidate("toy", Config(BLOCK_M=64, BLOCK_N=32, num_stages=2, flag=False))]
    found = candidate_features(both, what, H100.hardware)
    assert np.isfinite(found).all()
    assert len(np.unique(found, axis=0)) == len(both)


def test_the_estimate_follows_the_config() -> None:
    template = registry.get("portable")
    specialization = Specialization(128, True, "fp16")
    config = template.default(problem(), 90)
    estimate = template.estimate(specialization, config, 90)
    assert estimate is not None
    more = template.estimate(specialization, Config({**config, "num_stages": 3}), 90)
    assert more is not None
    assert more.shared_memory > estimate.shared_memory
    free = template.estimate(specialization, Config({**config, "maxnreg": 0}), 90)
    assert free is not None
    assert free.registers >= estimate.registers


def test_the_estimates_of_the_hopper_template_are_what_its_blocks_take() -> None:
    template = registry.get("hopper")
    specialization = Specialization(128, True, "fp16")
    config = template.default(problem(), 90)
    estimate = template.estimate(specialization, config, 90)
    assert estimate is not None
    # q twice, k and v two stages each, in 16 bits, and what little there is besides
    tiles = 2 * 128 * (2 * 128 + 2 * 2 * 128)
    assert tiles < estimate.shared_memory < tiles + 8192
    assert estimate.shared_memory <= limits(90).shared_memory
    assert blocks_per_sm(estimate, template.block_warps(config), 90) == 1
    tall = template.estimate(specialization, Config({**config, "consumers": 3}), 90)
    assert tall is not None
    assert tall.registers < estimate.registers
    assert tall.shared_memory > estimate.shared_memory


def test_what_is_known_of_the_hopper_template_tells_its_configs_apart() -> None:
    what = problem()
    feasible = enumerate_candidates(what.specialization, 90, ("hopper",)).feasible
    plain = parameter_features([dict(candidate.config) for candidate in feasible])
    found = candidate_features(feasible, what, H100.hardware)
    assert np.isfinite(found).all()
    assert found.shape[1] > plain.shape[1]
