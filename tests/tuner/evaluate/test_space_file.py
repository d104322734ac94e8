"""Recorded spaces: what is written is read back, theirs too, damaged ones refused."""

from __future__ import annotations

import gzip
import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest
from recording import PEERS, PROBLEM, TARGET, config, one_of_each, trial

from tuner.evaluate.space_file import file_name, read_space, write_space
from tuner.evaluate.t4 import SUFFIXES, SpaceError, read_results
from tuner.trial import Outcome, Trial


def content(path: Path) -> bytes:
    data = path.read_bytes()
    if path.name.endswith(".xz"):
        return lzma.decompress(data)
    return gzip.decompress(data) if path.name.endswith(".gz") else data


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_is_read_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"space{suffix}"
    trials = one_of_each()
    write_space(path, trials, PEERS, "gate, then seven samples")
    space = read_space(path)
    header = space.header
    assert (header.problem, header.target) == (PROBLEM, TARGET)
    assert (header.template, header.template_version) == ("fake", "0123456789ab")
    assert (header.peers, header.method) == (PEERS, "gate, then seven samples")
    assert header.recorded_at == max(t.measured_at for t in trials)
    kept = [t for t in trials if t.outcome is not Outcome.REJECTED]
    assert space.trials.keys() == {t.candidate.config for t in kept}
    for written in kept:
        read = space.trials[written.candidate.config]
        assert replace(read, origin="cuda", measurement=None) == replace(written, measurement=None)
        if written.measurement is None:
            assert read.measurement is None
        else:
            assert read.measurement is not None
            assert read.measurement.samples_ms == pytest.approx(written.measurement.samples_ms)
            assert replace(read.measurement, samples_ms=(), spread=0, tflops=0) == replace(
                written.measurement, samples_ms=(), spread=0, tflops=0
            )
    assert {type(value) for value in next(iter(space.trials)).values()} == {int, bool, str}


def test_the_file_is_t4(tmp_path: Path) -> None:
    path = tmp_path / "space.json"
    write_space(path, one_of_each())
    document = json.loads(content(path))
    assert document["schema_version"] == "1.0.0"
    assert document["metadata"]["timeunit"] == "ms"
    by_outcome = {result["outcome"]: result for result in document["results"]}
    kinds = {outcome: result["invalidity"] for outcome, result in by_outcome.items()}
    assert kinds == {
        "ok": "correct",
        "pruned": "correct",
        "compile_error": "compile",
        "out_of_resources": "compile",
        "spills": "constraints",
        "wrong": "correctness",
        "crashed": "runtime",
        "timeout": "timeout",
    }
    right, wrong = by_outcome["ok"], by_outcome["wrong"]
    assert right["objectives"] == ["time"]
    assert right["correctness"] == 1
    assert right["times"]["compilation"] == 1250
    assert right["times"]["runtimes"] == [0.294, 0.297, 0.3, 0.303, 0.306]
    assert {m["name"] for m in right["measurements"]} == {
        "time", "tflops", "max_diff", "sm_clock", "power", "registers", "spills", "shared_memory",
    }  # fmt: skip
    assert "runtimes" not in wrong["times"]
    assert wrong["reason"].startswith("because")


def test_equal_trials_give_equal_bytes(tmp_path: Path) -> None:
    trials = one_of_each()
    for suffix in SUFFIXES:
        one, two = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
        write_space(one, trials)
        write_space(two, reversed(trials))
        assert one.read_bytes() == two.read_bytes()


def test_the_last_trial_of_a_config_counts(tmp_path: Path) -> None:
    path = tmp_path / "space.json.xz"
    early, late = trial(3, ms=0.5), replace(trial(3, ms=0.4), measured_at="2026-11-29T00:00:00Z")
    write_space(path, [late, early])
    measured = read_space(path).trials[config(3)].measurement
    assert measured is not None
    assert measured.median_ms == 0.4


