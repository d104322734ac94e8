"""Peers beside SDPA: found where they are installed, passed over where they are not."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

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


@pytest.mark.parametrize("causal", [True, False])
def test_a_library_gets_rows_before_heads(monkeypatch, causal) -> None:
    module = ModuleType("fa3_fwd_interface")

    def flash_attn_func(q, k, v, causal):
        mine = (tensor.transpose(1, 2) for tensor in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(*mine, is_causal=causal)
        return out.transpose(1, 2)

    module.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", module)
    given = inputs(causal)
    launches = peers.launches(given)
    assert list(launches) == ["cudnn", "fa2", "fa3"]
    expected = peers.sdpa(None, given.q, given.k, given.v, causal)
    torch.testing.assert_close(launches["fa3"]().transpose(1, 2), expected)


def test_a_broken_library_is_as_good_as_absent(monkeypatch) -> None:
    for names in peers.LIBRARIES.values():
        for name in names:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))  # without flash_attn_func
    assert list(peers.launches(inputs(True))) == ["cudnn", "fa2"]
