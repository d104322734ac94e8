"""Tuned fused attention: search, a persistent config database, and the runtime that uses it.

>>> from tuner import custom_attention_forward
>>> out = custom_attention_forward(q, k, v, causal=True)

Importing this loads neither torch nor any tuning library; what needs torch is loaded when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuner._coexist import share_kernels
from tuner.version import __version__

share_kernels()  # before anything of ours imports kernels.attention

if TYPE_CHECKING:
    from tuner.fallback import FallbackWarning
    from tuner.runtime import custom_attention_forward, lookup, use

__all__ = ["FallbackWarning", "__version__", "custom_attention_forward", "lookup", "use"]


def __getattr__(name: str) -> Any:
    if name == "FallbackWarning":
        from tuner import fallback

        return fallback.FallbackWarning
    if name in __all__:
        from tuner import runtime

        return getattr(runtime, name)
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
