"""A process that adds records, and a trial with every tenth, and prints each number once it is
acknowledged.

    python -m tests.tuner.store.writer DATABASE FIRST COUNT [GATE]

It says `ready` first, and begins when the file GATE is there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.tuner.store import samples
from tuner.store.database import Store


def main(location: str, first: str, count: str, gate: str = "") -> None:
    print("ready", flush=True)
    while gate and not Path(gate).exists():
        time.sleep(0.005)
    with Store.open(location) as store:
        for number in range(int(first), int(first) + int(count)):
            if not store.add_record(samples.bare_record(number)):
                raise AssertionError(f"{number} was there already")
            if number % 10 == 0:
                store.add_trial(samples.trial(number))
            print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
