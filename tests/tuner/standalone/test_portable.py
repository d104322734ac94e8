"""The portable template as one file: what is in it, and that it resolves as the runtime does."""

from __future__ import annotations

import ast
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.attention import registry
from kernels.attention.capability import supported
from kernels.attention.problem import Problem
from tests.tuner.standalone import exported
from tests.tuner.store import samples
from tuner import resolve
from tuner.record import Record, Rival
from tuner.standalone.portable import standalone_file
from tuner.trial import Candidate

ROOT = Path(__file__).parents[3]


def ruff(*words: str, text: str) -> subprocess.CompletedProcess[str]:
    binary = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    if binary is None:
        pytest.skip("needs ruff")
    return subprocess.run(
        [binary, *words, "--config", str(ROOT / "pyproject.toml"), "-"],
        input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_is_clean_and_formatted(seed: int) -> None:
    text = standalone_file(exported.records(seed), exported.TARGET)
    found = ruff("check", text=text)
    assert found.returncode == 0, found.stdout
    found = ruff("format", "--diff", text=text)
    assert found.returncode == 0, found.stdout
    assert "\n# Configs for NVIDIA H100 80GB HBM3 (sm_90, 132 SMs" in text


def test_without_records_it_is_clean_too() -> None:
    text = standalone_file([], exported.TARGET)
    assert ruff("check", text=text).returncode == 0
    assert ruff("format", "--diff", text=text).returncode == 0


def test_imports_torch_triton_and_the_standard_library_alone() -> None:
    tree = ast.parse(standalone_file(exported.records(0), exported.TARGET))
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            roots.add(node.module.partition(".")[0])
    assert roots - sys.stdlib_module_names == {"torch", "triton"}


def test_the_kernel_is_that_of_the_repository() -> None:
    def functions(text: str) -> dict[str, str]:
        found = {}
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                name = node.name.replace("_custom_attn_fwd", "attention_forward")
                found[name] = ast.dump(ast.Module([*node.args.args, *node.body], []))
        return found

    here = functions((ROOT / "kernels/attention/portable_kernel.py").read_text(encoding="utf-8"))
    there = functions(standalone_file([], exported.TARGET))
    assert here.items() <= there.items()


def test_equal_records_give_equal_texts_in_any_order() -> None:
    records = exported.records(1)
    shuffled = random.Random(2).sample(records, len(records))
    assert standalone_file(records, exported.TARGET) == standalone_file(shuffled, exported.TARGET)


def test_what_a_database_says_stays_in_comments() -> None:
    target = replace(
        exported.TARGET,
        gpu_name='"""\nraise SystemExit  # coding: utf-7\u2028x = 1',
        triton="\r\n3",
    )
    text = standalone_file([samples.bare_record(target=target)], target)
    tree = ast.parse(text)
    assert not any(isinstance(node, ast.Raise) for node in tree.body)
    assert isinstance(tree.body[0], ast.Expr)  # the docstring
    assert "raise SystemExit" in text
    assert ruff("check", text=text).returncode == 0


def hopper_record(of: Problem, *rivals: str) -> Record:
    return samples.bare_record(
        problem=of,
        candidate=Candidate("hopper", registry.get("hopper").default(of, 90)),
        template_version=registry.get("hopper").version,
        rivals=tuple(Rival(name, 1.5, 0.01) for name in rivals),
    )


def test_where_another_template_won_the_best_of_this_one_stands_in(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    of = Problem.on_grid(64, 2048, True)
    configs = list(registry.get("portable").feasible(of.specialization, 90))
    names = [f"portable({config})" for config in configs[5:7]]
    record = hopper_record(of, "hopper(stages=2)", "portable(BLOCK_M=3)", *names)
    text = standalone_file([record], exported.TARGET)
    assert "another template won" not in text  # the first of this template is not usable
    text = standalone_file([replace(record, rivals=record.rivals[2:])], exported.TARGET)
    assert "In 1 of them another template won" in text
    chosen = exported.load(text, tmp_path).choose(90, 64, True, "fp16", 2048, of.batch, of.heads)
    assert chosen.block_m == configs[5]["BLOCK_M"]
    assert chosen.maxnreg == configs[5]["maxnreg"]
    assert chosen.heads_together == configs[5]["heads_together"]


FIELDS = {"block_m": "BLOCK_M", "block_n": "BLOCK_N"}


@pytest.mark.parametrize("seed", range(4))
def test_resolves_as_the_runtime_does(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    records = exported.records(seed)
    module = exported.load(standalone_file(records, exported.TARGET), tmp_path)
    template = registry.get("portable")
    draw = random.Random(100 + seed)
    sources = set()
    for _ in range(300):
        of = exported.problem(draw)
        of = replace(of, seqlen=of.seqlen + draw.choice((0, 0, 1, 700)))
        there = resolve.resolve(records, exported.TARGET, of)
        config = there.candidate.config if there.record else template.default(of, 90)
        found = module.choose(90, of.headdim, of.causal, of.dtype, of.seqlen, of.batch, of.heads)
        for name, value in found._asdict().items():
            assert config.get(FIELDS.get(name, name), False) == value, there
        sources.add(there.source)
    assert sources == {"exact", "nearest", "stale", "family", "default"}


def test_defaults_are_those_of_the_template(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    module = exported.load(standalone_file([], exported.TARGET), tmp_path)
    template = registry.get("portable")
    for capability in supported():
        for headdim in (64, 128, 256):
            for seqlen in (1, 1023, 1024, 1025, 2048, 10**6):
                for causal in (True, False):
                    for dtype in ("fp16", "bf16"):
                        of = Problem.on_grid(headdim, seqlen, causal, dtype)
                        config = template.default(of, capability)
                        found = module.choose(capability, headdim, causal, dtype, seqlen, 3, 5)
                        for name, value in found._asdict().items():
                            assert config.get(FIELDS.get(name, name), False) == value
    with pytest.raises(
        ValueError, match=r"q has headdim 80, but must have one of \[64, 128, 256\]"
    ):
        module.choose(90, 80, True, "fp16", 128, 1, 1)
    with pytest.raises(
        RuntimeError, match="q is on a device of sm_75, but must be on one of sm_80"
    ):
        module.choose(75, 64, True, "fp16", 128, 1, 1)