@pytest.mark.parametrize(
    "trials",
    [
        [],
        [trial(0, Outcome.REJECTED)],
        [trial(0), trial(1, template="other")],
        [trial(0), trial(1, version="ffffffffffff")],
        [trial(0), trial(1, target=replace(TARGET, driver="1"))],
    ],
)
def test_a_space_is_of_one_template_problem_and_target(tmp_path: Path, trials: list[Trial]) -> None:
    with pytest.raises(SpaceError, match="a space is of exactly one"):
        write_space(tmp_path / "space.json.xz", trials)
    assert not list(tmp_path.iterdir())


def test_five_hundred_configs_take_little_room(tmp_path: Path) -> None:
    path = tmp_path / "space.json.xz"
    write_space(path, [trial(number, ms=0.3 + number**1.5 / 7) for number in range(500)])
    assert path.stat().st_size < 60_000
    assert len(read_space(path).trials) == 500


def test_the_usual_name() -> None:
    name = file_name(PROBLEM, "portable", TARGET)
    assert name == "D64-S4096-causal-fp16-B4-H32.portable.sm90-132x-79gib-700w.json.xz"


def test_the_communitys_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "convolution.json.gz"
    document = {
        "schema_version": "1.0.0",
        "metadata": {"timeunit": "miliseconds"},
        "results": [
            {
                "timestamp": "2023-12-22 09:54:05+00:00",
                "configuration": {"block_size_x": 16, "use_shmem": 1.0, "ratio": 0.5},
                "times": {"compilation": 918.5, "runtimes": [3.97, 3.87]},
                "invalidity": "correct",
                "correctness": 1,
                "measurements": [{"name": "time", "value": 3.92, "unit": ""}],
                "objectives": ["time"],
            },
            {
                "configuration": {"block_size_x": 80},
                "times": {"compilation": 7281.7},
                "invalidity": "compile",
                "correctness": 0,
                "measurements": [{"name": "time", "value": "CompilationFailedConfig", "unit": ""}],
                "objectives": ["time"],
            },
        ],
    }
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    right, wrong = read_results(path)
    assert dict(right.config) == {"block_size_x": 16, "use_shmem": 1, "ratio": "0.5"}
    assert (right.outcome, right.samples_ms) == (Outcome.OK, (3.97, 3.87))
    assert right.compile_s == pytest.approx(0.9185)
    assert right.measurements == {"time": 3.92}
    assert (wrong.outcome, wrong.samples_ms) == (Outcome.COMPILE_ERROR, ())
    with pytest.raises(SpaceError, match="no recorded space of ours"):
        read_space(path)


def test_figures_that_are_none_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    write_space(path, [trial(0)])
    document = json.loads(content(path))
    for figure in document["results"][0]["measurements"]:
        if figure["name"] in ("registers", "max_diff"):
            figure["value"] = float("inf")
    path.write_text(json.dumps(document))
    (read,) = read_space(path).trials.values()
    assert read.resources is None
    assert read.measurement is not None


