"""Attention in Helion's language, after the examples that come with it. Any seqlen."""

from __future__ import annotations

import math
import sys

if __name__ == "__main__":
    print("helion_attention.py is no program: rival_tuners.py imports it", file=sys.stderr)
    sys.exit(2)

import helion
import helion.language as hl
import torch
from torch import Tensor


def step(
    qk: Tensor, v: Tensor, m_i: Tensor, l_i: Tensor, acc: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The online softmax, on by one tile of keys. Scores are in fp32 and to base 2."""
    m_ij = torch.maximum(m_i, torch.amax(qk, -1))
    p = torch.exp2(qk - m_ij.unsqueeze(-1))
    alpha = torch.exp2(m_i - m_ij)
    l_ij = l_i * alpha + torch.sum(p, -1)
    return m_ij, l_ij, torch.baddbmm(acc * alpha.unsqueeze(-1), p.to(v.dtype), v)


@helion.kernel(static_shapes=True)
def attention(q_in: Tensor, k_in: Tensor, v_in: Tensor) -> Tensor:
    """softmax(q·kᵀ/√D)·v over (batch, heads, seqlen, headdim)."""
    m_dim, n_dim = q_in.size(-2), k_in.size(-2)
    head_dim = hl.specialize(q_in.size(-1))
    q_view = q_in.reshape([-1, m_dim, head_dim])
    v_view = v_in.reshape([-1, n_dim, head_dim])
    k_view = k_in.reshape([-1, n_dim, head_dim]).transpose(1, 2)
    out = torch.empty_like(q_view)
    qk_scale = 1.44269504 / math.sqrt(head_dim)
    for tile_b, tile_m in hl.tile([q_view.size(0), m_dim]):
        m_i = hl.full([tile_b, tile_m], float("-inf"), dtype=torch.float32)
        l_i = hl.zeros([tile_b, tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_b, tile_m, head_dim], dtype=torch.float32)
        q = q_view[tile_b, tile_m, :]
        for tile_n in hl.tile(v_view.size(1)):
            qk = hl.dot(q, k_view[tile_b, :, tile_n], out_dtype=torch.float32) * qk_scale
            m_i, l_i, acc = step(qk, v_view[tile_b, tile_n, :], m_i, l_i, acc)
        acc = acc / l_i[:, :, None]
        out[tile_b, tile_m, :] = acc.to(out.dtype)
    return out.view(q_in.size())


@helion.kernel(static_shapes=True)
def causal_attention(q_in: Tensor, k_in: Tensor, v_in: Tensor) -> Tensor:
    """The same where row i sees keys up to number i: tiles left of the diagonal need no mask, and
    those right of it are not visited. As many keys as queries."""
    m_dim, n_dim = q_in.size(-2), k_in.size(-2)
    head_dim = hl.specialize(q_in.size(-1))
    q_view = q_in.reshape([-1, m_dim, head_dim])
    v_view = v_in.reshape([-1, n_dim, head_dim])
    k_view = k_in.reshape([-1, n_dim, head_dim]).transpose(1, 2)
    out = torch.empty_like(q_view)
    qk_scale = 1.44269504 / math.sqrt(head_dim)
    for tile_b, tile_m in hl.tile([q_view.size(0), m_dim]):
        m_i = hl.full([tile_b, tile_m], float("-inf"), dtype=torch.float32)
        l_i = hl.zeros([tile_b, tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_b, tile_m, head_dim], dtype=torch.float32)
        q = q_view[tile_b, tile_m, :]
        for tile_n in hl.tile(0, tile_m.begin):
            qk = hl.dot(q, k_view[tile_b, :, tile_n], out_dtype=torch.float32) * qk_scale
            m_i, l_i, acc = step(qk, v_view[tile_b, tile_n, :], m_i, l_i, acc)
        for tile_n in hl.tile(tile_m.begin, tile_m.end):
            qk = hl.dot(q, k_view[tile_b, :, tile_n], out_dtype=torch.float32) * qk_scale
            # No [:, None] here: by that Helion 1.1.0 takes a tile's rows, of which it guesses 64,
            # for the head dimension where that is 64.
            seen = tile_m.index.unsqueeze(1) >= tile_n.index.unsqueeze(0)
            qk = torch.where(seen.unsqueeze(0), qk, float("-inf"))
            m_i, l_i, acc = step(qk, v_view[tile_b, tile_n, :], m_i, l_i, acc)
        acc = acc / l_i[:, :, None]
        out[tile_b, tile_m, :] = acc.to(out.dtype)
    return out.view(q_in.size())
