"""Models of transformers, small and random: our attention against SDPA's.

On CPU tensors, which a stand-in serves as if they were on an H100, by the definition of attention.
"""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")
transformers = pytest.importorskip("transformers", reason="its models are what is tested")

import tuner  # noqa: E402
from tuner import FallbackWarning, UntunedWarning, fallback, huggingface  # noqa: E402

LAYERS = 2
SIZES = {
    "vocab_size": 97,
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface.register()
    monkeypatch.setattr(fallback, "_announced", set())


@pytest.fixture
def served(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in, which takes CPU tensors. An SDPA that is not expected fails the test."""
    monkeypatch.setattr(huggingface, "_serves", lambda device: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        warnings.simplefilter("ignore", UntunedWarning)
        yield stand_in


def llama(**changes: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SIZES, "num_key_value_heads": 2, **changes})
    return transformers.LlamaForCausalLM(config).to(torch.float16).eval()


def cached(model: Any, past: Any) -> dict[str, Any]:
    """The argument that takes a cache: `past_key_values`, or `cache` in newer transformers."""
    taken = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in taken else "past_key_values": past}


def only_one_fallback(caught: Any) -> bool:
    """Whether just one fallback was announced, whatever else torch and transformers warn of."""
    return sum(issubclass(w.category, FallbackWarning) for w in caught) == 1


def tokens(batch: int = 3, seqlen: int = 12) -> Any:
    return torch.randint(1, 97, (batch, seqlen), generator=torch.Generator().manual_seed(1))


def padded(side: str, lengths: tuple[int, ...] = (12, 5, 5)) -> Any:
    mask = torch.zeros(len(lengths), 12, dtype=torch.long)
    for row, length in enumerate(lengths):
        start = {"left": 12 - length, "right": 0, "both": (12 - length) // 2}[side]
        mask[row, start : start + length] = 1
    return mask


def both(model: Any, work: Callable[[Any], Any]) -> tuple[Any, Any]:
    """What `work` makes of the model with our attention, and with SDPA."""
    with torch.no_grad():
        model.set_attn_implementation("tuner")
        ours = work(model)
        model.set_attn_implementation("sdpa")
        return ours, work(model)


def close(ours: Any, theirs: Any, mask: Any = None) -> None:
    if mask is not None:
        ours, theirs = ours[mask.bool()], theirs[mask.bool()]
    torch.testing.assert_close(ours.float(), theirs.float(), atol=2e-3, rtol=1e-2)


def test_logits_equal_those_of_sdpa(served: Any) -> None:
    ours, theirs = both(llama(), lambda model: model(tokens()).logits)
    close(ours, theirs)
    assert len(served.launched) == LAYERS


def test_is_chosen_when_a_model_is_made(served: Any) -> None:
    config = transformers.LlamaConfig(**SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="tuner")
    model.to(torch.float16)(tokens())
    assert len(served.launched) == LAYERS


@pytest.mark.parametrize(
    ("side", "lengths", "launches"),
    [
        ("left", (12, 5, 5), 2),
        ("left", (5, 12, 5), 3),
        ("left", (12, 12, 12), 1),
        ("right", (12, 5, 3), 1),  # causality hides what follows
        ("left", (12, 0, 5), 2),
        ("both", (12, 5, 4), 3),
    ],
)
def test_padded_batches(served: Any, side: str, lengths: tuple[int, ...], launches: int) -> None:
    mask = padded(side, lengths)
    ours, theirs = both(llama(), lambda model: model(tokens(), attention_mask=mask).logits)
    close(ours, theirs, mask)
    assert ours.isfinite().all()
    assert len(served.launched) == LAYERS * launches


@pytest.mark.parametrize("side", ["left", "none"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_with_a_cache_the_mask_is_aligned_bottom_right(served: Any, side: str, cache: str) -> None:
    mask = padded("left", (12, 5, 5) if side == "left" else (12, 12, 12))
    ids = tokens()

    def work(model: Any) -> Any:
        past = (
            transformers.DynamicCache(config=model.config)
            if cache == "dynamic"
            else transformers.StaticCache(config=model.config, max_cache_len=20)
        )
        logits = []
        for start, stop in ((0, 6), (6, 10), (10, 11), (11, 12)):
            out = model(
                ids[:, start:stop],
                attention_mask=mask[:, :stop],
                use_cache=True,
                **cached(model, past),
            )
            logits.append(out.logits)
        return torch.cat(logits, 1)

    ours, theirs = both(llama(), work)
    close(ours, theirs, mask)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generates_the_same(served: Any, cache: str) -> None:
    mask = padded("left")
    model = llama()
    model.generation_config.disable_compile = True
    ours, theirs = both(
        model,
        lambda model: model.generate(
            tokens(), attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0,
            cache_implementation=cache,
        ),
    )  # fmt: skip
    assert torch.equal(ours, theirs)
    assert served.launched


def test_heads_are_not_expanded(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    flash = huggingface.flash_attn_func

    def spy(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        shapes.append((q.shape, k.shape, v.shape))
        return flash(q, k, v, *rest)

    monkeypatch.setattr(huggingface, "flash_attn_func", spy)
    both(llama(), lambda model: model(tokens()).logits)
    assert shapes == [((3, 12, 4, 64), (3, 12, 2, 64), (3, 12, 2, 64))] * LAYERS


def bert() -> Any:
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**SIZES)).to(torch.float16).eval()


@pytest.mark.parametrize("side", ["left", "right"])
def test_full_attention_with_padding(served: Any, side: str) -> None:
    mask = padded(side)
    ours, theirs = both(
        bert(), lambda model: model(tokens(), attention_mask=mask).last_hidden_state
    )
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], atol=1e-2, rtol=1e-2)
    assert len(served.launched) == LAYERS * 2


def holes() -> Any:
    mask = torch.ones(3, 12, dtype=torch.long)
    mask[1, 4] = 0
    return mask


@pytest.mark.parametrize(
    "mask",
    [holes(), torch.ones(12, 12, dtype=torch.bool).tril(3).expand(3, 1, 12, 12)],
    ids=["holes", "4-d"],
)
def test_other_masks_go_to_sdpa_with_one_warning(served: Any, mask: Any) -> None:
    with pytest.warns(FallbackWarning, match="more than causality and padding") as caught:
        ours, theirs = both(llama(), lambda model: model(tokens(), attention_mask=mask).logits)
    assert only_one_fallback(caught)
    assert served.launched == []
    close(ours, theirs, mask if mask.dim() == 2 else None)


@pytest.mark.parametrize(("window", "launched"), [(5, False), (64, True)])
def test_windows_go_to_sdpa_where_they_matter(
    stand_in: Any, monkeypatch: pytest.MonkeyPatch, window: int, launched: bool
) -> None:
    monkeypatch.setattr(huggingface, "_serves", lambda device: True)
    torch.manual_seed(0)
    config = transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=window)
    model = transformers.MistralForCausalLM(config).to(torch.float16).eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours, theirs = both(model, lambda model: model(tokens()).logits)
    close(ours, theirs)
    assert bool(stand_in.launched) is launched
    assert any(issubclass(w.category, FallbackWarning) for w in caught) is not launched


@pytest.mark.parametrize("reason", ["dropout", "float32"])
@pytest.mark.parametrize("padding", ["left", "cache"])
def test_what_no_template_takes_goes_to_sdpa(served: Any, reason: str, padding: str) -> None:
    model = llama(attention_dropout=1e-9 if reason == "dropout" else 0.0)
    model.train(reason == "dropout")
    if reason == "float32":
        model.float()
    mask = padded("left", (12, 5, 5) if padding == "left" else (12, 12, 12))

    def work(model: Any) -> Any:
        past = transformers.DynamicCache(config=model.config)
        parts = ((0, 7), (7, 12)) if padding == "cache" else ((0, 12),)
        logits = [
            model(tokens()[:, a:b], attention_mask=mask[:, :b], **cached(model, past)).logits
            for a, b in parts
        ]
        return torch.cat(logits, 1)

    with pytest.warns(FallbackWarning, match=reason) as caught:
        ours, theirs = both(model, work)
    assert only_one_fallback(caught)
    close(ours, theirs, mask)


@pytest.mark.parametrize("side", ["left", "right"])
def test_in_graphs_no_mask_is_read(served: Any, monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    monkeypatch.setattr(huggingface, "is_tracing", lambda tensor: True)
    mask = padded(side)
    with pytest.warns(FallbackWarning, match="more than causality and padding"):
        ours, theirs = both(llama(), lambda model: model(tokens(), attention_mask=mask).logits)
    assert served.launched == []
    close(ours, theirs, mask)
    both(llama(), lambda model: model(tokens()).logits)
    assert len(served.launched) == LAYERS


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("with_cache", [False, True])
def test_in_one_graph_of_torch_compile(served: Any, with_mask: bool, with_cache: bool) -> None:
    model, mask = llama(), padded("left")
    model.set_attn_implementation("tuner")
    more = {"use_cache": with_cache, **({"attention_mask": mask} if with_mask else {})}
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        ours = compiled(tokens(), **more).logits
        assert bool(served.launched) is (with_cache and not with_mask)
        theirs = model(tokens(), **more).logits
    close(ours, theirs, mask if with_mask else None)


def test_trains_as_sdpa_does(served: Any) -> None:
    model, mask, ids = llama(), padded("left"), tokens()
    labels = ids.masked_fill(mask == 0, -100)
    gradients = []
    for implementation in ("tuner", "sdpa"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        (model(ids, attention_mask=mask, labels=labels).loss * 256).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for ours, theirs in zip(*gradients):
        assert (ours - theirs).float().norm() <= 1e-2 * theirs.float().norm()


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_mask_that_was_copied_on_its_way_is_read_again(served: Any, side: str) -> None:
    module = torch.nn.Module()
    q, k, v = (torch.randn(3, 2, 12, 64).half() for _ in range(3))
    mask = huggingface.attention_mask(3, 12, 12, attention_mask=padded(side).bool())
    assert mask.shape == (3, 12)
    out, weights = huggingface.attention_forward(module, q, k, v, mask)
    again, _ = huggingface.attention_forward(module, q, k, v, mask.clone())
    assert weights is None
    assert torch.equal(out, again)
    with pytest.warns(FallbackWarning, match="more than causality"):
        huggingface.attention_forward(module, q, k, v, holes())


@pytest.mark.parametrize("name", ["softcap", "s_aux"])
def test_what_nobody_computes_is_refused(served: Any, name: str) -> None:
    q = torch.randn(1, 2, 4, 64).half()
    with pytest.raises(NotImplementedError, match=f"{name} is given"):
        huggingface.attention_forward(torch.nn.Module(), q, q, q, None, **{name: 30.0})


@pytest.mark.parametrize("side", ["left", "right"])
def test_cpu_tensors_are_sdpas(side: str, recwarn: pytest.WarningsRecorder) -> None:
    mask = padded(side)
    model = llama().float()
    ours, theirs = both(model, lambda model: model(tokens(), attention_mask=mask).logits)
    assert torch.equal(ours, theirs)
    assert not [w for w in recwarn if issubclass(w.category, FallbackWarning)]


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=r"^name is .*, but must be a text"):
        huggingface.register(name)


@pytest.mark.parametrize("name", ["sdpa", "eager", "flash_attention_2", "flex_attention"])
def test_the_name_of_another_implementation_is_refused(name: str) -> None:
    attention, masks = transformers.AttentionInterface(), transformers.AttentionMaskInterface()
    before = dict(attention), dict(masks)
    with pytest.raises(
        ValueError, match=f"^name is '{name}', but must be none that transformers has .*sdpa"
    ) as caught:
        huggingface.register(name)
    assert "tuner" not in str(caught.value)
    assert (dict(attention), dict(masks)) == before


def test_registering_again_is_no_error_also_once_reloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface.register()
    monkeypatch.setattr(tuner, "huggingface", huggingface)  # as it is again afterwards
    monkeypatch.delitem(sys.modules, "tuner.huggingface")
    reloaded = importlib.import_module("tuner.huggingface")
    reloaded.register()
    assert transformers.AttentionInterface()["tuner"] is reloaded.attention_forward
    huggingface.register()
    assert transformers.AttentionInterface()["tuner"] is huggingface.attention_forward


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "tuner.huggingface")
    with pytest.raises(ImportError, match=r"pip install 'transformers>="):
        importlib.import_module("tuner.huggingface")


def test_importing_tuner_imports_no_transformers() -> None:
    code = "import sys, tuner.runtime; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
