"""Tables of records, strangers' too, and the line below them."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from tests.tuner.store import samples
from tuner.cli.tables import print_records, time_line
from tuner.record import Rival
from tuner.search.events import Seconds


def test_a_record_with_hundreds_of_peers_has_columns_for_those_that_others_have_too() -> None:
    many = tuple(Rival(f"p{number:03}", 1.0, 0.0) for number in range(400))
    usual = (Rival("cudnn", 1.0, 0.0), Rival("fa2", 1.0, 0.0))
    records = [
        replace(samples.record(number), uid="", peers=peers)
        for number, peers in enumerate([usual, usual, (*usual, *many)])
    ]
    out = Console(file=io.StringIO(), width=1000)
    print_records(out, "records", records)
    printed = out.file.getvalue()  # type: ignore[attr-defined]
    assert {"vs cudnn", "vs fa2", "vs p000"} <= {f"vs {word}" for word in printed.split()}
    assert printed.count("vs p") == 6
    assert all(str(record.problem) in printed for record in records)


def test_what_tells_records_of_one_problem_apart_is_the_last_to_go() -> None:
    twice = [samples.record(1), samples.record(2)]
    for records, shown in ((twice, True), (twice[:1], False)):
        seen = io.StringIO()
        print_records(Console(file=seen, width=64), "Records", records)
        (head,) = (line for line in seen.getvalue().splitlines() if "TFLOP" in line)
        assert ("from" in head) is shown
        assert "spread" not in head


def test_where_the_time_of_a_search_went() -> None:
    seconds = Seconds(
        wall=70.0,
        opening=10.0,
        compiling=300.0,
        checking=2.0,
        timing=9.0,
        finals=30.0,
        waiting=16.0,
        starting=5.0,
    )
    assert time_line(seconds + seconds, "cuda") == (
        "140 s in all: opening 20 s, checking 4 s, timing 18 s, finals 60 s, waiting for the "
        "compiler 32 s (10 s of it for the first binary), the search itself 6 s; beside that, "
        "compiling 600 CPU seconds"
    )
    assert time_line(seconds, "replay") == (
        "70.0 s in all; when this was recorded, evaluating 11 s, compiling 300 CPU seconds"
    )
