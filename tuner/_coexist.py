"""One import name for two distributions: ours and Hugging Face's both install a package `kernels`.

Theirs is a regular package and hides our namespace portion wherever the two do not share a folder:
in an editable install and in a checkout. A package looks its submodules up in `__path__`, so ours
are found once our folder is in it.
"""

from __future__ import annotations

import importlib
from pathlib import Path


def share_kernels() -> None:
    """Let `import kernels.attention` find ours, whoever owns `kernels`. Safe to call twice.

    Their package is imported here if it is installed (0.15 s, no torch): a package must be
    imported before its submodules, so it would be in any case.

    Raises:
        ImportError: theirs is installed, but broken.
    """
    ours = Path(__file__).resolve().parent.parent / "kernels"
    try:
        package = importlib.import_module("kernels")
    except Exception as error:
        raise ImportError(
            "attention-tuner shares the import name `kernels` with the distribution `kernels`, "
            f"which is installed here but fails to import ({error}): repair or uninstall it"
        ) from error
    if str(ours) not in package.__path__:
        package.__path__.append(str(ours))
