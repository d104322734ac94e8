"""A command line in this process or as a child, and small recorded spaces to replay."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import Problem
from kernels.attention.template import Resources
from tuner.cli.app import app
from tuner.evaluate.space_file import file_name, write_space
from tuner.store.publish import publish
from tuner.target import Hardware, Target
from tuner.trial import Candidate, Measurement, Outcome, Trial

ROOT = Path(__file__).resolve().parents[3]
H100 = Target(Hardware(90, 132, 80, 700), "NVIDIA H100 80GB HBM3", "3.6.0", "2.11.0", "580.95")
RECORDED = (Problem.on_grid(256, 512, True), Problem.on_grid(256, 512, False))


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "shipped.db"
    publish(path, [])
    return path


@pytest.fixture(autouse=True)
def nothing_shipped(empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty shipped database, in this process: what we ship changes."""
    empty = Path(shutil.copy(empty_database, tmp_path))
    monkeypatch.setattr("tuner.store.layers.shipped_database", lambda: empty)
    monkeypatch.setattr("tuner.store.locations.shipped_database", lambda: empty)


@pytest.fixture(autouse=True)
def no_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No width but what a test sets: workers of pytest-xdist have one of 80."""
    monkeypatch.delenv("COLUMNS", raising=False)


def run(*words: str | Path) -> Said:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return Said(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def tuner() -> Callable[..., Said]:
    """Runs a command in this process, through Typer's runner."""
    return run


# Runs the command line where the modules in BLOCKED are not installed, and says at the end which of
# those in WATCHED were imported.
_CHILD = """
import json, os, sys

class Without:
    def __init__(self, finders, names):
        self.finders, self.names = finders, names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            return None
        found = (finder.find_spec(name, path, target) for finder in self.finders)
        return next((spec for spec in found if spec), None)

    def find_distributions(self, *context):
        for finder in self.finders:
            for found in getattr(finder, "find_distributions", lambda *_: ())(*context):
                if found.metadata["Name"] not in self.names:
                    yield found

    def invalidate_caches(self):
        pass

sys.meta_path[:] = [Without(list(sys.meta_path), os.environ["BLOCKED"].split(","))]
from tuner.cli import main
try:
    main()
finally:
    sys.stdout.flush()
    with open(os.environ["REPORT"], "w") as report:
        watched = os.environ["WATCHED"].split(",")
        json.dump([name for name in watched if name in sys.modules], report)
"""


@dataclass(frozen=True)
class Child(Said):
    """What a child printed, its exit code, and which watched modules it imported."""

    imported: list[str]


@pytest.fixture
def child(tmp_path: Path) -> Callable[..., Child]:
    """Runs a command as a process of its own."""

    def run(
        *words: str | Path, blocked: str = "none", environment: Mapping[str, str] | None = None
    ) -> Child:
        report = tmp_path / "imported.json"
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, *map(str, words)],
            cwd=ROOT,
            env={
                **os.environ,
                "BLOCKED": blocked,
                "WATCHED": "torch,triton,optuna,numpy,alembic",
                "REPORT": str(report),
                **(environment or {}),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        imported = json.loads(report.read_text())
        return Child(done.returncode, done.stdout, done.stderr, imported)

    return run


@pytest.fixture(scope="session")
def searched_once(spaces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    db = tmp_path_factory.mktemp("searched") / "searched.db"
    words = ("--hdim", "256", "--sampler", "random", "--trials", "10")
    said = run("search", "--spaces", spaces, "--db", db, *words)
    assert said.status == 0, said.err
    return db


@pytest.fixture
def searched(searched_once: Path, tmp_path: Path) -> Path:
    """A database with a record of each recorded problem."""
    return Path(shutil.copy(searched_once, tmp_path))


@pytest.fixture(scope="session")
def spaces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole recorded spaces of the portable template, measured in a dream."""
    folder = tmp_path_factory.mktemp("spaces")
    template = registry.get("portable")
    for problem in RECORDED:
        trials = [
            _dream(problem, config, index, template.version)
            for index, config in enumerate(
                template.feasible(problem.specialization, H100.hardware.capability)
            )
        ]
        path = folder / file_name(problem, "portable", H100)
        write_space(path, trials, {"cudnn": [0.9] * 11, "fa2": [1.5] * 11}, "dreamt")
    return folder


def _dream(problem: Problem, config: Config, index: int, version: str) -> Trial:
    ms = 1.0 + 0.2 * abs(int(config["num_stages"]) - 2) + 0.001 * index
    measurement = Measurement(ms, 0.001, (ms,) * 5, problem.flops / ms * 1e-9, 1e-3, 1700, 690)
    crashed = index % 10 == 9
    return Trial(
        problem=problem,
        target=H100,
        candidate=Candidate("portable", config),
        template_version=version,
        outcome=Outcome.CRASHED if crashed else Outcome.OK,
        origin="cuda",
        measured_at="2026-11-28T04:00:00+00:00",
        reason="it crashed in the dream" if crashed else "",
        measurement=None if crashed else measurement,
        resources=Resources(168, 0, 65536),
        compile_s=0.5,
        evaluate_s=0.2,
    )
