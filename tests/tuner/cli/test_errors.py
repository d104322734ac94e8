"""Bad input: one sentence that names the option and the value, exit code 2, nothing touched."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.patience import ANSWER_S
from tuner.cli import app as application

Run = Callable[..., Any]

# words, and what the sentence must hold
BAD = [
    (("search", "--hdim", "-3"), ("--hdim", "'-3'", "at least 1")),
    (("search", "--hdim", "64,x"), ("--hdim", "'x'", "whole number")),
    (("search", "--hdim", "1.5"), ("--hdim", "'1.5'")),
    (("search", "--hdim", ""), ("--hdim", "''")),
    (("search", "--hdim", "9" * 5000), ("--hdim", "'999", "15 digits")),
    (("search", "--batch", "9" * 5000), ("--batch", "'999", "15 digits")),
    (("search", "--seed", "9" * 5000), ("--seed", "'999", "from 0 to 4294967295")),
    (("search", "--seed", str(2**32)), ("--seed is '4294967296'", "from 0 to 4294967295")),
    (("search", "--seed", "-1"), ("--seed is '-1'", "from 0 to 4294967295")),
    (("search", "--budget", "9" * 5000 + "h"), ("--budget", "'999", "60s")),
    (("search", "--budget", "\u0663s"), ("--budget", "60s")),
    (("lookup", "--hdim", "64", "--seqlen", "8", "--heads", "9" * 400), ("--heads", "15 digits")),
    (("compile", "--hdim", "63"), ("--hdim is 63", "64, 128, 256")),
    (("search", "--seqlen", "0"), ("--seqlen", "'0'", "at least 1")),
    (("search", "--batch", "0"), ("--batch", "0", "at least 1")),
    (("search", "--batch", "many"), ("--batch", "'many'")),
    (("search", "--heads", "-1"), ("--heads", "-1", "at least 1")),
    (("search", "--dtype", "fp32"), ("--dtype", "'fp32'", "fp16, bf16")),
    (("search", "--trials", "0"), ("--trials", "0", "at least 1")),
    (("search", "--budget", "abc"), ("--budget", "'abc'", "60s")),
    (("search", "--budget", "0s"), ("--budget", "'0s'", "above zero")),
    (("search", "--budget", "-5s"), ("--budget", "'-5s'")),
    (("search", "--sampler", "psychic"), ("--sampler", "'psychic'", "tpe", "exhaustive")),
    (("search", "--seed", "x"), ("--seed", "'x'")),
    (("search", "--template", "nope"), ("--template", "'nope'", "portable")),
    (("search", "--backend", "tpu"), ("--backend", "'tpu'", "cuda, replay")),
    (("search", "--spaces", "/no/such"), ("--spaces", "/no/such", "folder")),
    (("search", "--backend", "cuda", "--spaces", "."), ("--spaces", "--backend")),
    (("search", "--spaces", ""), ("--spaces", "''")),
    (("plot", "--hdim", "64", "--seqlen", "512", "--spaces", ""), ("--spaces", "''")),
    (("plot", "--hdim", "64", "--seqlen", "512", "-o", ""), ("--output", "''")),
    (("dashboard", "--hdim", "64", "--seqlen", "512", "-o", ""), ("--output", "''")),
    (("record", "--hdim", "64", "--seqlen", "512", "-o", ""), ("--output", "''")),
    (("export", "-o", ""), ("--output", "''")),
    (("import", ""), ("FILE", "''")),
    (("merge", "", "-o", "/no/such.db"), ("a source is ''", "databases and documents")),
    (("search", "stray"), ("stray",)),
    (("search", "--hdin", "64"), ("--hdin",)),
    (("lookup",), ("--hdim", "missing")),
    (("lookup", "--hdim", "64"), ("--seqlen", "missing")),
    (
        ("lookup", "--hdim", "64", "--seqlen", "8", "--target", "abacus"),
        ("--target", "'abacus'", "sm_NN"),
    ),
    (("lookup", "--hdim", "80", "--seqlen", "8"), ("--hdim is 80", "64, 128, 256")),
    (("show", "--hdim", "77"), ("--hdim is 77", "64, 128, 256")),
    (("export", "--hdim", "77"), ("--hdim is 77", "64, 128, 256")),
    (
        ("lookup", "--hdim", "64", "--seqlen", "8", "--target", "sm_75"),
        ("--target is 'sm_75'", "must be one of sm_80, sm_86"),
    ),
    (
        ("plot", "--hdim", "64", "--seqlen", "512", "--kind", "history,moods"),
        ("--kind is 'moods'", "slices"),
    ),
    (("show", "--dtype", "int8"), ("--dtype", "'int8'", "fp16, bf16")),
    (("export", "--format", "xml"), ("--format", "'xml'", "json")),
    (("export", "-o", "/no/such/folder/file"), ("/no/such/folder/file",)),
    (
        ("export", "--format", "python", "--target", "sm_75"),
        ("--target is 'sm_75'", "must be one of sm_80, sm_86"),
    ),
    (("import",), ("FILE",)),
    (("import", "/no/such.json"), ("/no/such.json",)),
    (("compile", "--sm", "12"), ("--sm", "12", "90")),
    (("compile", "--jobs", "0"), ("--jobs", "0", "at least 1")),
    (("compile", "--limit", "-1"), ("--limit", "-1", "at least 1")),
    (("record", "--hdim", "64"), ("--seqlen", "missing")),
    (("no-such-command",), ("no-such-command",)),
]


@pytest.mark.parametrize(("words", "named"), BAD, ids=lambda value: " ".join(value))
def test_one_sentence(
    tuner: Run, tmp_path: Path, words: tuple[str, ...], named: tuple[str, ...]
) -> None:
    said = tuner(*words)
    assert said.status == 2
    assert said.out == ""
    assert said.err.startswith("tuner: ")
    assert said.err.count("\n") == 1
    for text in named:
        assert text in said.err


@pytest.mark.parametrize("command", ["record", "plot", "dashboard"])
@pytest.mark.parametrize("place", ["a file", "below a file", "read-only", "a link to nowhere"])
def test_an_output_that_cannot_be_written_is_refused_at_once(
    tuner: Run, tmp_path: Path, command: str, place: str
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    folder = file if place == "a file" else tmp_path / "folder"
    if place == "below a file":
        folder = file / "below"
    elif place == "read-only":
        folder.mkdir(mode=0o500)
        if os.access(folder, os.W_OK):
            pytest.skip("root may write anywhere")
    elif place == "a link to nowhere":
        folder.symlink_to(tmp_path / "nowhere")
    output = folder / "studies.db" if command == "dashboard" else folder
    db = tmp_path / "mine.db"
    said = tuner(command, "--hdim", "64", "--seqlen", "512", "-o", output, "--db", db)
    what = "a new file in a folder" if command == "dashboard" else "a folder"
    assert said.status == 2
    assert said.err == (f"tuner: --output is '{output}', but must be {what} that can be written\n")
    assert file.read_text() == "mine"
    assert not db.exists()


def test_a_dashboard_makes_no_folder(tuner: Run, tmp_path: Path) -> None:
    output = tmp_path / "missing" / "studies.db"
    said = tuner("dashboard", "--hdim", "64", "--seqlen", "512", "-o", output)
    assert said.status == 2
    assert f"--output is '{output}', but must be a new file in a folder" in said.err
    assert not output.parent.exists()


@pytest.fixture
def database(searched: Path) -> Path:
    return searched


@pytest.mark.parametrize(
    "words",
    [words for words, _ in BAD if words[0] in ("search", "show", "lookup", "export", "import")],
    ids=" ".join,
)
def test_the_database_is_untouched(tuner: Run, database: Path, words: tuple[str, ...]) -> None:
    before = database.read_bytes()
    assert tuner(*words, "--db", database).status == 2
    assert database.read_bytes() == before


@pytest.mark.parametrize("command", ["show", "export", "search", "import", "stale"])
def test_a_database_that_is_none(tuner: Run, spaces: Path, tmp_path: Path, command: str) -> None:
    garbage, empty = tmp_path / "garbage.db", tmp_path / "records.json"
    garbage.write_bytes(b"not a database, but long enough to be mistaken for one " * 99)
    tuner("export", "--seqlen", "999", "-o", empty)
    more = {"search": ("--spaces", spaces, "--hdim", "256"), "import": (empty,)}.get(command, ())
    for bad in (garbage, tmp_path):
        said = tuner(command, "--db", bad, *more)
        assert said.status == 2
        assert str(bad) in said.err.splitlines()[-1]
    assert garbage.read_bytes().startswith(b"not a database")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2", b"\xff\xfe\x00", b'{"version": 99}'])
def test_import_of_garbage(tuner: Run, tmp_path: Path, content: bytes) -> None:
    file, db = tmp_path / "garbage.json", tmp_path / "mine.db"
    file.write_bytes(content)
    said = tuner("import", file, "--db", db)
    assert said.status == 2
    assert "garbage.json" in said.err
    assert not db.exists()


def test_a_folder_of_spaces_without_any(tuner: Run, tmp_path: Path) -> None:
    said = tuner("search", "--spaces", tmp_path, "--db", tmp_path / "mine.db")
    assert said.status == 2
    assert "no recorded space" in said.err
    assert not (tmp_path / "mine.db").exists()


@pytest.mark.parametrize("name", ["x" * 300, "\x01" * 250])
def test_a_strange_name_leaves_room_for_what_is_accepted(
    tuner: Run, tmp_path: Path, name: str
) -> None:
    said = tuner("search", "--spaces", tmp_path / name, "--db", tmp_path / "mine.db")
    assert said.status == 2
    assert said.err.startswith("tuner: --spaces is '")
    assert said.err.endswith(", but must be a folder of recorded spaces\n")
    said = tuner("show", "--db", tmp_path / ("\x01" * 250))
    assert said.status == 2
    assert said.err.endswith("does not exist\n")


def test_debug_shows_the_traceback(child: Run) -> None:
    assert "Traceback" not in child("search", "--hdim", "x").err
    for words in (("--debug", "search"), ("search", "--debug")):
        said = child(*words, "--hdim", "x")
        assert "Traceback" in said.err
        assert said.status != 0


def test_a_fault_of_ours_is_told_from_theirs(tuner: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **more: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr("tuner.store.exchange.export_document", broken)
    said = tuner("export")
    assert said.status == 1
    assert "AssertionError: a bug" in said.err
    assert "--debug" in said.err


def test_help_names_every_sampler(tuner: Run) -> None:
    from tuner.search.samplers import NAMES

    said = tuner("search", "--help")
    assert all(name in said.out for name in NAMES)


def test_ctrl_c_says_what_is_kept(spaces: Path, tmp_path: Path) -> None:
    words = ("search", "--spaces", spaces, "--db", tmp_path / "mine.db", "--hdim", "256")
    code = (
        "import signal, sys, time, tuner.evaluate.replay as replay\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it for us\n"
        "evaluate = replay.ReplayExecutor.evaluate\n"
        "ended = []\n"
        "def slowly(*words):\n"
        "    if len(ended) == 4:\n"
        "        print('the fifth', file=sys.stderr, flush=True)\n"
        "        time.sleep(600)  # in which it is interrupted\n"
        "    ended.append(words)\n"
        "    return evaluate(*words)\n"
        "replay.ReplayExecutor.evaluate = slowly\n"
        "from tuner.cli import main; main()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=Path(__file__).parents[3], stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    assert child.stderr is not None
    for line in child.stderr:
        if line == "the fifth\n":
            break
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=ANSWER_S)
    assert child.returncode == 130
    assert "Traceback" not in said
    assert "trials are kept in" in said
    assert "the same command resumes" in said


# Runs a command line in which Ctrl-C arrives where what is patched in says.
INTERRUPTED = """
import signal, sys, tuner.evaluate.replay as replay
signal.signal(signal.SIGINT, signal.default_int_handler)
evaluate, calls = replay.ReplayExecutor.evaluate, []
def interrupted(*words):
    calls.append(words)
    if len(calls) == 3:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            {swallowed}
    return evaluate(*words)
