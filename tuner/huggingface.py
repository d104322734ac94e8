"""Attention of Hugging Face transformers by the tuned kernels.

>>> from tuner import huggingface
>>> huggingface.register()
>>> model.set_attn_implementation("tuner")  # or from_pretrained(..., attn_implementation="tuner")

Causal and full attention, with a key-value cache (the mask is aligned bottom-right) and grouped
heads (nothing is expanded). Padding is served where the tokens of each sequence are one run, as
padding left or right is: a batch that is padded right, under a causal mask, by one launch, others
by one launch for each group of neighbouring sequences with the same run. Where a run is known costs
one synchronisation per forward, as in transformers' own flash attention. Rows of padding are
unspecified. All else goes to SDPA: CPU tensors silently; other masks, dropout, position biases and
dtypes with one warning each. So do, within graphs of torch.compile and CUDA graphs, batches with a
mask, since nothing may depend on what it holds there, and forwards without a cache, which
transformers then takes for packed sequences; torch.compile keeps the warning back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from tuner import extras

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import (
        bidirectional_mask_function,
        causal_mask_function,
        sdpa_mask,
    )
    from transformers.utils.import_utils import is_tracing
except ImportError as error:
    raise ImportError(
        f"tuner.huggingface needs transformers 5.17 or newer ({error}); "
        f"{extras.command('huggingface')}"
    ) from error

from kernels.attention.printable import printable, shown
from tuner import fallback
from tuner.runtime import flash_attn_func

# What models pass on that neither the kernels nor SDPA compute.
_NOWHERE = ("softcap", "s_aux")


def register(name: str = "tuner") -> None:
    """Make `name` an attention implementation of transformers, together with its masks.

    Raises:
        ValueError: `name` is no text, an empty one, or that of another implementation.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"name is {shown(name)}, but must be a text of at least one character")
    if name in (taken := _others()):
        raise ValueError(
            f"name is {shown(name)}, but must be none that transformers has already: "
            f"{printable(', '.join(sorted(taken)))}"
        )
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)


def _others() -> set[str]:
    """The names that transformers knows, but for those that `register` gave it. By the module, not
    by the function, which is another one once this module was reloaded."""
    return {"eager"} | {  # which models have in themselves
        name
        for interface in (AttentionInterface(), AttentionMaskInterface())
        for name, function in interface.items()
        if getattr(function, "__module__", None) != __name__
    }


@dataclass(frozen=True)
class Padding:
    """What a 2-d mask says."""

    causal: bool
    runs: tuple[tuple[int, int], ...]  # of each sequence: its first token, and one past its last


# Padding of the masks that attention_mask made, so that no layer has to read them again.
_known = WeakTensorKeyDictionary()


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    use_vmap: bool = False,
    **more: Any,
) -> Tensor | None:
    """The mask that a model hands to each of its layers; see transformers.masking_utils.sdpa_mask.

    Returns:
        None where the layer's own causality, aligned bottom-right, says it all; (batch, keys) bool
        where each sequence is one run of the first `keys` keys and the queries are the last of
        these; else SDPA's (batch, 1, q_length, kv_length) bool. On other devices than CUDA always
        what SDPA wants.
    """

    def for_sdpa(**changes: Any) -> Tensor | None:
        found: Tensor | None = sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            device=device, use_vmap=use_vmap, **{**more, **changes},
        )  # fmt: skip
        return found

    if not _serves(torch.device(device)):
        return for_sdpa()
    causal = mask_function is causal_mask_function
    reads = attention_mask is not None or isinstance(q_offset, Tensor)
    if reads and is_tracing(attention_mask):
        return for_sdpa(allow_is_causal_skip=False)
    visible = int(q_offset) - kv_offset + q_length if causal else kv_length
    plain = causal or mask_function is bidirectional_mask_function
    if use_vmap or not plain or visible > kv_length:
        # None means here that no window ends within the keys. SDPA's alignment is another, though,
        # where there are keys to come.
        ends = int(q_offset) - kv_offset + q_length == kv_length
        return for_sdpa(**({} if ends else {"allow_is_causal_skip": False}))
    mask = _real(attention_mask, batch_size, kv_offset, visible, torch.device(device))
    if mask is None:
        if visible == kv_length:
            return None
        mask = torch.ones(batch_size, visible, dtype=torch.bool, device=device)
    runs = _runs(mask)
    if runs is None:
        return for_sdpa(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    if visible == kv_length and all(run == (0, visible) for run in runs):
        return None
    _known[mask] = Padding(causal, runs)
    return mask


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """What a layer calls; see transformers.AttentionInterface.

    Args:
        query: (batch, nheads, seqlen_q, headdim).
        key, value: (batch, nheads_kv, seqlen_k, headdim).
        attention_mask: as `attention_mask` returns it, or any mask that SDPA takes.

    Returns:
        (batch, seqlen_q, nheads, headdim), and None in place of the weights.

    Raises:
        NotImplementedError: a softcap or attention sinks, which SDPA would leave out.
    """
    for name in _NOWHERE:
        if more.get(name) is not None:
            raise NotImplementedError(
                f"{name} is given, but must be None here and with SDPA: use "
                'attn_implementation="eager"'
            )
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    reason = _refusal(query, attention_mask, dropout, more)
    padding = None
    if attention_mask is not None and attention_mask.dim() == 2:
        padding = _known.get(attention_mask)
        if padding is None and reason is None:  # it was copied to another device, say
            runs = None if is_tracing(attention_mask) else _runs(attention_mask)
            padding = None if runs is None else Padding(causal, runs)
            reason = None if padding else _OTHER_MASK
        causal = causal if padding is None else padding.causal
    if reason is None:
        if attention_mask is None or padding is None:
            return _flash(query, key, value, causal, scaling), None
        return _by_runs(query, key, value, attention_mask.shape[1], padding, scaling), None
    if _serves(query.device):
        if not torch.compiler.is_compiling():  # a warning would break the graph
            fallback.announce(reason)
        attention_mask = _explicit(query, key, attention_mask, causal)
        is_causal = causal and attention_mask is None
    found: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask,
        dropout=dropout, scaling=scaling, is_causal=is_causal, **more,
    )  # fmt: skip
    return found


