from __future__ import annotations

import lzma
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.attention.config import Config
from tests.tuner.store import samples
from tuner.search.pictures import KINDS, _slices, save
from tuner.search.study import importances, study_of, together
from tuner.trial import Candidate, Trial

from .conftest import Said

SHAPE = ("--hdim", "256", "--seqlen", "512", "--causal")


@pytest.fixture
def searched(tuner: Callable[..., Said], spaces: Path, tmp_path: Path) -> Path:
    """A database with trials of a replayed search."""
    db = tmp_path / "mine.db"
    options = ("--backend", "replay", "--spaces", str(spaces), "--trials", "12", "--db", str(db))
    assert tuner("search", *SHAPE, *options).status == 0
    return db


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_file_per_kind(
    tuner: Callable[..., Said], searched: Path, tmp_path: Path, suffix: str
) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "pictures"
    said = tuner(
        "plot", *SHAPE, "--db", str(searched), "--output", str(folder), "--format", suffix
    )  # fmt: skip
    assert said.status == 0, said.err
    assert len(list(folder.glob(f"*.{suffix}"))) == len(KINDS)
    assert all(path.stat().st_size > 1000 for path in folder.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_in_the_terminal(tuner: Callable[..., Said], searched: Path, kind: str) -> None:
    if not hasattr(pytest.importorskip("plotext"), "clear_figure"):
        pytest.skip("plotext 6 has another interface")
    said = tuner("plot", *SHAPE, "--db", str(searched), "--kind", kind)
    assert said.status == 0, said.err
    assert kind in said.out


def test_a_recorded_space_is_drawn_too(
    tuner: Callable[..., Said], spaces: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    options = ("--spaces", str(spaces), "--output", str(tmp_path / "p"), "--kind", "distribution")
    assert tuner("plot", *SHAPE, *options).status == 0


def test_a_recording_that_is_spoilt_is_not_drawn(
    tuner: Callable[..., Said], spaces: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "spoilt"
    folder.mkdir()
    for path in spaces.iterdir():
        plain = lzma.decompress(path.read_bytes()).replace(
            b'"name":"registers","value":1', b'"name":"registers","value":-1'
        )
        (folder / path.name).write_bytes(lzma.compress(plain))
    words = ("--hdim", "256", "--seqlen", "512", "--causal", "--spaces", folder)
    for command in (
        ("plot", "-o", tmp_path / "p"),
        ("dashboard", "--export-only", "-o", tmp_path / "s.db"),
    ):
        said = tuner(*command, *words)
        assert said.status == 2
        assert said.err.startswith(f"tuner: {folder}")
        assert "resources.registers is -168, but must be a whole number" in said.err
    assert not (tmp_path / "s.db").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_no_formulas(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    odd = ["$x_{$", "a" * 300, r"\frac{$"]
    configs = [{"$y_{$": value, "z": n} for n in range(4) for value in odd]
    trials = [samples.trial(candidate=Candidate("portable", Config(**c))) for c in configs]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(study_of(trials, "odd"), kind, tmp_path / "picture.svg")


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_several_types_are_drawn(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    values: list[bool | int | str] = [1, "a", True, 2, False, "1", 10, "b", 1, "a"]
    trials = []
    for number, value in enumerate(values):
        candidate = Candidate("portable", Config(mixed=value, other=number % 3))
        trial = samples.trial(candidate=candidate)
        assert trial.measurement is not None
        measurement = replace(trial.measurement, tflops=100.0 + 7 * number)
        trials.append(replace(trial, measurement=measurement))
    study = study_of(trials, "several types")
    assert len({trial.params["mixed"] for trial in study.trials}) == 8
    save(study, kind, tmp_path / "picture.svg")
    if kind == "importances":
        assert importances(study).keys() == {"mixed", "other"}


def test_trials_of_all_templates_are_drawn_each_by_its_latest_kernel() -> None:
    def trial(number: int, template: str, version: str, minute: int) -> Trial:
        candidate = Candidate(template, Config(number=number))
        moment = f"2026-11-28T12:{minute:02}:00+00:00"
        return samples.trial(candidate=candidate, template_version=version, measured_at=moment)

    hopper = [trial(number, "hopper", "b" * 12, 5 + number) for number in range(3)]
    portable = [trial(number, "portable", "c" * 12, 10 - 2 * number) for number in range(4)]
    former = [trial(number, "hopper", "a" * 12, number) for number in range(2)]
    replayed = [replace(trial, origin="replay") for trial in portable]
    found = together([*portable, *former, *hopper, *replayed])
    assert set(found) == {*hopper, *portable}
    assert [trial.measured_at for trial in found] == sorted(t.measured_at for t in found)
    study = study_of(found, "both")
    assert {trial.params["template"] for trial in study.trials} == {"hopper", "portable"}
    assert together([]) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plot", "--hdim", "256"), ("--seqlen",)),
        (("plot", *SHAPE, "--kind", "pie"), ("--kind", "'pie'", "history")),
        (("plot", *SHAPE, "-o", ".", "--format", "gif"), ("--format", "'gif'", "svg")),
        (("plot", *SHAPE, "-o", ".", "--format", ""), ("--format", "''", "svg")),
        (("plot", *SHAPE, "--format", "png"), ("--format", "--output")),
        (("plot", *SHAPE, "--db", "/nowhere/at/all.db"), ("/nowhere/at/all.db",)),
    ],
)
def test_what_cannot_be_drawn_is_named(
    tuner: Callable[..., Said], arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    said = tuner(*arguments)
    assert said.status == 2
    assert all(word in said.err for word in words)


@pytest.mark.parametrize("command", [("plot",), ("dashboard", "--export-only")])
def test_before_the_first_search_it_says_how_to_get_trials(
    tuner: Callable[..., Said],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "none.db"))
    said = tuner(*command, *SHAPE)
    assert said.status == 2
    assert "`tuner search` makes" in said.err
    assert "none.db" not in said.err


def test_a_picture_that_cannot_be_written_leaves_the_old_one(
    child: Callable[..., Said], spaces: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    resource = pytest.importorskip("resource", reason="limits of files")
    folder = tmp_path / "p"
    options = ("--spaces", spaces, "-o", folder, "--kind", "slices")
    assert child("plot", *SHAPE, *options).status == 0
    (old,) = folder.iterdir()
    content = old.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        said = child("plot", *SHAPE, *options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert said.status == 2
    assert said.err == (
        f"tuner: --output is '{folder}', but must be a folder that can be written: {old.name}: "
        "File too large\n"
    )
    assert list(folder.iterdir()) == [old]
    assert old.read_bytes() == content


def test_names_of_two_templates_parameters_have_room() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    trials = [
        samples.trial(
            candidate=Candidate(template, Config({f"parameter_{n}": k % 3 for n in range(9)}))
        )
        for template in ("hopper", "portable")
        for k in range(3)
    ]
    figure = _slices(study_of(trials, "both"), pyplot).figure
    figure.draw_without_rendering()
    shown = [axes for axes in figure.axes if axes.get_xlabel()]
    assert len(shown) == 19
    for axes in shown:
        width = axes.get_window_extent().width
        assert axes.xaxis.label.get_window_extent().width < width
        assert sum(label.get_window_extent().width for label in axes.get_xticklabels()) < width
    labels = [label.get_text() for label in shown[-1].get_xticklabels()]
    assert labels == ["hopper", "portable"]
    pyplot.close("all")