GOOD_RESULT = {
    "configuration": {"a": 1},
    "invalidity": "correct",
    "times": {"runtimes": [1.0]},
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "null",
        '{"results": 3}',
        '{"metadata": {"timeunit": "fortnights"}, "results": []}',
        json.dumps({"results": [{}]}),
        json.dumps({"results": [[1]]}),
        json.dumps({"results": [{**GOOD_RESULT, "invalidity": "splendid"}]}),
        json.dumps({"results": [{**GOOD_RESULT, "outcome": "splendid"}]}),
        json.dumps({"results": [{**GOOD_RESULT, "times": {"runtimes": [-1]}}]}),
        json.dumps({"results": [{**GOOD_RESULT, "times": {"runtimes": ["__import__('os')"]}}]}),
        json.dumps({"results": [{**GOOD_RESULT, "times": {"runtimes": []}}]}),
        json.dumps({"results": [{**GOOD_RESULT, "times": {"runtimes": [float("nan")]}}]}),
        json.dumps({"results": [{**GOOD_RESULT, "configuration": [1]}]}),
        json.dumps(
            {"results": [{**GOOD_RESULT, "measurements": [{"name": "x", "value": 10**400}]}]}
        ),
        "[" * 100_000,
    ],
)
def test_malformed_files_are_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    for read in (read_results, read_space):
        with pytest.raises(SpaceError) as caught:
            read(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"problem": {"headdim": 64}},
        {"problem": {**vars(PROBLEM), "headdim": -1}},
        {"problem": {**vars(PROBLEM), "extra": 1}},
        {"target": {}},
        {"target": 3},
        {"target": {**vars(TARGET), "hardware": {**vars(TARGET.hardware), "sm_count": -1}}},
        {"target": {**vars(TARGET), "hardware": {**vars(TARGET.hardware), "capability": "90"}}},
        {"peers": {"cudnn": ["fast"]}},
        {"peers": {"cudnn": []}},
    ],
)
def test_malformed_metadata_are_one_sentence(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "bad.json"
    write_space(path, [trial(0)])
    document = json.loads(content(path))
    document["metadata"].update(change)
    path.write_text(json.dumps(document))
    with pytest.raises(SpaceError, match="no recorded space of ours"):
        read_space(path)


@pytest.mark.parametrize("results", [[], {"a": 1}, "", None])
def test_a_space_without_results_is_refused_by_its_name(tmp_path: Path, results: object) -> None:
    path = tmp_path / "empty.json"
    write_space(path, [trial(0)])
    document = json.loads(content(path))
    document["results"] = results
    path.write_text(json.dumps(document))
    said = "it has no results" if results == [] else "results is .*, but must be a list"
    with pytest.raises(SpaceError, match=f"^{path} is no recorded space.*: {said}"):
        read_space(path).check(bool)


def without(kind: str, name: str) -> dict[str, object]:
    values = vars(PROBLEM) if kind == "problem" else {**vars(TARGET), "hardware": {}}
    return {kind: {key: value for key, value in values.items() if key != name}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("problem", "heads"), "problem has 'headdim, seqlen, causal, dtype, batch', but"),
        ({"problem": 3}, "problem has 3, but must have headdim, seqlen, causal, dtype, batch, h"),
        (without("target", "torch"), "target has 'hardware, gpu_name, triton, driver', but must "),
        ({"template": "a\x1b[2J"}, r"template is 'a\\x1b\[2J', but must be a text of at most 2000"),
        ({"template": ["portable"]}, r"template is \['portable'\], but must be a text"),
        ({"recorded_at": 3}, "recorded_at is 3, but must be a text"),
        ({"peers": {"cud\nnn": [1.0]}}, r"a peer's name is 'cud\\nnn', but must be a text"),
        ({"peers": {"cudnn": [1e-300]}}, "a time is 1e-300, but must be a number from 1e-9"),
        ({"peers": {"cudnn": 1.0}}, "times of .cudnn. is 1.0, but must be a list"),
        ({"peers": [1]}, r"peers is \[1\], but must be an object"),
    ],
)
def test_a_refusal_of_metadata_says_what_is_accepted(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    path = tmp_path / "bad.json"
    write_space(path, [trial(0)])
    document = json.loads(content(path))
    document["metadata"].update(change)
    path.write_text(json.dumps(document))
    with pytest.raises(SpaceError, match=f"^{path} is no recorded space of ours: {said}"):
        read_space(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"timeunit": "fortnights"}, "timeunit is 'fortnights', but must be one of ms, mil"),
        ({"outcome": "splendid"}, "outcome is 'splendid', but must be one of ok, rejected,"),
        ({"outcome": ["ok"]}, r"outcome is \['ok'\], but must be one of ok, rejected,"),
        ({"times": {"runtimes": [1e-320]}}, r"a time is 1e-320, but must be a number from 1e-9"),
        ({"times": {"runtimes": None}}, "runtimes is None, but must be a list"),
        ({"times": [1]}, r"times is \[1\], but must be an object"),
        ({"measurements": None}, "measurements is None, but must be a list"),
        ({"configuration": [1]}, r"configuration is \[1\], but must be an object"),
    ],
)
def test_a_refusal_of_a_result_says_what_is_accepted(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    path = tmp_path / "bad.json"
    document = {
        "metadata": {key: change[key] for key in change if key == "timeunit"},
        "results": [{**GOOD_RESULT, **change}],
    }
    path.write_text(json.dumps(document))
    with pytest.raises(SpaceError, match=f"^{path} is no recorded space: {said}"):
        read_results(path)


@pytest.mark.parametrize("suffix", SUFFIXES[:2])
@pytest.mark.parametrize("damage", ["cut", "foreign", "flipped"])
def test_damaged_files_are_one_sentence(tmp_path: Path, suffix: str, damage: str) -> None:
    path = tmp_path / f"bad{suffix}"
    write_space(path, [trial(number) for number in range(300)])
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "foreign":
        data = bytearray(b"SQLite format 3\0" * 100)
    else:
        data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(SpaceError, match="bad"):
        read_results(path)


@pytest.mark.parametrize(("item", "count"), [("[]", 2_000_000), ("1.5", 6_000_000)])
def test_a_bomb_of_items_is_not_parsed(tmp_path: Path, item: str, count: int) -> None:
    path = tmp_path / "bomb.json.xz"
    text = f'{{"schema_version": "1.0.0", "metadata": {{}}, "results": [{count * (item + ",")}[]]}}'
    path.write_bytes(lzma.compress(text.encode()))
    with pytest.raises(SpaceError, match=r"bomb\.json\.xz is no recorded space: it has more than"):
        read_results(path)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tuner.evaluate import t4

    monkeypatch.setattr(t4, "MOST_BYTES", 1 << 20)
    path = tmp_path / "bomb.json.xz"
    path.write_bytes(lzma.compress(b" " * (64 << 20)))
    with pytest.raises(SpaceError, match="holds more than 1 MiB"):
        read_results(path)


def test_cycles_are_kept_where_they_were_counted(tmp_path: Path) -> None:
    path = tmp_path / "space.json"
    write_space(path, [trial(0, cycles=450_000.0), trial(1, Outcome.PRUNED)])
    first, second = (read_space(path).trials[config(number)].measurement for number in (0, 1))
    assert first is not None
    assert second is not None
    assert (first.cycles, first.steady_ms) == (450_000.0, 0.3)
    assert (second.cycles, second.steady_ms) == (None, second.median_ms)


def test_where_one_that_was_right_has_no_cycles_all_are_compared_by_time(tmp_path: Path) -> None:
    path = tmp_path / "space.json"
    write_space(path, [trial(0, cycles=450_000.0), trial(1)])
    assert [t.measurement and t.measurement.cycles for t in read_space(path).trials.values()] == [
        None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("ms", ["1e-9", "0.29", "0.31", "1.7e308"])
def test_a_time_that_is_not_among_its_runtimes_is_damage(tmp_path: Path, ms: str) -> None:
    path = tmp_path / "space.json"
    write_space(path, [trial(0)])
    document = json.loads(path.read_text())
    (result,) = document["results"]
    (entry,) = [each for each in result["measurements"] if each["name"] == "time"]
    entry["value"] = float(ms)
    path.write_text(json.dumps(document))
    with pytest.raises(SpaceError, match=r"space.json is damaged: of .*: time is .* runtimes of"):
        assert read_space(path).trials


@pytest.mark.parametrize("cycles", ["-450000", "0", "1", "1e-320", "1e308", "1e15"])
def test_cycles_that_no_clock_makes_are_damage(tmp_path: Path, cycles: str) -> None:
    path = tmp_path / "space.json"
    write_space(path, [trial(0, cycles=450_000.0)])
    path.write_text(path.read_text().replace("450000", cycles))
    with pytest.raises(SpaceError, match=r"space.json is damaged: of .*: cycles is .* 10000 MHz"):
        assert read_space(path).trials


@pytest.mark.parametrize("cycles", ["true", '"many"', "null", "NaN"])
def test_cycles_that_are_no_number_are_none(tmp_path: Path, cycles: str) -> None:
    path = tmp_path / "space.json"
    write_space(path, [trial(0, cycles=450_000.0)])
    path.write_text(path.read_text().replace("450000", cycles))
    (read,) = read_space(path).trials.values()
    assert read.measurement is not None
    assert read.measurement.cycles is None