_OTHER_MASK = "an attention mask that is more than causality and padding around one run of tokens"


def _refusal(
    query: Tensor, mask: Tensor | None, dropout: float, more: dict[str, Any]
) -> str | None:
    """Why the kernels cannot serve a call; None if they can."""
    if not _serves(query.device):
        return f"the tensors are on {query.device.type}"
    if query.dtype not in (torch.float16, torch.bfloat16):
        return f"the inputs are {query.dtype}, templates take float16 and bfloat16"
    if dropout:
        return "dropout is not 0"
    if more.get("position_bias") is not None:
        return "a position_bias is given"
    if mask is not None and mask.dim() != 2:
        return _OTHER_MASK
    return None


def _serves(device: torch.device) -> bool:
    return device.type == "cuda"


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, scaling: float | None) -> Tensor:
    """(batch, seqlen_q, nheads, headdim) of (batch, nheads, seqlen, headdim)."""
    # One query sees every key: one binary less.
    causal = causal and q.shape[2] > 1
    out = flash_attn_func(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), scaling, causal
    )  # fmt: skip
    assert isinstance(out, Tensor)
    return out


def _by_runs(
    q: Tensor, k: Tensor, v: Tensor, visible: int, padding: Padding, scaling: float | None
) -> Tensor:
    """Attention within the runs of `padding` in the first `visible` keys, of which the queries are
    the last if it is causal; (batch, seqlen_q, nheads, headdim)."""
    k, v = k[:, :, :visible], v[:, :, :visible]
    batch, heads, seqlen_q, _ = q.shape
    runs, causal = padding.runs, padding.causal
    if causal and all(start == 0 for start, _ in runs):
        # What follows a run is hidden from it.
        return _flash(q, k, v, True, scaling)
    out = q.new_zeros(batch, seqlen_q, heads, v.shape[3])
    first = visible - seqlen_q  # position of the first query
    row = 0
    for (start, stop), group in groupby(runs):
        rows = slice(row, row + len(list(group)))
        row = rows.stop
        # Queries outside of the run are padding, and its last query sees all of it.
        within = slice(max(start - first, 0), max(stop - first, 0)) if causal else slice(seqlen_q)
        if start < stop and (within.start or 0) < within.stop:
            out[rows, within] = _flash(
                q[rows, :, within], k[rows, :, start:stop], v[rows, :, start:stop], causal, scaling
            )
    return out


def _real(
    mask: Tensor | None, batch: int, offset: int, visible: int, device: torch.device
) -> Tensor | None:
    """(batch, visible) bool, the tokens among the keys from `offset` on; what lies beyond the end
    of the model's mask is none. None if there is no mask."""
    if mask is None:
        return None
    mask = mask[:, offset : offset + visible].to(device=device, dtype=torch.bool)
    missing = visible - mask.shape[1]
    mask = nn.functional.pad(mask, (0, missing)) if missing > 0 else mask
    return mask.expand(batch, -1) if mask.shape[0] != batch else mask


def _runs(mask: Tensor) -> tuple[tuple[int, int], ...] | None:
    """The run of each sequence, (0, 0) for one without tokens; None if one has several. One
    synchronisation."""
    mask = mask.bool()
    keys = mask.shape[1]
    if keys == 0:
        return ((0, 0),) * mask.shape[0]
    number = mask.sum(1)
    first = mask.int().argmax(1)
    last = keys - mask.int().flip(1).argmax(1)
    found = torch.stack((number, first, last), 1).tolist()
    if any(count and count != stop - start for count, start, stop in found):
        return None
    return tuple((start, stop) if count else (0, 0) for count, start, stop in found)


def _explicit(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    """`mask` as SDPA takes it: with more keys than queries its own causality is another."""
    seqlen_q, seqlen_k = query.shape[2], key.shape[2]
    if mask is not None and mask.dim() != 2:
        return mask
    if mask is None and (not causal or seqlen_q in (1, seqlen_k)):
        return None
    visible = seqlen_k if mask is None else mask.shape[1]
    allowed = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=query.device)
    if causal:
        allowed = allowed.tril(visible - seqlen_q)
    allowed = allowed[None, None]
    if mask is not None:
        real = nn.functional.pad(mask.bool(), (0, seqlen_k - visible))
        allowed = allowed & real[:, None, None, :]
    return allowed
