"""A model of transformers on a card: our attention against SDPA's."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")
transformers = pytest.importorskip("transformers", reason="its models are what is tested")

from tuner import FallbackWarning, huggingface  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture
def model() -> Any:
    huggingface.register()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=1024, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=2048,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()


def both(model: Any, **inputs: Any) -> tuple[Any, Any]:
    found = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for implementation in ("tuner", "sdpa"):
            model.set_attn_implementation(implementation)
            found.append(model(**inputs).logits.float())
    return found[0], found[1]


def close(ours: Any, theirs: Any) -> None:
    """Logits of the same tokens. They differ by 0.7 % of a token's, as bf16 rounds; the largest of
    two million single differences says little. Another mask makes them differ by half."""
    assert ((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max() < 3e-2


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits_equal_those_of_sdpa(model: Any, side: str) -> None:
    ids = torch.randint(1, 1000, (3, 700), device="cuda")
    mask = torch.ones(3, 700, dtype=torch.long, device="cuda")
    if side != "none":
        mask[1, slice(0, 333) if side == "left" else slice(367, 700)] = 0
    ours, theirs = both(model, input_ids=ids, attention_mask=mask)
    close(ours[mask.bool()], theirs[mask.bool()])


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generates(model: Any, cache: str) -> None:
    ids = torch.randint(1, 1000, (2, 100), device="cuda")
    mask = torch.ones_like(ids)
    mask[0, :40] = 0
    model.set_attn_implementation("tuner")
    model.generation_config.disable_compile = True
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0,
        cache_implementation=cache, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    # The same tokens in one forward of SDPA.
    model.set_attn_implementation("sdpa")
    whole = torch.cat([mask, torch.ones(2, out.sequences.shape[1] - 100, device="cuda")], 1).long()
    with torch.no_grad():
        logits = model(out.sequences, attention_mask=whole).logits[:, 99:-1].float()
    ours = torch.stack(out.logits, 1).float()
    close(ours, logits)


def test_trains(model: Any) -> None:
    ids = torch.randint(1, 1000, (2, 300), device="cuda")
    losses = []
    for implementation in ("tuner", "sdpa"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        losses.append([p.grad.float().clone() for p in model.parameters()])
    for ours, theirs in zip(*losses):
        assert (ours - theirs).norm() <= 5e-2 * theirs.norm()
