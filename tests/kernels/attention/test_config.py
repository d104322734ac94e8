from __future__ import annotations

from typing import Any

import pytest

from kernels.attention.config import Config


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({1: 2}, "a parameter's name is 1, but must be a str"),
        ({"BLOCK_M": 128, None: 1}, "a parameter's name is None, but must be a str"),
        ({"BLOCK_M": 1.5}, "BLOCK_M is 1.5, but a config holds bool, int and str only"),
        (5, "values is 5, but must map parameter names to their values"),
        ([("BLOCK_M", 128)], r"values is \[\('BLOCK_M', 128\)\], but must map"),
    ],
)
def test_what_is_no_config_is_refused_in_one_sentence(values: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"^{said}"):
        Config(values)


def test_a_number_that_python_would_not_spell_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^BLOCK_M is a number of 16610 bits, but may have 1024$"):
        Config(BLOCK_M=10**5000)


def test_equal_configs_have_equal_keys() -> None:
    one, two = Config({"b": 1, "a": True}), Config(a=True, b=1)
    assert one == two
    assert one.key == two.key == '{"a":true,"b":1}'
    assert one != Config(a=1, b=True)
