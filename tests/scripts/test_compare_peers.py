from __future__ import annotations

from dataclasses import replace

import pytest

from kernels.attention.problem import HEADLINE
from scripts import compare_peers
from scripts.compare_peers import flex, headline, text
from tests.tuner.store.samples import TARGET
from tuner.bench import Lap, Report, Row
from tuner.search.plan import plan
from tuner.store.errors import StoreError


def row(problem, ours, **peers):
    def lap(tflops):
        return Lap(
            problem.flops / tflops / 1e9, 0.02, tflops, (1.0,), tflops - 3, (1.0, 1.02), tflops - 5
        )

    rounds = {name: lap(tflops) for name, tflops in {"ours": ours, **peers}.items()}
    return Row(problem, 1.0, 400.0, 1.0, 1.0, 1e-4, True, rounds, {"fa4": "not so"}, 1700, 690)


def test_the_tables_have_spread_clock_power_and_the_ratio_to_the_best_peer():
    rows = (row(HEADLINE[0], 600.0, cudnn=500.0, fa3=400.0), row(HEADLINE[1], 500.0, cudnn=500.0))
    lines = text(Report(TARGET, "2026-11-28T00:00:00+00:00", rows))
    assert (
        "| problem | ours | cudnn | fa3 | ours / best | SM MHz | W | harness | max diff |" in lines
    )
    assert (
        f"| {HEADLINE[0]} | 600 ± 6 | 500 ± 5 | 400 ± 4 | 1.20 | 1700 | 690 | 400 | 1.0e-04 |"
    ) in lines
    assert any("1.095 in the geometric mean, 1.000 to 1.200" in line for line in lines)
    assert any(line.startswith(f"| {HEADLINE[1]} | 497 ± ") for line in lines)
    assert any(line.startswith(f"| {HEADLINE[1]} | 495 | 495 | – | 1.00") for line in lines)
    assert lines[-1] == f"{HEADLINE[1]}: no fa4: not so"


def test_the_tables_are_there_where_the_file_cannot_be_written(monkeypatch, tmp_path, capsys):
    def full(path, content):
        raise StoreError(f"{path} cannot be written: no space")

    report = Report(TARGET, "2026-11-28T00:00:00+00:00", (row(HEADLINE[0], 600.0, cudnn=500.0),))
    monkeypatch.setattr(compare_peers, "has_gpu", lambda: True)
    monkeypatch.setattr(compare_peers, "bench", lambda **_: report)
    monkeypatch.setattr(compare_peers.refusals, "write_atomically", full)
    with pytest.raises(SystemExit) as ended:
        compare_peers.main(["--output", str(tmp_path / "peers.json")])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out.splitlines() == text(report)
    (line,) = said.err.splitlines()
    assert line.endswith("peers.json cannot be written: no space")


def test_the_problems():
    assert headline(["bf16"]) == [replace(problem, dtype="bf16") for problem in HEADLINE]
    assert len(set(plan(dtypes=["fp16", "bf16"]))) == 72


def test_flex_sees_what_a_causal_mask_shows(monkeypatch):
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from tuner.evaluate.inputs import Inputs

    monkeypatch.setattr(
        compare_peers, "_compiled_flex", lambda: (flex_attention, create_block_mask)
    )
    q, k, v = torch.randn(3, 1, 2, 48, 16)
    for causal in (True, False):
        out = flex(Inputs("", q, k, v, q, causal))["flex"]()
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