replay.ReplayExecutor.evaluate = interrupted
from tuner.cli import main; main()
"""


@pytest.mark.parametrize(
    "swallowed",
    ["pass", "raise ImportError('initialization failed')"],
    ids=["lost in a callback", "turned into another error"],
)
def test_a_ctrl_c_that_was_swallowed_ends_the_search_too(
    spaces: Path, tmp_path: Path, swallowed: str
) -> None:
    words = ("search", "--spaces", spaces, "--db", tmp_path / "mine.db", "--hdim", "256")
    code = INTERRUPTED.format(swallowed=swallowed)
    said = run(code, *words)
    assert said.returncode == 130
    assert re.match(r"tuner: interrupted; \d new trials are kept in", said.stderr.splitlines()[-1])
    assert "finals" not in said.stderr


def test_a_ctrl_c_beside_a_search_is_one_sentence(searched: Path) -> None:
    code = """
import signal, tuner.store.layers as layers
signal.signal(signal.SIGINT, signal.default_int_handler)
layers.Layers.load = lambda *words: signal.raise_signal(signal.SIGINT)
from tuner.cli import main; main()
"""
    said = run(code, "show", "--db", searched)
    assert (said.returncode, said.stdout, said.stderr) == (130, "", "tuner: interrupted\n")


def test_a_ctrl_c_while_the_command_line_loads_shows_no_traceback() -> None:
    code = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from tuner.cli import main; main()
"""
    said = run(code, "show")
    assert (said.returncode, said.stderr) == (130, "")


