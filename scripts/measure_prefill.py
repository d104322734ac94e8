"""Prefill speed of a random Llama on an NVIDIA GPU: our attention beside SDPA's.

    python scripts/measure_prefill.py [--seqlen 1024,4096,16384] [--dtype bf16] [--padded] [--json]

The model has the shapes of one of 1.1 billion parameters (16 layers, hidden size 2048, 16 heads of
128 over 4 of keys and values). Each figure is the median over interleaved rounds of forwards of
whole batches, as `generate` begins with, ± half the interquartile range. FlashAttention-2 takes
part where flash-attn is installed. --padded pads half of the sequences left by a quarter.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

# This folder for its modules: a package called `scripts` may be installed, and hides it.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # isort: skip  (before transformers, which may import another `kernels`)

import torch
from torch import Tensor

try:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import is_flash_attn_2_available
except ModuleNotFoundError:
    sys.exit("this needs Hugging Face's transformers: pip install '.[huggingface]'")

from kernels.attention.printable import shown
from tuner import huggingface
from tuner.evaluate.timing import spread

if TYPE_CHECKING:
    from scripts import refusals
else:
    import refusals

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TOKENS = 16384  # of a batch, or one sequence
FORWARDS = 3  # of one sample


@dataclass(frozen=True)
class Figure:
    """One implementation at one seqlen."""

    implementation: str
    seqlen: int
    batch: int
    tokens_per_s: float
    spread: float  # interquartile range over median
    to_sdpa: float  # median over rounds of SDPA's time over this one's
    max_diff: float  # of the last logits from SDPA's, over the largest of these


def measure(
    model: Any, seqlens: Sequence[int], rounds: int, padded: bool, tokens: int = TOKENS
) -> list[Figure]:
    """All figures for one model, on its device."""
    huggingface.register()
    names = ["tuner", "sdpa"]
    if model.device.type == "cuda" and is_flash_attn_2_available():
        names.append("flash_attention_2")
    found = []
    for seqlen in seqlens:
        ids, mask = batch_of(model, max(1, tokens // seqlen), seqlen, padded)
        logits: dict[str, Tensor] = {}
        samples: dict[str, list[float]] = {name: [] for name in names}
        for index in range(rounds + 1):
            for name in names[index % len(names) :] + names[: index % len(names)]:
                model.set_attn_implementation(name)
                seconds, logits[name] = sample(model, ids, mask)
                if index:  # the first round warms up
                    samples[name].append(seconds)
        largest = logits["sdpa"].abs().max().item()
        for name in names:
            times = samples[name]
            found.append(
                Figure(
                    name, seqlen, ids.shape[0], ids.numel() / median(times),
                    spread(times),
                    median(theirs / ours for theirs, ours in zip(samples["sdpa"], times)),
                    (logits[name] - logits["sdpa"]).abs().max().item() / largest,
                )
            )  # fmt: skip
    return found


def batch_of(model: Any, batch: int, seqlen: int, padded: bool) -> tuple[Tensor, Tensor]:
    ids = torch.randint(model.config.vocab_size, (batch, seqlen), device=model.device)
    mask = torch.ones_like(ids)
    if padded:
        mask[::2, : seqlen // 4] = 0
    return ids, mask


def sample(model: Any, ids: Tensor, mask: Tensor) -> tuple[float, Tensor]:
    """Seconds of one forward, the mean of several, and the logits after the last tokens."""
    with torch.inference_mode():
        _synchronize(model)
        began = time.perf_counter()
        for _ in range(FORWARDS):
            out = model(ids, attention_mask=mask, logits_to_keep=1, use_cache=False)
        _synchronize(model)
        return (time.perf_counter() - began) / FORWARDS, out.logits.float()


def _synchronize(model: Any) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def llama(dtype: torch.dtype, device: str, layers: int, hidden: int, heads: int) -> Any:
    """A Llama with random weights; a quarter as many heads of keys and values as of queries."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000, hidden_size=hidden, intermediate_size=11 * hidden // 4,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=max(1, heads // 4),
        max_position_embeddings=131072,
    )  # fmt: skip
    with torch.device(device):
        return LlamaForCausalLM(config).to(dtype).eval()


