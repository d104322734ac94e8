"""A benchmark of the kind that others splice an attention into: it knows nothing of this project,
and what stands between its two marks may import torch, Triton and the standard library alone.

    python outside_harness.py

Prints a line of JSON for each shape: by seed 42, the median of 100 runs after 25, against SDPA.
"""

import json
import statistics

import torch
from torch.nn.functional import scaled_dot_product_attention

# BEGIN EDITABLE


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)


# END EDITABLE

SHAPES = [(4, 32, 4096, 64), (2, 16, 8192, 128), (1, 8, 16384, 256)]


def latency_ms(forward):
    for _ in range(25):
        forward()
    torch.cuda.synchronize()
    times = []
    for _ in range(100):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        forward()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def main():
    for batch, heads, seqlen, headdim in SHAPES:
        torch.manual_seed(42)
        q, k, v = (
            torch.randn(batch, heads, seqlen, headdim, dtype=torch.float16, device="cuda")
            for _ in range(3)
        )
        expected = scaled_dot_product_attention(q, k, v, is_causal=True)
        max_diff = (custom_attention_forward(q, k, v) - expected).abs().max().item()
        ours = latency_ms(lambda q=q, k=k, v=v: custom_attention_forward(q, k, v, causal=True))
        theirs = latency_ms(
            lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v, is_causal=True)
        )
        row = {
            "shape": [batch, heads, seqlen, headdim],
            "tflops": 2e-9 * batch * heads * seqlen**2 * headdim / ours,
            "latency_ms": ours,
            "max_diff": max_diff,
            "correct": max_diff < 1e-2,
            "speedup_vs_sdpa": theirs / ours,
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
