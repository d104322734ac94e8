"""What is in a standalone file, and that it resolves as the runtime does."""

from __future__ import annotations

import ast
import random
import re
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
from tuner.standalone.document import standalone_file
from tuner.standalone.forms import forms
from tuner.target import Target
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


@pytest.mark.parametrize(
    ("seed", "target"),
    [(0, exported.TARGET), (1, exported.TARGET), (2, exported.AMPERE)],
    ids=["sm_90", "sm_90 too", "sm_80"],
)
def test_is_clean_and_formatted(seed: int, target: Target) -> None:
    text = standalone_file(exported.records(seed), target)
    found = ruff("check", text=text)
    assert found.returncode == 0, found.stdout
    found = ruff("format", "--diff", text=text)
    assert found.returncode == 0, found.stdout
    assert f"\n# Configs for {target.gpu_name} (sm_{target.hardware.capability}, " in text


def test_without_records_it_is_clean_too() -> None:
    text = standalone_file([], exported.TARGET)
    assert ruff("check", text=text).returncode == 0
    assert ruff("format", "--diff", text=text).returncode == 0


def test_it_can_stand_in_the_middle_of_a_benchmark(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    text = exported.spliced(standalone_file(exported.records(0), exported.TARGET))
    module = exported.load(text, tmp_path)
    assert module.main.__globals__["custom_attention_forward"] is module.custom_attention_forward
    assert module.custom_attention_forward.__doc__.startswith("softmax(sm_scale")
    assert module.SHAPES[0] == (4, 32, 4096, 64)


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


def functions(text: str) -> dict[str, str]:
    """Functions, and methods as Class.method, without decorators and annotations."""
    found = {}
    for top in ast.parse(text).body:
        within = f"{top.name}." if isinstance(top, ast.ClassDef) else ""
        for node in top.body if isinstance(top, ast.ClassDef) else [top]:
            if isinstance(node, ast.FunctionDef):
                arguments = [argument.arg for argument in node.args.args]
                body = ast.dump(ast.Module(node.body, []))
                found[f"{within}{node.name}"] = f"{arguments} {body}"
    return found


HOPPER = ("kernel", "pipeline", "ptx", "schedule", "softmax")


@pytest.mark.parametrize(
    ("target", "own", "sources"),
    [
        (exported.TARGET, "_custom_attn_fwd", [f"hopper_{name}.py" for name in HOPPER]),
        (exported.TARGET, "_custom_attn_fwd_portable", ["portable_kernel.py"]),
        (exported.AMPERE, "_custom_attn_fwd", ["portable_kernel.py"]),
    ],
)
def test_the_kernels_are_those_of_the_repository(
    target: Target, own: str, sources: list[str]
) -> None:
    text = standalone_file([], target)
    if own.endswith("_portable"):
        for name in ("rescale", "LN_2"):  # which the Hopper template has too
            text = re.sub(rf"\b{name}\b", f"hopper_{name}", text)
            text = re.sub(rf"\bportable_kernel_{name}\b", name, text, flags=re.IGNORECASE)
    there = functions(text)
    there["attention_forward"] = there.pop(own)
    for source in sources:
        here = functions((ROOT / "kernels/attention" / source).read_text(encoding="utf-8"))
        assert here
        assert here.items() <= there.items()


def test_it_has_the_kernels_that_serve_the_target() -> None:
    both = standalone_file([], exported.TARGET)
    assert "def _custom_attn_fwd(\n    q, k, v, out, lse, out_batch: gl.int64" in both
    assert "def _custom_attn_fwd_portable(" in both
    one = standalone_file([], exported.AMPERE)
    assert "gluon" not in one
    assert "def _custom_attn_fwd(" in one
    assert "_custom_attn_fwd_portable" not in one


def test_every_template_has_a_form() -> None:
    assert [form.template for form in forms(90)] == list(registry.names())
    for form in forms(90):
        of = Problem.on_grid(256, 512, True)
        space = registry.get(form.template).space(of.specialization)
        assert sorted(form.parameters) == sorted(space)


def test_equal_records_give_equal_texts_in_any_order() -> None:
    records = exported.records(1)
    shuffled = random.Random(2).sample(records, len(records))
    assert standalone_file(records, exported.TARGET) == standalone_file(shuffled, exported.TARGET)


def test_a_record_that_no_template_serves_is_left_out() -> None:
    records = exported.records(1)
    strange = replace(records[0], problem=replace(records[0].problem, headdim=80), uid="")
    text = standalone_file([*records, strange], exported.TARGET)
    assert text == standalone_file(records, exported.TARGET)


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


@pytest.mark.parametrize("seed", range(4))
def test_resolves_as_the_runtime_does(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    records = exported.records(seed)
    module = exported.load(standalone_file(records, exported.TARGET), tmp_path)
    draw = random.Random(100 + seed)
    sources = set()
    for _ in range(300):
        of = exported.problem(draw)
        of = replace(of, seqlen=of.seqlen + draw.choice((0, 0, 1, 700)))
        there = resolve.resolve(records, exported.TARGET, of)
        found = module.choose(90, of.headdim, of.causal, of.dtype, of.seqlen, of.batch, of.heads)
        assert exported.candidate_of(found, of.headdim) == there.candidate, there
        sources.add((there.source, there.candidate.template))
    assert {source for source, _ in sources} == {
        "exact", "nearest", "stale", "family", "default",
    }  # fmt: skip
    assert {("exact", "portable"), ("exact", "hopper"), ("default", "hopper")} <= sources


@pytest.mark.parametrize(
    ("target", "preferred"),
    [(exported.TARGET, ("hopper", "portable")), (exported.AMPERE, ("portable",))],
    ids=["sm_90", "sm_80"],
)
def test_defaults_are_those_of_the_templates(
    target: Target, preferred: tuple[str, ...], tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    module = exported.load(standalone_file([], target), tmp_path)
    for capability in supported():
        for headdim in (64, 128, 256):
            for seqlen in (1, 1023, 1024, 1025, 2047, 2048, 4095, 4096, 10**6):
                for causal in (True, False):
                    for dtype in ("fp16", "bf16"):
                        of = Problem.on_grid(headdim, seqlen, causal, dtype)
                        template = next(
                            template
                            for template in map(registry.get, preferred)
                            if template.supports(of.specialization, capability) is None
                        )
                        found = module.choose(capability, headdim, causal, dtype, seqlen, 3, 5)
                        assert exported.candidate_of(found, headdim) == Candidate(
                            template.name, template.default(of, capability)
                        )
    with pytest.raises(
        ValueError, match=r"q has headdim 80, but must have one of \[64, 128, 256\]"
    ):
        module.choose(90, 80, True, "fp16", 128, 1, 1)
    with pytest.raises(
        RuntimeError, match="q is on a device of sm_75, but must be on one of sm_80"
    ):
        module.choose(75, 64, True, "fp16", 128, 1, 1)
