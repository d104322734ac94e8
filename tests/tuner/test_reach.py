"""Seqlens within the reach of some records and beyond it: what serves them, and what that costs."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")

import tuner  # noqa: E402
from kernels.attention import registry  # noqa: E402
from kernels.attention.config import Config  # noqa: E402
from kernels.attention.problem import Problem  # noqa: E402
from kernels.attention.reference import attention_reference  # noqa: E402
from tests.tuner.stand_in import H100  # noqa: E402
from tests.tuner.test_plans import PROBLEM, other_config, record, tensors, write  # noqa: E402
from tuner import device, plans  # noqa: E402

_load = plans._load  # before a stand-in takes its place

# A hundred: at random, and at the borders of what two records, of 256 and 1024, reach and share.
_BORDERS = [1, 127, 128, 129, 511, 512, 513, 2047, 2048, 2049]
SEQLENS = _BORDERS + random.Random(0).sample(sorted(set(range(2, 4097)) - set(_BORDERS)), 90)


def test_a_hundred_seqlens_cost_one_compilation_for_each_config(
    stand_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = pytest.importorskip("triton", reason="compiles")
    monkeypatch.setattr("tuner.store.layers.shipped_database", lambda: None)
    path = tmp_path / "mine.db"
    of = [replace(PROBLEM, seqlen=seqlen) for seqlen in (256, 1024)]
    configs = [other_config(number=number) for number in (7, 20)]
    write(path, *map(record, of, configs))
    before = path.read_bytes()
    compiled: list[object] = []
    real = triton.compile
    monkeypatch.setattr(triton, "compile", lambda *a, **b: compiled.append(a) or real(*a, **b))
    monkeypatch.setattr(plans, "_load", _load)
    _load.cache_clear()
    tuner.use(path)
    served = [tuner.lookup(64, seqlen, batch=1, heads=2, target=H100) for seqlen in SEQLENS]
    # By which of the two records, if by one.
    shares = {0: range(128, 512), 1: range(513, 2049)}
    for seqlen, resolution in zip(SEQLENS, served):
        if seqlen == 512:  # as far from one as from the other
            assert resolution.candidate.config in configs
            continue
        (config,) = [configs[i] for i, share in shares.items() if seqlen in share] or [None]
        assert resolution.source == ("default" if config is None else "nearest"), seqlen
        assert config is None or resolution.candidate.config == config, seqlen
    kinds = {resolution.candidate for resolution in served}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for seqlen, resolution in zip(SEQLENS, served):
                plan = plans.plan_for(*tensors(seqlen), True, False)
                assert plan.binary.config == resolution.candidate.config
    assert len(compiled) == len(kinds)
    assert [warning.category for warning in caught] == [tuner.UntunedWarning]
    assert path.read_bytes() == before  # nothing was tuned


@pytest.mark.gpu
def test_a_hundred_seqlens_cost_one_compilation_for_each_config_on_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton

    target = device.detect(0)
    template, capability = registry.get("portable"), target.hardware.capability
    problems = [Problem(64, seqlen, True, "fp16", 1, 2) for seqlen in (256, 1024)]
    configs = [
        Config(template.default(of, capability), heads_together=1, defer_rescale=defer)
        for of, defer in zip(problems, (False, True))
    ]  # both are of every card's space, and no default
    write(
        tmp_path / "mine.db",
        *(record(of, config, target=target) for of, config in zip(problems, configs)),
    )
    compiled: list[object] = []
    real: Callable[..., object] = triton.compile
    monkeypatch.setattr(triton, "compile", lambda *a, **b: compiled.append(a) or real(*a, **b))
    monkeypatch.setattr(plans, "_warned", set())
    plans._load.cache_clear()
    tuner.use(tmp_path / "mine.db")
    try:
        served = {s: tuner.lookup(64, s, True, "fp16", 1, 2, target) for s in SEQLENS}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for seqlen in SEQLENS:
                q, k, v = torch.randn(3, 1, 2, seqlen, 64, dtype=torch.float16, device="cuda")
                out = tuner.custom_attention_forward(q, k, v)
                expected, _ = attention_reference(q, k, v, 1 / 8, True)
                torch.testing.assert_close(out.float(), expected, atol=1e-2, rtol=1e-2)
    finally:
        tuner.use()
    assert {resolution.source for resolution in served.values()} == {"nearest", "default"}
    kinds = {resolution.candidate for resolution in served.values()}
    assert set(configs) < {candidate.config for candidate in kinds}
    assert len(compiled) == len(kinds)
    assert [w.category for w in caught] == [tuner.UntunedWarning]
