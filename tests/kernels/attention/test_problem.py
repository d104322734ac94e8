from __future__ import annotations

from typing import Any

import pytest

from kernels.attention.problem import HEADLINE, Problem, ratio


@pytest.mark.parametrize("name", ["headdim", "seqlen", "batch", "heads"])
@pytest.mark.parametrize("value", [0, -1, True, 64.0, "64", 2**53, 10**400])
def test_a_number_out_of_its_domain_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} (is|has) ") as caught:
        Problem.on_grid(**{"headdim": 64, "seqlen": 512, "causal": True, name: value})
    assert len(str(caught.value)) < 100


def test_the_grid_holds_tokens_and_hidden_size() -> None:
    problem = Problem.on_grid(128, 4096, True)
    assert (problem.batch, problem.heads) == (4, 16)
    assert Problem.on_grid(4096, 10**6, False).batch == 1


def test_a_rate_counts_half_the_work_under_a_mask() -> None:
    full = Problem.on_grid(64, 1024, False)
    assert full.tflops(1.0) == full.flops * 1e-9 == 2 * Problem.on_grid(64, 1024, True).tflops(1.0)


def test_the_headline_shapes_are_of_the_grid() -> None:
    for problem in HEADLINE:
        assert problem == Problem.on_grid(problem.headdim, problem.seqlen, True)


def test_a_ratio_is_that_of_the_larger_to_the_smaller() -> None:
    assert ratio(2, 3) == ratio(3, 2) == 1.5