def memory(device: str) -> float:
    """How many bytes there are; without end where the system does not say."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[1]
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # Windows
        return math.inf


def about(model: Any) -> str:
    """Where this is measured, and of what."""
    card = torch.cuda.get_device_name() if model.device.type == "cuda" else "CPU (SDPA alone)"
    parts = ("torch", "triton", "transformers", *(["flash-attn"] if _has_flash() else []))
    versions = ", ".join(f"{name} {version(name)}" for name in parts)
    parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e9
    return f"{card}; {versions}; {parameters:.2f} billion parameters, {model.dtype}"


def _has_flash() -> bool:
    return bool(is_flash_attn_2_available())


def main(words: Sequence[str] | None = None) -> int:
    parser = refusals.Parser(__doc__)
    parser.add_argument("--seqlen", default="1024,4096,16384")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bf16")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--tokens", type=int, help=f"of a batch; {TOKENS}")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--padded", action="store_true")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    options = parser.parse_args(words)
    try:
        seqlens = [int(text) for text in options.seqlen.split(",")]
    except ValueError:
        parser.error(f"--seqlen is {shown(options.seqlen)}, but must be whole numbers and commas")
    refusals.at_least(parser, 2, rounds=options.rounds)
    for seqlen in seqlens:
        refusals.at_least(parser, 1, seqlen=seqlen)
    refusals.at_least(
        parser, 1, layers=options.layers, hidden=options.hidden, heads=options.heads,
        tokens=options.tokens,
    )  # fmt: skip
    if options.heads > 4 and options.heads % (options.heads // 4):
        parser.error(f"--heads is {options.heads}, but must be a multiple of a quarter of it")
    if options.hidden % (2 * options.heads):  # an even headdim, which rotation needs
        parser.error(
            f"--hidden is {options.hidden}, but must be a multiple of twice --heads, "
            f"{2 * options.heads}"
        )
    if not torch.cuda.is_available() and options.tokens is None:
        parser.error(
            "this measures, but there is no NVIDIA GPU here: to try it on the CPU, give --tokens, "
            "and a small --layers and --hidden"
        )
    warnings.simplefilter("ignore", tuner.UntunedWarning)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = options.tokens or TOKENS
    too_large = (
        f"--layers is {options.layers}, --hidden is {options.hidden}, --tokens is {tokens} and "
        f"--seqlen is {shown(options.seqlen)}, but must all be of sizes that memory can hold"
    )
    # A system may promise more than it has, and kill who uses it. A layer has more weights still.
    if 4 * 10 * options.layers * options.hidden**2 > memory(device):
        parser.error(too_large)
    try:
        model = llama(DTYPES[options.dtype], device, options.layers, options.hidden, options.heads)
        figures = measure(model, seqlens, options.rounds, options.padded, tokens)
    except RuntimeError as error:
        if "tried to allocate" not in str(error).lower():  # as CUDA's and the CPU's allocators say
            raise
        parser.error(too_large)
    if options.json:
        print(json.dumps({"on": about(model), "figures": [asdict(each) for each in figures]}))
        return 0
    print(about(model))
    print(
        f"{'attention':<20}{'seqlen':>8}{'batch':>7}{'tokens/s':>20}{'to sdpa':>9}{'max diff':>10}"
    )
    for each in figures:
        speed = f"{each.tokens_per_s:,.0f} ± {each.spread / 2:.1%}"
        print(
            f"{each.implementation:<20}{each.seqlen:>8}{each.batch:>7}{speed:>20}"
            f"{each.to_sdpa:>9.3f}{each.max_diff:>10.1e}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
