"""Texts out of files and databases reach the terminal as text: they steer nothing and are cut."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from tests.tuner.store import samples
from tuner import cuda_driver
from tuner.cli.display import LiveWatch, PlainWatch
from tuner.cli.failure import warn
from tuner.record import Rival
from tuner.search.events import ProblemEnded, ProblemSkipped, Seconds
from tuner.store.database import Store

Run = Callable[..., Any]

STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
EVIL = "red\x1b[31m\u202edna\u2066\r\n" * 300


def assert_tame(text: str, lines: int) -> None:
    assert not STEERING.search(text)
    assert text.count("\n") <= lines
    assert len(text) < 8000


@pytest.mark.parametrize("command", ["show", "stale", "lookup"])
def test_names_in_records(
    tuner: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(cuda_driver, "target", lambda: None)
    name = "H100\u202e\u2066" * 20
    with Store.open(tmp_path / "my.db") as store:
        target = replace(samples.TARGET, gpu_name=name, triton="9\u202e")
        store.add_record(samples.record(target=target, peers=(Rival(name, 1.4, 0.02),)))
    problem = samples.PROBLEM
    shape = ("--hdim", str(problem.headdim), "--seqlen", str(problem.seqlen))
    more = (*shape, "--target", "h100") if command == "lookup" else ()
    said = tuner(command, "--db", tmp_path / "my.db", *more)
    assert said.status == 0, said.err
    assert r"H100\u202e\u2066" in said.out
    assert_tame(said.out + said.err, 60)


def evil_spaces(spaces: Path, folder: Path, card: str) -> Path:
    """Recorded spaces of such a card, whose reasons are evil, too."""
    folder.mkdir()
    for path in sorted(spaces.iterdir()):
        document = json.loads(lzma.decompress(path.read_bytes()))
        document["metadata"]["target"]["gpu_name"] = card
        for result in document["results"]:
            result.update(outcome="crashed", invalidity="runtime", reason=EVIL)
            result.update(correctness=0, measurements=[], times={})
        (folder / path.name).write_bytes(lzma.compress(json.dumps(document).encode()))
    return folder


@pytest.mark.parametrize("card", ["H100", EVIL])
def test_a_search_of_recorded_spaces(tuner: Run, spaces: Path, tmp_path: Path, card: str) -> None:
    words = ("--hdim", "256", "--seqlen", "512", "--trials", "5", "--db", tmp_path / "mine.db")
    said = tuner("search", "--spaces", evil_spaces(spaces, tmp_path / "evil", card), *words)
    assert said.status == 2
    found = (
        r"red\x1b[31m\u202edna\u2066 red" if card == "H100" else r"gpu_name is 'red\x1b[31m\u202e"
    )
    assert found in said.err
    assert_tame(said.out + said.err, 20)


def events() -> list[ProblemSkipped | ProblemEnded]:
    return [
        ProblemSkipped(samples.PROBLEM, 0, 1, None, EVIL),
        ProblemEnded(samples.PROBLEM, samples.record(note=EVIL), {}, {}, Seconds()),
        ProblemEnded(samples.PROBLEM, None, {}, {EVIL: 2}, Seconds()),
    ]


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    watch = PlainWatch()
    watch.say(EVIL)
    for event in events():
        watch(event)
    warn(EVIL)
    said = capsys.readouterr().err
    assert said.count(r"red\x1b[31m") >= 5
    assert_tame(said, 5)


def test_the_live_display() -> None:
    out = StringIO()
    with Progress(console=Console(file=out, width=10**4), disable=True) as progress:
        watch = LiveWatch(progress)
        watch.say(EVIL)
        for event in events():
            watch.show(event)
    assert out.getvalue().count(r"red\x1b[31m") >= 4
    assert_tame(out.getvalue(), 5)


def test_names_of_files_on_stdout(tuner: Run, searched: Path, tmp_path: Path) -> None:
    folder = tmp_path / "red\x1b[31m"
    folder.mkdir()
    Store.open(folder / "a.db").close()
    (folder / "none.json").write_text(
        '{"format": "attention-tuner/records", "version": 1, "records": []}'
    )
    shape = ("--hdim", "256", "--seqlen", "512", "--causal", "--db", searched)
    commands: list[tuple[str | Path, ...]] = [
        ("import", folder / "none.json", "--db", folder / "b.db"),
        ("merge", folder / "a.db", "-o", folder / "c.db"),
        ("dashboard", *shape, "--export-only", "-o", folder / "d.db"),
    ]
    if find_spec("matplotlib"):
        commands.append(("plot", *shape, "--kind", "history", "-o", folder / "p"))
    for words in commands:
        said = tuner(*words)
        assert said.status == 0, said.err
        assert r"red\x1b[31m" in said.out
        assert_tame(said.out + said.err, 5)
