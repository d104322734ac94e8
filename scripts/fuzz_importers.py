"""Coverage-guided fuzzing of what reads strangers' files: documents, databases, recorded spaces.

    pip install atheris
    python scripts/fuzz_importers.py document -max_total_time=60

`document`, `database` or `space`, then libFuzzer's options. It stops at whatever is raised that is
no refusal of ours. `docs/faults.md` has the figures of a run.
"""

from __future__ import annotations

import contextlib
import gzip
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

try:
    import atheris
except ImportError:
    sys.exit("atheris is not installed: pip install atheris (CPython up to 3.13, on Linux)")

with atheris.instrument_imports(include=["tuner", "kernels", "json"]):
    from tuner.evaluate.replay import shipped_spaces
    from tuner.evaluate.space_file import read_space
    from tuner.evaluate.t4 import SpaceError, decompressed
    from tuner.store.database import Store
    from tuner.store.errors import StoreError
    from tuner.store.exchange import export_document, import_document, read_document
    from tuner.store.layers import Layers
    from tuner.store.locations import shipped_database
    from tuner.store.publish import publish
    from tuner.store.rows import trial_row

_PLACE = Path(tempfile.mkdtemp(prefix="fuzz-"))
_SEEDS = _PLACE / "seeds"


def document(content: bytes) -> None:
    path = _PLACE / "records.json"
    path.write_bytes(content)
    try:
        records = read_document(path)
    except StoreError:
        return
    assert len(import_document(export_document(records))) == len({r.uid for r in records})


def database(content: bytes) -> None:
    path = _PLACE / "records.db"
    path.write_bytes(content)
    Layers.load(path, strict=False, shipped=path)  # never raises
    try:
        with Store.open(path) as store:
            store.add_records(store.records())
            store.trials()
    except StoreError:
        pass
    for left in _PLACE.glob("records.db?*"):
        left.unlink()


def space(content: bytes) -> None:
    path = _PLACE / "space.json.gz"
    path.write_bytes(gzip.compress(content, 1))
    with contextlib.suppress(SpaceError):
        read_space(path).check(trial_row)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "document": document,
    "database": database,
    "space": space,
}


def seed(name: str) -> None:
    """A whole one to begin with."""
    _SEEDS.mkdir()
    shipped = shipped_database()
    assert shipped is not None
    with Store.read_only(shipped) as store:
        records = store.records()[:2]
    if name == "document":
        (_SEEDS / "seed").write_text(export_document(records), encoding="utf-8")
    elif name == "database":
        publish(_SEEDS / "seed", records)
    else:
        smallest = min(shipped_spaces().iterdir(), key=lambda path: path.stat().st_size)
        (_SEEDS / "seed").write_bytes(decompressed(smallest, 20_000, whole=False)[:20_000])


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in TARGETS:
        sys.exit(f"the target is {name!r}, but must be one of {', '.join(TARGETS)}")
    logging.disable(logging.WARNING)
    seed(name)
    longest = "-max_len=65536"
    atheris.Setup([sys.argv[0], longest, *sys.argv[2:], str(_SEEDS)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
