"""kill -9 of drivers, workers and writers at random moments: what was lost, repeated, or damaged?

    python scripts/kill_nine.py --kills 100

Every search here is a rehearsal: its processes are those of a search on two GPUs, its figures the
shipped recordings. It needs no GPU. `docs/faults.md` has the figures of a run.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
# This folder for its modules: a package called `scripts` may be installed, and hides it.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(ROOT))

from kernels.attention.problem import Problem  # noqa: E402
from tuner.evaluate import rehearsal  # noqa: E402
from tuner.evaluate.local import LocalExecutor  # noqa: E402
from tuner.evaluate.rehearsal import Rehearsal  # noqa: E402
from tuner.evaluate.replay import ReplayExecutor  # noqa: E402
from tuner.search import driver  # noqa: E402
from tuner.search.events import Event, TrialEnded  # noqa: E402
from tuner.search.options import Options  # noqa: E402
from tuner.store.database import Store  # noqa: E402
from tuner.store.locations import shipped_database  # noqa: E402
from tuner.trial import Outcome  # noqa: E402

if TYPE_CHECKING:
    from scripts import refusals
else:
    import refusals

PROBLEM = Problem.on_grid(64, 4096, True)
TRIALS = 40
OPTIONS = Options(TRIALS, sampler="random")
GONE_S = 5.0  # how long what a driver started may outlive it
_CHILD = "--child"


@dataclass
class Tally:
    """What became of it all. All but the first four are to be 0."""

    kills: int = 0
    midway: int = 0  # of these, when the search or writer is known to have told something
    told: int = 0  # trials or records that were said to be kept
    given_up: int = 0  # trials whose request was killed three times, which is held against them
    lost: int = 0  # told, and not there
    repeated: int = 0  # told twice
    damaged: int = 0  # databases whose integrity check complains
    left: int = 0  # processes alive GONE_S after their driver
    astray: int = 0  # searches that ended in another winner, or not at all
    seconds: float = field(default=0.0, compare=False)

    @property
    def faults(self) -> int:
        return self.lost + self.repeated + self.damaged + self.left + self.astray


def kill_drivers(kills: int, folder: Path, chance: random.Random) -> Tally:
    """Kill searches, each of which goes on where the one before was killed."""
    tally, winner, number = Tally(), undisturbed(folder), 0
    while tally.kills < kills:
        number += 1
        path = folder / f"driver-{number}.db"
        told: Counter[str] = Counter()
        ended = False
        while not ended:
            child = start("search", path)
            first = some_way(child, tally)
            ended = tally.kills == kills
            if not ended:
                try:
                    child.wait(chance.uniform(0.0, 2.0))
                    ended = True
                except subprocess.TimeoutExpired:
                    family = descendants(child.pid)
                    child.kill()
                    tally.kills += 1
                    tally.left += outliving(family)
            out, _ = child.communicate(timeout=120)
            lines = list(whole_lines(first + out))
            told.update(lines)
            tally.midway += bool(lines) and not ended
            tally.damaged += not intact(path)
        tally.told += len(told)
        tally.repeated += sum(told.values()) - len(told)
        tally.astray += child.returncode != 0
        with Store.open(path) as store:
            there = {trial.candidate.config.key for trial in store.trials()}
            tally.lost += len(set(told) - there)
            tally.astray += len(there) != TRIALS
            tally.astray += [str(r.candidate) for r in store.records()] != [winner]
    return tally


def kill_workers(kills: int, folder: Path, chance: random.Random) -> Tally:
    """Kill compilers and evaluators of searches, which must go on to the same winner."""
    tally, winner, number = Tally(), undisturbed(folder), 0
    while tally.kills < kills:
        number += 1
        path = folder / f"worker-{number}.db"
        child = start("search", path)
        first = some_way(child, tally)
        while tally.kills < kills:
            try:
                child.wait(chance.uniform(0.5, 3.0))
                break
            except subprocess.TimeoutExpired:
                if family := children(child.pid):
                    os.kill(chance.choice(family), signal.SIGKILL)
                    tally.kills += 1
                    tally.midway += bool(first)
        out, _ = child.communicate(timeout=120)
        told = Counter(whole_lines(first + out))
        tally.told += len(told)
        tally.repeated += sum(told.values()) - len(told)
        tally.damaged += not intact(path)
        tally.astray += child.returncode != 0
        with Store.open(path) as store:
            trials = store.trials()
            tally.lost += len(set(told) - {trial.candidate.config.key for trial in trials})
            given_up = [str(t.candidate) for t in trials if t.outcome is Outcome.CRASHED]
            tally.given_up += len(given_up)
            found = [str(record.candidate) for record in store.records()]
            right = found == [winner] or (len(found) == 1 and winner in given_up)
            tally.astray += not right or found[0] in given_up
    return tally


def kill_writers(kills: int, folder: Path, chance: random.Random) -> Tally:
    """Kill processes that write as fast as they can, all to one database."""
    tally = Tally()
    path = folder / "writer.db"
    told: Counter[str] = Counter()
    while tally.kills < kills:
        child = start("write", path, str(1_000_000 * tally.kills))
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.3))
        child.kill()
        tally.kills += 1
        tally.midway += bool(first)
        out, _ = child.communicate(timeout=60)
        told.update(whole_lines(first + out))
        tally.damaged += not intact(path)
        with Store.open(path) as store:
            tally.lost += len(set(told) - {record.note for record in store.records()})
    tally.told = len(told)
    tally.repeated = sum(told.values()) - len(told)
    return tally


KINDS: dict[str, Callable[[int, Path, random.Random], Tally]] = {
    "driver": kill_drivers,
    "worker": kill_workers,
    "writer": kill_writers,
}


def some_way(child: subprocess.Popen[str], tally: Tally) -> str:
    """Wait until `child` has told something, and return it; nothing if it ends before. Before every
    fourth kill do not wait: then it comes while processes start."""
    assert child.stdout is not None
    return "" if tally.kills % 4 == 3 else child.stdout.readline()


def undisturbed(folder: Path) -> str:
    """The winner of a search that nobody kills."""
    with Store.open(folder / "undisturbed.db") as store, ReplayExecutor() as executor:
        (record,) = driver.search([PROBLEM], executor, store, (), OPTIONS)
    assert record is not None
    return str(record.candidate)


def start(what: str, *words: object) -> subprocess.Popen[str]:
    """This script as a child that searches or writes, and prints what it is told is kept."""
    return subprocess.Popen(
        [sys.executable, __file__, _CHILD, what, *map(str, words)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def search(location: str) -> None:
    """The child of a killed driver."""

    def tell(event: Event) -> None:
        if isinstance(event, TrialEnded):
            print(event.trial.candidate.config.key, flush=True)

    options = rehearsal.options(None, pace=1.5)
    processes = LocalExecutor(
        devices=(0, 1), jobs=1, gpu_factory=rehearsal.GPU_FACTORY, gpu_options=options,
        compile_factory=rehearsal.COMPILE_FACTORY, compile_options=rehearsal.options(None),
    )  # fmt: skip
    with Rehearsal(processes, ReplayExecutor()) as executor, Store.open(location) as store:
        driver.search([PROBLEM], executor, store, (), OPTIONS, tell)


def write(location: str, first: str) -> None:
    """The child that writes."""
    from dataclasses import replace

    shipped = shipped_database()
    assert shipped is not None
    with Store.read_only(shipped) as store:
        pattern = store.records()[0]
    with Store.open(location) as store:
        for number in range(int(first), int(first) + 1_000_000):
            store.add_record(replace(pattern, note=str(number), uid=""))
            print(number, flush=True)


def whole_lines(text: str) -> Iterator[str]:
    """The last line may have been cut by the kill."""
    return (line.strip() for line in text.splitlines(keepends=True) if line.endswith("\n"))


def intact(path: Path) -> bool:
    if not path.exists():
        return True  # killed before there was anything
    with closing(sqlite3.connect(path)) as connection:
        found: list[tuple[str]] = connection.execute("pragma integrity_check").fetchall()
    return found == [("ok",)]


def children(pid: int) -> list[int]:
    """The processes that any thread of `pid` started."""
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, tasks.read_text().split())
        except OSError:  # the thread has ended
            continue
    return found


def descendants(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *descendants(child))]


def outliving(family: list[int]) -> int:
    """How many of `family` are alive after GONE_S."""
    end = time.monotonic() + GONE_S
    while time.monotonic() < end and any(map(alive, family)):
        time.sleep(0.02)
    return sum(map(alive, family))


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def main(words: list[str] | None = None) -> int:
    parser = refusals.Parser(__doc__)
    parser.add_argument("--kills", type=int, default=100, help="kills in all")
    parser.add_argument("--seed", type=int, default=None, help="of the moments")
    asked = parser.parse_args(words)
    if asked.kills < len(KINDS):  # none would show nothing
        parser.error(
            f"--kills is {asked.kills}, but must be a whole number of at least {len(KINDS)}, one "
            f"for each of {', '.join(KINDS)}"
        )
    if sys.platform != "linux":
        parser.error("this reads /proc, which only Linux has")
    chance = random.Random(asked.seed)
    total = Tally()
    for index, (name, run) in enumerate(KINDS.items()):
        kills = asked.kills // len(KINDS) + (index < asked.kills % len(KINDS))
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            tally = run(kills, Path(folder), chance)
        tally.seconds = time.monotonic() - began
        print(f"{name}: {tally}", flush=True)
        for each in fields(Tally):
            setattr(total, each.name, getattr(total, each.name) + getattr(tally, each.name))
    print(
        f"{total.kills} kills, {total.midway} once something had been told; {total.told} "
        f"told: {total.lost} lost, {total.repeated} repeated, {total.damaged} databases damaged, "
        f"{total.left} processes left, {total.astray} searches astray; {total.given_up} trials "
        f"given up, killed three times; {total.seconds:.0f} s"
    )
    return int(total.faults > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == [_CHILD]:
        what, *places = sys.argv[2:]
        search(*places) if what == "search" else write(*places)
    else:
        sys.exit(main())
