"""What stands in a standalone file for our compiled binaries and their launches.

There Triton compiles and launches, so that of them only what is asked is left. Nobody imports this
module but hopper_host.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Specialization(NamedTuple):
    """What a binary is compiled for, as far as a launch has to know."""

    causal: bool


class Binary(NamedTuple):
    """What a launch has to know of a binary."""

    specialization: Specialization
    config: dict[str, int]


class DirectLaunch(NamedTuple):
    """A launch as it was worked out."""

    kernel: object
    programs: int
    after: tuple[Any, ...]  # the kernel's arguments after lse, constexprs as None
    shapes: tuple[tuple[int, ...], ...]  # of q, k and v
    strides: tuple[tuple[int, ...], ...]
