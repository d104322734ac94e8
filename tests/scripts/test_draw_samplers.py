"""Scores are drawn whatever is in their names, and what is made of them is there whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="draws by it")

from scripts.draw_samplers import main

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "samplers.json"


def scores(folder: Path, **changes: Any) -> Path:
    """The published ones of the batches of 1, with those changes to every result."""
    report = json.loads(PUBLISHED.read_text())
    report["results"] = [{**r, **changes} for r in report["results"] if r["batch"] == 1]
    (folder / "scores.json").write_text(json.dumps(report))
    return folder / "scores.json"


def test_what_is_published_is_what_it_makes(tmp_path: Path) -> None:
    (tmp_path / "samplers.json").write_bytes(PUBLISHED.read_bytes())
    main([str(tmp_path / "samplers.json")])
    assert (tmp_path / "samplers.md").read_text() == PUBLISHED.with_suffix(".md").read_text()
    assert (tmp_path / "samplers.svg").stat().st_size > 10_000


@pytest.mark.parametrize("name", [r"$\frac$", "\ud800", "\x1b[31m", "a\nb", "a|b"])
@pytest.mark.parametrize("field", ["sampler", "space"])
def test_names_are_only_shown(tmp_path: Path, field: str, name: str) -> None:
    main([str(scores(tmp_path, **{field: name}))])
    table = (tmp_path / "scores.md").read_text()
    assert "\x1b" not in table
    rows = [line.replace(r"\|", "") for line in table.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 2  # two tables
    assert (tmp_path / "scores.svg").read_bytes().startswith(b"<?xml")


def test_the_heading_steers_no_terminal(tmp_path: Path) -> None:
    path = scores(tmp_path)
    report = json.loads(path.read_text())
    path.write_text(json.dumps({**report, "date": "\x1b[31m", "versions": {"\ud800": "\n"}}))
    main([str(path)])
    assert r"on \x1b[31m (\ud800 \n): " in (tmp_path / "scores.md").read_text()


def test_batches_alone_are_drawn(tmp_path: Path) -> None:
    main([str(scores(tmp_path, batch=8))])
    assert "surrogate, batches of 8, default" in (tmp_path / "scores.svg").read_text()


@pytest.mark.parametrize(
    "changes",
    [{"curve": [1.7e308]}, {"score": -1.7e308}, {"repeats": 10**400}, {"ms_per_proposal": 10**30}],
)
def test_figures_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    path = scores(tmp_path, **changes)
    with pytest.raises(SystemExit) as ended:
        main([str(path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("it is no report of scores\n")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_the_table_stays_where_the_picture_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scores(tmp_path)
    (tmp_path / "scores.md").write_text("old")
    (tmp_path / "scores.svg").symlink_to("/dev/full")
    with pytest.raises(SystemExit) as ended:
        main([str(path)])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("scores.svg cannot be written: No space left on device")
    assert (tmp_path / "scores.md").read_text() == "old"
