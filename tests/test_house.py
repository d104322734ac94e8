"""How the house is built: who may import whom, and how long a file may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_LINES = 400

# Modules that everyone above the kernels may use: words and facts, no work.
WORDS = {
    "cuda_driver", "device", "extras", "files", "liveness", "moments", "record", "standing",
    "strangers_json", "target", "trial", "version",
}  # fmt: skip
# What each part of tuner may import of the others: cli → search → evaluate → kernels and
# runtime → store → kernels.
MAY = {
    "evaluate": WORDS,
    "store": WORDS | {"caution"},
    "search": WORDS | {"evaluate", "occupancy", "store"},
    "recording": WORDS | {"evaluate", "search", "store"},
    "resolve": WORDS,
    "snapshot": WORDS | {"caution", "resolve", "store"},
    "misses": WORDS | {"caution", "store"},
    "plans": WORDS | {"capture", "caution", "misses", "repetition", "resolve", "snapshot"},
    "control": WORDS | {"misses", "plans", "resolve", "snapshot"},
    "backward": {"fallback"},
    "forward": {"backward", "fallback", "plans", "validation"},
    "runtime": {"forward", "repetition", "validation"},
    "standalone": WORDS | {"repetition", "resolve", "validation"},
    "huggingface": {"extras", "fallback", "runtime"},
    "bench": WORDS | {"evaluate", "runtime"},
    "doctor": WORDS | {"store"},
    "fallback": {"caution"},
    "capture": set(),
    "caution": set(),
    "repetition": set(),
    "validation": set(),
    "occupancy": set(),
    **dict.fromkeys(WORDS, WORDS),
}
ABOVE_ALL = {"cli", "__main__", "__init__", "_coexist"}

SOURCES = sorted(path for folder in ("kernels", "tuner") for path in (ROOT / folder).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, also those inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where they lead"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(path: Path) -> str:
    """The part of tuner that a file belongs to."""
    return path.relative_to(ROOT / "tuner").parts[0].removesuffix(".py")


def test_every_part_has_its_place() -> None:
    parts = {part(path) for path in SOURCES if "tuner" in path.relative_to(ROOT).parts[:1]}
    assert parts == set(MAY) | ABOVE_ALL


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    ours = path.relative_to(ROOT).parts[0]
    for name in imported(path):
        head, _, rest = name.partition(".")
        if head != "tuner":
            continue
        assert ours == "tuner", f"kernels know nothing of {name}"
        wanted = rest.partition(".")[0]
        if wanted and part(path) not in ABOVE_ALL and wanted != part(path):
            # `from tuner import x` may name what is no module.
            is_module = (ROOT / "tuner" / f"{wanted}.py").exists() or (
                ROOT / "tuner" / wanted
            ).is_dir()
            assert not is_module or wanted in MAY[part(path)], f"{part(path)} imports {name}"


@pytest.mark.parametrize("folder", ["kernels", "tuner", "tests", "scripts"])
def test_files_fit_in_one_sitting(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        assert path.name not in ("utils.py", "helpers.py", "common.py", "misc.py"), path
        lines = path.read_text(encoding="utf-8").count("\n")
        assert lines <= MOST_LINES, f"{path} has {lines} lines"
