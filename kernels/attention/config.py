"""A config: one point of a template's space, immutable, hashable, with one canonical spelling."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from kernels.attention.printable import printable, shown

Value = bool | int | str

_MOST_BITS = 1024  # of a number; Python refuses to spell what has some 14000


class Config(Mapping[str, Value]):
    """An immutable mapping of parameter names to values; equal configs have equal `key`s."""

    __slots__ = ("_values", "key")

    key: str
    """Canonical JSON: sorted names, no spaces. Identity in the database and in files."""

    def __init__(self, values: Mapping[str, Value] = {}, /, **more: Value) -> None:
        if not isinstance(values, Mapping):
            raise TypeError(
                f"values is {shown(values)}, but must map parameter names to their values"
            )
        merged = {**values, **more}
        for name, value in merged.items():
            if not isinstance(name, str):
                raise TypeError(f"a parameter's name is {shown(name)}, but must be a str")
            if not isinstance(value, (bool, int, str)):
                raise TypeError(
                    f"{printable(name, 60)} is {shown(value)}, but a config holds bool, int and "
                    "str only"
                )
            if isinstance(value, int) and value.bit_length() > _MOST_BITS:
                raise ValueError(
                    f"{printable(name, 60)} is a number of {value.bit_length()} bits, but may have "
                    f"{_MOST_BITS}"
                )
        self._values = dict(sorted(merged.items()))
        self.key = json.dumps(self._values, separators=(",", ":"))

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        # By the canonical spelling, since True == 1 in Python but not in a config.
        return self.key == other.key if isinstance(other, Config) else NotImplemented

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._values.items())

    def __reduce__(self) -> tuple[type[Config], tuple[dict[str, Value]]]:
        return Config, (self._values,)
