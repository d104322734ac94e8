"""Files and folders that options name, looked at before the work: nothing is made or changed."""

from __future__ import annotations

import os
from pathlib import Path

from kernels.attention.printable import shown
from tuner.cli.failure import CommandError

_MOST = 300  # characters of a name in a sentence: what is accepted comes after it


def named(place: Path | str) -> str:
    """What a sentence calls `place`."""
    return shown(str(place), _MOST)


def folder_of_spaces(option: str, folder: Path) -> Path:
    """`folder`, if it is one."""
    try:
        there = folder.is_dir()
    except (OSError, ValueError):  # too long, with a NUL character
        there = False
    if not there:
        raise CommandError(f"{option} is {named(folder)}, but must be a folder of recorded spaces")
    return folder


def writable_folder(option: str, folder: Path) -> None:
    """Refuse a folder that cannot be written, nor made where it is not there; nothing is made."""
    if not _can_be_written(folder):
        raise CommandError(f"{option} is {named(folder)}, but must be a folder that can be written")


def new_file(option: str, file: Path) -> None:
    """Refuse a file that is there already, or whose folder is not there or cannot be written."""
    possible = True
    try:
        file.lstat()
    except FileNotFoundError:
        possible = file.parent.is_dir() and _can_be_written(file.parent)
    except (OSError, ValueError):  # below a file, too long, with a NUL character
        possible = False
    else:
        raise CommandError(f"{option} is {named(file)}, which exists already: name a new file")
    if not possible:
        raise CommandError(
            f"{option} is {named(file)}, but must be a new file in a folder that can be written"
        )


def _can_be_written(folder: Path) -> bool:
    for place in (folder, *folder.parents):
        try:
            place.stat()
        except FileNotFoundError:
            if place.is_symlink():
                return False  # it leads nowhere, and no folder can be made of its name
            continue
        except (OSError, ValueError):  # below a file, too long, with a NUL character
            return False
        return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return False
