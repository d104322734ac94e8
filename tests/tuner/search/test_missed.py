from __future__ import annotations

from dataclasses import replace

from kernels.attention.problem import Problem
from tuner.search.missed import covered, representatives

P = Problem(64, 1000, True, "fp16", 2, 8)


def test_a_seqlen_that_grows_token_by_token_is_covered_by_few() -> None:
    missed = [replace(P, seqlen=seqlen) for seqlen in range(1, 4097)]
    chosen = representatives(missed)
    assert len(chosen) < 80
    assert all(covered(problem, chosen) for problem in missed)
    assert chosen[0].seqlen == 4096


def test_what_is_tuned_already_covers() -> None:
    assert representatives([P], [replace(P, seqlen=1050)]) == []
    assert representatives([P], [replace(P, seqlen=1200)]) == [P]
    assert representatives([P], [replace(P, batch=4)]) == [P]


def test_others_of_mask_headdim_and_dtype_do_not_cover() -> None:
    others = [replace(P, causal=False), replace(P, headdim=128), replace(P, dtype="bf16")]
    assert set(representatives([P, *others])) == {P, *others}
    assert representatives([P, *others]) == representatives([*others[::-1], P])
