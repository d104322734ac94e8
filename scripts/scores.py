"""What score_samplers.py writes, read back and checked."""

from __future__ import annotations

from typing import Any

STARTS = ("cold", "default", "neighbours")
BUDGETS = (20, 40, 60)

_TEXTS = ("space", "sampler")
_COUNTS = ("batch", "seeds", "evaluations", "repeats")
_NUMBERS = ("score", "score_of_mean", "ms_per_proposal")
_REACHED = ("to_5_percent", "to_2_percent")  # None where most runs never are
_MOST = 1e12  # of a figure, so that no sum overflows
_FIELDS = {*_TEXTS, *_COUNTS, *_NUMBERS, *_REACHED, "start", "share", "curve"}


def checked(report: Any) -> dict[str, Any]:
    """The report, if it is one.

    Raises:
        ValueError: it is none.
    """
    if not _is_report(report):
        raise ValueError("it is no report of scores")
    known: dict[str, Any] = report
    return known


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
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MOST
