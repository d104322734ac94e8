"""What score_samplers.py writes, read back and checked."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

STARTS = ("cold", "default", "neighbours")
BUDGETS = (20, 40, 60)

_TEXTS = ("space", "sampler")
_COUNTS = ("batch", "seeds", "evaluations", "repeats")
_NUMBERS = ("score", "score_of_mean", "ms_per_proposal")
_REACHED = ("to_5_percent", "to_2_percent")  # None where most runs never are
_FIELDS = {*_TEXTS, *_COUNTS, *_NUMBERS, *_REACHED, "start", "share", "curve"}


def read_scores(path: Path) -> dict[str, Any]:
    """The report in the file `path`.

    Raises:
        ValueError: it cannot be read, or is none; one sentence.
    """
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            raise ValueError(f"{path} is no file")
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    except (json.JSONDecodeError, RecursionError):
        raise ValueError(f"{path} is not JSON") from None
    if not _is_report(report):
        raise ValueError(f"{path} is not what score_samplers.py writes")
    return report  # type: ignore[no-any-return]


def _is_report(form: Any) -> bool:
    return (
        isinstance(form, dict)
        and isinstance(form.get("date"), str)
        and isinstance(form.get("versions"), dict)
        and isinstance(form.get("spaces"), dict)
        and _is_count(form.get("seconds"))
        and _is_count(form.get("seeds"))
        and isinstance(form.get("results"), list)
        and len(form["results"]) > 0
        and all(map(_is_result, form["results"]))
    )


def _is_result(form: Any) -> bool:
    return (
        isinstance(form, dict)
        and set(form) == _FIELDS
        and all(isinstance(form[name], str) for name in _TEXTS)
        and all(_is_count(form[name]) for name in _COUNTS)
        and all(_is_number(form[name]) for name in _NUMBERS)
        and all(form[name] is None or _is_number(form[name]) for name in _REACHED)
        and form["start"] in STARTS
        and isinstance(form["share"], dict)
        and set(form["share"]) == set(map(str, BUDGETS))
        and all(map(_is_number, form["share"].values()))
        and isinstance(form["curve"], list)
        and len(form["curve"]) > 0
        and all(map(_is_number, form["curve"]))
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
