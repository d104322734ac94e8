"""Peers beside SDPA: found where they are installed, passed over where they are not."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from fake_workers import laboratory

from kernels.attention.config import Config
from kernels.attention.problem import Problem
from tuner.trial import Candidate

pytest.importorskip("torch")

import torch

from tuner.evaluate import peers
from tuner.evaluate.inputs import Inputs


@pytest.fixture(autouse=True)
def nothing_found_yet():
    peers.library.cache_clear()
    yield
    peers.library.cache_clear()


def inputs(causal: bool) -> Inputs:
    q, k, v = torch.randn(3, 2, 4, 32, 16)
    return Inputs("", q, k, v, torch.empty_like(q), causal)


@pytest.fixture
def fa3(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashAttention-3, as far as it can be told from here."""
    module = ModuleType("fa3_fwd_interface")

    def flash_attn_func(q, k, v, causal):
        mine = (tensor.transpose(1, 2) for tensor in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(*mine, is_causal=causal)
        return out.transpose(1, 2)

    module.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", module)


@pytest.mark.usefixtures("fa3")
@pytest.mark.parametrize("causal", [True, False])
def test_a_library_gets_rows_before_heads(causal: bool) -> None:
    given = inputs(causal)
    launches = peers.launches(given)
    assert list(launches) == ["cudnn", "fa2", "fa3"]
    expected = peers.sdpa(None, given.q, given.k, given.v, causal)
    torch.testing.assert_close(launches["fa3"]().transpose(1, 2), expected)


@pytest.mark.usefixtures("fa3")
def test_a_race_goes_on_without_a_peer_whose_copies_have_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(self: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    of_this = laboratory()

    def launches(given: Inputs) -> dict[str, Any]:
        monkeypatch.setattr(torch.Tensor, "contiguous", full)
        return peers.launches(given)

    of_this._peer_launches = launches
    problem, right = Problem(64, 64, True, "fp16", 1, 1), Candidate("fake", Config(kind="right"))
    race = of_this.race(problem, [right], 2, 0.0)
    assert race.absent["fa3"] == "OutOfMemoryError: CUDA out of memory."
    assert list(race.entrants) == [right]


def test_a_broken_library_is_as_good_as_absent(monkeypatch) -> None:
    for names in peers.LIBRARIES.values():
        for name in names:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))  # without flash_attn_func
    assert list(peers.launches(inputs(True))) == ["cudnn", "fa2"]