def run(code: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_main_is_the_entry_point() -> None:
    assert callable(application.main)


def test_an_error_does_not_steer_the_terminal(tuner: Run) -> None:
    said = tuner("show", "--db", "\x1b[31mred\u202e")
    assert said.status == 2
    assert "\\x1b[31mred\\u202e does not exist" in said.err
    assert said.err[:-1].isprintable()


def test_export_does_not_replace_a_database(tuner: Run, searched: Path) -> None:
    before = searched.read_bytes()
    for words in (("--db", searched), ("--schema",), ("--format", "python", "--target", "sm_90")):
        said = tuner("export", *words, "-o", searched)
        assert said.status == 2
        assert f"{searched} is a database, which is not replaced" in said.err
    assert searched.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_no_database_and_no_space(tuner: Run, tmp_path: Path) -> None:
    folder = tmp_path / "spaces"
    folder.mkdir()
    for pipe in (tmp_path / "pipe.db", folder / "a.json"):
        os.mkfifo(pipe)
    said = tuner("show", "--db", tmp_path / "pipe.db")
    assert said.status == 2
    assert "pipe.db is a device or a pipe" in said.err
    assert "holds no recorded space" in tuner("search", "--spaces", folder).err


@pytest.mark.skipif(os.name != "posix", reason="closes descriptors as a shell does")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams(searched: Path, closed: str) -> None:
    command = f'"$0" -m tuner show --db "$1" {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, searched], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_that_knows_ascii_only(child: Run, searched: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for environment in ({"PYTHONIOENCODING": "ascii"}, locale):
        said = child("show", "--db", searched, environment=environment)
        assert said.status == 0
        assert "1.00?" in said.out


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("", "'', but must be a path or a URL"),
        ("a\0b", r"'a\x00b', but must have no NUL character"),
        ("/", "/ is a directory, but must be a file"),
        ("~nobody-of-this-name/x", "~nobody-of-this-name/x"),
        ("postgresql://u:secret@host:port/x", "URL cannot be parsed"),
    ],
)
@pytest.mark.parametrize("command", ["show", "import"])
def test_a_location_that_names_no_database(
    tuner: Run, tmp_path: Path, command: str, location: str, said: str
) -> None:
    document = tmp_path / "none.json"
    document.write_text('{"format": "attention-tuner/records", "version": 1, "records": []}')
    refused = tuner(command, *([document] if command == "import" else []), "--db", location)
    assert refused.status == 2
    assert said in refused.err
    assert "secret" not in refused.err
