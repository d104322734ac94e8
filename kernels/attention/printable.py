"""Text that is not ours, such as a value given or a name out of a file, as it may stand in a
sentence: on one line, without what steers a terminal, and not too long."""

from __future__ import annotations

import re

# Control characters, marks and overrides of the direction of writing, separators of lines, and
# lone surrogates, which no encoding has.
_STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
MOST_LINE = 1000
"""Characters of a whole sentence that has such texts in it; ours are far shorter."""

_MOST_BITS = 200  # of a number that is spelled out: some 60 digits


def printable(text: str, most: int = 300) -> str:
    """`text` with those characters spelled as Python does, cut to `most` characters."""
    spelled = _spelled(text[: most + 1])
    return spelled if len(spelled) <= most else f"{spelled[: most - 3]}..."


def printable_sentence(text: str) -> str:
    """A whole sentence, as `printable`. Of one that is too long the middle is cut, where names and
    values stand: what is wrong with them comes last."""
    spelled = _spelled(text)
    if len(spelled) <= MOST_LINE:
        return spelled
    return f"{spelled[: MOST_LINE // 4]}...{spelled[-MOST_LINE // 2 :]}"


def _spelled(text: str) -> str:
    return _STEERING.sub(lambda found: repr(found[0])[1:-1], text)


def shown(value: object, most: int = 60) -> str:
    """`value` as Python spells it, on one line that can be read."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception:  # such as a number inside that is too long for Python to spell
        return printable(f"of type {type(value).__name__}", most)
    return printable(" ".join(text.split()), most)
