"""The templates there are. Adding one is its module and one line here."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from kernels.attention.printable import shown
from kernels.attention.template import Template

# name -> module:class. Modules are imported when asked for, so that a template that needs a newer
# Triton than the installed one costs nothing until it is used. The first one that serves a problem
# is its default.
_TEMPLATES = {
    "hopper": "kernels.attention.hopper:HopperTemplate",
    "portable": "kernels.attention.portable:PortableTemplate",
}


def names() -> tuple[str, ...]:
    """The names of all templates, in the order in which ties between them are broken."""
    return tuple(_TEMPLATES)


@cache
def get(name: str) -> Template:
    """The template called `name`.

    Raises:
        KeyError: there is none; the message lists those there are.
    """
    try:
        module, _, attribute = _TEMPLATES[name].partition(":")
    except KeyError:
        raise KeyError(
            f"template is {shown(name)}, but must be one of {', '.join(names())}"
        ) from None
    template: Template = getattr(import_module(module), attribute)()
    return template


def find(name: str) -> Template | None:
    """The template called `name`; None if there is none."""
    try:
        return get(name)
    except KeyError:
        return None
