"""Which configs can be pinned, what for, and what is said of the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")

import tuner  # noqa: E402
from kernels.attention import registry  # noqa: E402
from kernels.attention.config import Config  # noqa: E402
from kernels.attention.problem import Problem  # noqa: E402
from tests.tuner.stand_in import H100, StandIn  # noqa: E402
from tests.tuner.test_plans import call, other_config, quiet  # noqa: E402
from tuner.trial import Candidate  # noqa: E402

README = Path(__file__).parents[2] / "README.md"
HOPPER = registry.get("hopper").default(Problem.on_grid(128, 4096, True), 90)


@quiet
def test_pinning(stand_in: StandIn) -> None:
    call()
    default = stand_in.loaded[-1][0]
    pinned = other_config()
    with tuner.pin(dict(pinned)) as pin:
        assert pin.candidates[0] == Candidate("portable", pinned)
        call()
        assert stand_in.loaded[-1][0].config == pinned
        assert tuner.lookup(64, 96, batch=1, heads=2, target=H100).source == "pinned"
        # A config of headdim 64 that headdim 256 has no room for or does not know.
        found = tuner.lookup(256, 96, batch=1, heads=2, target=H100)
        assert found.source != "pinned"
        assert found.reason.startswith("the pinned config cannot; ")
    call()
    assert stand_in.loaded[-1][0] == default
    tuner.pin(default)
    assert tuner.lookup(64, 96, batch=1, heads=2, target=H100).candidate == default
    tuner.pin(None)


@quiet
def test_a_pin_within_another_brings_that_back(stand_in: StandIn) -> None:
    call()
    default, other = stand_in.loaded[-1][0], other_config()

    def served() -> tuple[str, object]:
        found = tuner.lookup(64, 96, batch=1, heads=2, target=H100)
        return found.source, found.candidate.config

    with tuner.pin(dict(other)):
        with tuner.pin(default):
            assert served() == ("pinned", default.config)
        assert served() == ("pinned", other)
        with pytest.raises(KeyError), tuner.pin(default):
            raise KeyError
        assert served() == ("pinned", other)
    assert served()[0] != "pinned"


@quiet
def test_pins_that_are_left_in_another_order_or_entered_again(stand_in: StandIn) -> None:
    call()
    first, second = stand_in.loaded[-1][0], other_config()

    def served() -> object:
        found = tuner.lookup(64, 96, batch=1, heads=2, target=H100)
        return found.candidate.config if found.source == "pinned" else None

    one, two = tuner.pin(first).__enter__(), tuner.pin(dict(second)).__enter__()
    assert served() == second
    one.__exit__(None, None, None)
    assert served() == second
    two.__exit__(None, None, None)
    assert served() is None
    with one:
        assert served() == first.config
        tuner.pin(None)
        assert served() is None
    tuner.pin(first)
    tuner.pin(dict(second))  # in its place
    assert served() == second
    with tuner.pin(first):
        assert served() == first.config
    assert served() == second
    tuner.pin(None)
    assert served() is None


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ((3,), TypeError, "config is of type int, but must be a candidate, a mapping or None"),
        (({"BLOCK_M": 7},), ValueError, "no template accepts that"),
        (({"BLOCK_M": 7}, "nothing"), ValueError, "template is 'nothing', but must be one of"),
        (({"BLOCK_M": 1.5},), TypeError, "BLOCK_M is 1.5"),
        ((Candidate("hopper", None),), TypeError, "config's config is of type NoneType, but must"),
        ((Candidate("nope", HOPPER),), ValueError, "config's template is 'nope', but must be one"),
        ((Candidate(None, HOPPER),), ValueError, "config's template is None, but must be one"),
        ((None, "nope"), ValueError, "template is 'nope', but config is None"),
        ((Candidate("hopper", HOPPER), "portable"), ValueError, "template is 'portable', but"),
    ],
)
def test_what_cannot_be_pinned(arguments, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        tuner.pin(*arguments)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"early_halves": 3}, r"early_halves is 3, but must be one of \(0, 1, 2\)$"),
        ({"early_halves": 1, "whole_loop": False}, "early_halves 1 is part of whole_loop$"),
        ({"early_halves": "x\n\x1b" * 10**6}, r"early_halves is 'x\\n\\x1bx.*\.\.\., but must be"),
        ({"early_halves": "\u202e"}, r"early_halves is '\\u202e', but must be one of"),
    ],
)
def test_a_pinned_config_is_refused_for_the_templates_own_reason(changes, reason) -> None:
    for arguments in (Config(HOPPER, **changes),), (Candidate("hopper", {**HOPPER, **changes}),):
        with pytest.raises(ValueError, match=f"hopper accepts that for no problem: {reason}") as of:
            tuner.pin(*arguments)
        assert len(str(of.value)) < 300
        assert str(of.value).isprintable()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**HOPPER, "stages": 10**5000}, "stages is a number of 16610 bits, but may have 1024"),
        (
            {**HOPPER, "stages": 10**200},
            r"config is .*: stages is a number of 665 bits, but must be",
        ),
        ({"a\nb": 1}, r"config is Config\(a b=1\), but no template accepts that"),
        ({"a\x1bb": 1}, r"config is Config\(a\\x1bb=1\), but no template accepts that"),
        ({"a\nb": 1.5}, r"a\\nb is 1.5, but a config holds"),
        ({"a" * 10**6: 1}, r"config is Config\(aaa.*aaa\.\.\., but no template accepts that"),
        ({"a": ["b"] * 10**6}, "a is .*, but a config holds"),
        ({10**5000: 1}, "a parameter's name is a number of 16610 bits, but must be a str"),
    ],
)
def test_what_is_refused_for_pinning_is_told_in_one_short_line(config, said) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{said}") as caught:
        tuner.pin(config)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


def test_what_the_readme_pins_can_be_pinned(stand_in: StandIn) -> None:
    text = README.read_text("utf-8")
    found = re.search(r"^config = .*?(?=^tuner\.pin\(config\))", text, re.M | re.S)
    assert found is not None
    exec(found[0], written := {})
    with tuner.pin(written["config"]) as pin:
        assert [candidate.template for candidate in pin.candidates] == ["hopper"]
