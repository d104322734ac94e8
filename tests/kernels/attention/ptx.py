"""What tests ask of PTX."""

from __future__ import annotations

import re
from collections import Counter


def exponents(ptx: str) -> Counter[str]:
    """How many powers of two have an exponent from which instruction: "sub", "fma" or "other"."""
    made = {
        register: operation
        for operation in ("sub", "fma")
        for register in re.findall(rf"{operation}\.(?:rn\.)?f32\s+(%\w+),", ptx)
    }
    taken = re.findall(r"ex2\.approx\.ftz\.f32\s+%\w+,\s*(%\w+)", ptx)
    return Counter(made.get(register, "other") for register in taken)
