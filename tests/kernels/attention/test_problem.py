from __future__ import annotations

from typing import Any

import pytest

from kernels.attention.problem import Problem


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
