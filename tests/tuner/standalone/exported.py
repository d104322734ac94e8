"""Standalone files to test: records to put in, and the module that comes out."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import Problem
from tests.tuner.store import samples
from tuner.record import Record
from tuner.standalone.document import standalone_file
from tuner.target import Hardware
from tuner.trial import Candidate

TARGET = samples.TARGET
OTHER_CARD = replace(TARGET, gpu_name="NVIDIA H200", hardware=Hardware(90, 132, 140, 700))
AMPERE = replace(TARGET, gpu_name="NVIDIA A100", hardware=Hardware(80, 108, 80, 400))
OLDER_TRITON = replace(TARGET, triton="3.5.0")

PARAMETERS = {"block_m": "BLOCK_M", "block_n": "BLOCK_N"}


def candidate_of(written: Any, headdim: int) -> Candidate:
    """What a standalone file means by a config."""
    values = {PARAMETERS.get(name, name): value for name, value in written._asdict().items()}
    if headdim != 256:
        values.pop("sum_late", None)  # which only that headdim has
    return Candidate(type(written).__name__.lower(), Config(values))


def problem(random: random.Random) -> Problem:
    """One of a few that are near one another."""
    return Problem(
        headdim=random.choice((64, 128)),
        seqlen=random.choice((384, 512, 1000, 1024, 2048, 3000)),
        causal=random.random() < 0.5,
        dtype=random.choice(("fp16", "bf16")),
        batch=random.choice((1, 2, 4, 16)),
        heads=random.choice((8, 32)),
    )


def records(seed: int, number: int = 60) -> list[Record]:
    """Records as several cards, Tritons and kernels leave them; no two of one problem and rank."""
    draw = random.Random(seed)
    found: dict[object, Record] = {}
    for index in range(number):
        of = problem(draw)
        target = draw.choice((TARGET, TARGET, OTHER_CARD, OLDER_TRITON))
        template = registry.get(draw.choice(registry.names()))
        config = draw.choice(list(template.feasible(of.specialization, 90)))
        found[of, target] = samples.bare_record(
            median_ms=1 + index / 7,
            problem=of,
            target=target,
            candidate=Candidate(template.name, config),
            template_version=template.version,
        )
    return list(found.values())


def spliced(text: str) -> str:
    """A benchmark that knows nothing of us, with a standalone file in its editable region."""
    harness = Path(__file__).with_name("outside_harness.py").read_text(encoding="utf-8")
    before, _, rest = harness.partition("# BEGIN EDITABLE\n")
    _, _, after = rest.partition("# END EDITABLE\n")
    return f"{before}{text}\n{after}"


def load(text: str, folder: Path) -> ModuleType:
    """The module that a standalone file makes."""
    path = folder / "attention.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("exported_attention", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exported(folder: Path, seed: int = 0) -> ModuleType:
    return load(standalone_file(records(seed), TARGET), folder)
