"""Compiled binaries that travel: what one host's Triton compiled, put where another's looks first.

Triton keeps what it compiles in a folder per kernel, named by a hash of all that went into it, and
finds it there again. So a parcel that fits nothing does no harm: it is compiled anew.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from kernels.attention.printable import shown
from tuner.files import replacing

Parcel = Mapping[str, bytes]
"""Contents by `folder/file`."""

_NAME = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]*/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*")
_GROUP = "__grp__"  # how the file begins that lists the others, by absolute paths
_MOST_BYTES = 64 * 2**20


def pack(cache: Path) -> Parcel:
    """Take all that was compiled into `cache` out of it."""
    parcel: dict[str, bytes] = {}
    for folder in sorted(path for path in cache.glob("*") if path.is_dir()):
        for file in sorted(path for path in folder.iterdir() if path.is_file()):
            parcel[f"{folder.name}/{file.name}"] = file.read_bytes()
        shutil.rmtree(folder, ignore_errors=True)
    return parcel


def unpack(parcel: Parcel, cache: Path) -> None:
    """Put `parcel` into `cache`, where it is not there yet.

    Raises:
        ValueError: it would write elsewhere, or is too large to be one.
    """
    if sum(map(len, parcel.values())) > _MOST_BYTES:
        raise ValueError(f"the parcel has more than {_MOST_BYTES} bytes")
    for name in parcel:
        if not _NAME.fullmatch(name):
            raise ValueError(f"the parcel holds {shown(name)}, but must hold files in folders only")
    # The lists last: Triton takes what one names for whole.
    for name in sorted(parcel, key=lambda name: (f"/{_GROUP}" in name, name)):
        path = cache / name
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        content = parcel[name]
        if path.name.startswith(_GROUP):
            listed = json.loads(content)["child_paths"]
            here = {child: str(path.parent / child) for child in listed}
            content = json.dumps({"child_paths": here}).encode()
        with replacing(path) as part:  # for evaluators that share the folder
            part.write_bytes(content)
