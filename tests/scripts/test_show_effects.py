from __future__ import annotations

import json
import lzma

import pytest

from kernels.attention.config import Config
from scripts.show_effects import best_by_choice, effects, main, paired
from tuner.evaluate.replay import shipped_spaces
from tuner.evaluate.space_file import read_space

RATES = {
    Config(a=1, b=False): 100.0,
    Config(a=1, b=True): 110.0,
    Config(a=2, b=False): 90.0,
    Config(a=2, b=True): 120.0,
    Config(a=4, b=True): 50.0,  # without a twin at b=False
}


def test_the_best_of_every_choice():
    assert best_by_choice(RATES, "a") == {1: 110.0, 2: 120.0, 4: 50.0}
    assert best_by_choice(RATES, "b") == {False: 100.0, True: 120.0}


def test_configs_of_several_kinds_are_refused(capsys, tmp_path):
    (shipped,) = shipped_spaces().rglob("D128*causal*hopper*")
    form = json.loads(lzma.decompress(shipped.read_bytes()))
    form["results"][0]["configuration"] = {}
    path = tmp_path / "space.json"
    path.write_text(json.dumps(form))
    with pytest.raises(SystemExit):
        main([str(path)])
    assert "holds configs that do not have the same parameters" in capsys.readouterr().err


@pytest.fixture
def space(tmp_path):
    """The form of a space, one result of it, and where it is to be written."""
    (shipped,) = shipped_spaces().rglob("D128*causal*hopper*")
    form = json.loads(lzma.decompress(shipped.read_bytes()))
    timed = next(each for each in form["results"] if each["outcome"] == "ok")
    return form, timed, tmp_path / "space.json"


def test_what_was_timed_but_is_wrong_has_no_rate(space):
    form, timed, path = space
    path.write_text(json.dumps(form))
    assert ": 260 configs timed" in effects(read_space(path))[0]
    timed.update(outcome="wrong", invalidity="correctness")
    path.write_text(json.dumps(form))
    assert ": 259 configs timed" in effects(read_space(path))[0]


def test_a_space_is_checked_as_a_search_does(capsys, space):
    form, timed, path = space
    (value,) = (each for each in timed["measurements"] if each["name"] == "time")
    value["value"] = 1e-9
    timed["measurements"], timed["times"]["runtimes"] = [value], [1e-9]
    path.write_text(json.dumps(form))
    with pytest.raises(SystemExit) as ended:
        main([str(path)])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "space.json is no recorded space of ours: of " in line


def test_twins_differ_in_one_parameter_alone():
    ratios = paired(RATES, "b", False)
    assert list(ratios) == [True]
    assert abs(ratios[True] - (110 / 100 + 120 / 90) / 2) < 1e-12


def test_a_table_a_space(capsys):
    files = sorted(shipped_spaces().rglob("*hopper*"))
    assert files
    main([str(path) for path in files])
    out = capsys.readouterr().out
    for path in files:
        lines = effects(read_space(path))
        assert "\n".join(lines) in out
        assert any(line.startswith("| ping_pong | False: ") for line in lines)
