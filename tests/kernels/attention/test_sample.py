"""The sample of a space that the tests on a card take."""

from __future__ import annotations

import pytest

from kernels.attention import registry
from kernels.attention.problem import DTYPES, HEADDIMS, Specialization
from tests.kernels.attention.sample import spread


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", registry.names())
def test_every_choice_of_every_parameter_appears(name, headdim, causal):
    feasible = list(registry.get(name).feasible(Specialization(headdim, causal, "fp16"), 90))
    sample = spread(feasible, "a")
    assert sample == spread(reversed(feasible), "a")
    assert len(sample) == len(set(sample)) == min(8, len(feasible))  # few enough for a card
    for parameter in feasible[0]:
        choices = {config[parameter] for config in feasible}
        assert {config[parameter] for config in sample} == choices, parameter


def test_other_seeds_take_others():
    """So that together they see more of a space than any of them."""
    specialization = Specialization(128, True, "fp16")
    for name in registry.names():
        feasible = list(registry.get(name).feasible(specialization, 90))
        samples = [spread(feasible, f"{dtype} {seed}") for dtype in DTYPES for seed in range(3)]
        assert len(set().union(*samples)) > 4 * len(samples[0])
