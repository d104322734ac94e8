"""Tuned fused attention: search, a persistent config database, and the runtime that uses it.

>>> from tuner import custom_attention_forward
>>> out = custom_attention_forward(q, k, v, causal=True)

Importing this loads neither torch nor any tuning library; what needs torch is loaded when used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tuner._coexist import share_kernels
from tuner.version import __version__

share_kernels()  # before anything of ours imports kernels.attention

if TYPE_CHECKING:
    from tuner.control import flush_misses, lookup, pin, refresh, snapshot_hash, use
    from tuner.fallback import FallbackWarning
    from tuner.plans import UntunedWarning
    from tuner.runtime import attention, custom_attention_forward, flash_attn_func

# name -> the module that has it
_HOMES = {
    "FallbackWarning": "tuner.fallback",
    "UntunedWarning": "tuner.plans",
    "attention": "tuner.runtime",
    "custom_attention_forward": "tuner.runtime",
    "flash_attn_func": "tuner.runtime",
    "flush_misses": "tuner.control",
    "lookup": "tuner.control",
    "pin": "tuner.control",
    "refresh": "tuner.control",
    "snapshot_hash": "tuner.control",
    "use": "tuner.control",
}

__all__ = [
    "FallbackWarning",
    "UntunedWarning",
    "__version__",
    "attention",
    "custom_attention_forward",
    "flash_attn_func",
    "flush_misses",
    "lookup",
    "pin",
    "refresh",
    "snapshot_hash",
    "use",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        # Found here next time: this would cost a forward a microsecond.
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
