"""Every template on a card: what only a compiled kernel can get wrong."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import DTYPES, HEADDIMS, Problem, Specialization
from kernels.attention.reference import attention_reference
from tests.kernels.attention.sample import spread

pytestmark = pytest.mark.gpu

TORCH = {"fp16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

# Ways to read: (template, changes to its default config).
READERS = {
    "hopper": ("hopper", {}),
    "portable": ("portable", {"tma": True, "maxnreg": 0}),
    "pointers": ("portable", {"tma": False, "maxnreg": 0}),
}


def capability() -> int:
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


@cache
def sample(name, headdim, causal, dtype):
    """A few configs with every choice of every parameter; other ones for each of the arguments.
    Tests that take the same find their binaries on disk."""
    feasible = registry.get(name).feasible(Specialization(headdim, causal, dtype), capability())
    return tuple(spread(feasible, f"{headdim} {causal} {dtype}"))


class Kernel:
    """A template with changes to its default config."""

    def __init__(self, name, **changes):
        self.template, self.changes = registry.get(name), changes

    def binary_for(self, q, causal, lse=False, config=None, **changes):
        headdim = q.shape[-1]
        dtype = {value: name for name, value in TORCH.items()}[q.dtype]
        if config is None:
            config = self.template.default(
                Problem.on_grid(headdim, 4096, causal, dtype), capability()
            )
            config = Config(config, **{**self.changes, **changes})
        specialization = Specialization(headdim, causal, dtype, lse)
        return self.template.compile(specialization, config, capability())

    def attention(
        self, q, k, v, causal=False, offset=0, sm_scale=None, lse=False, out=None, **options
    ):
        """(out, lse), both poisoned before the launch."""
        binary = self.binary_for(q, causal, lse, **options)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        out.fill_(math.nan)
        logs = torch.full(q.shape[:3], math.nan, device=q.device) if lse else None
        sm_scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
        self.template.launch(binary, q, k, v, out, logs, sm_scale, offset)
        return out, logs

    def check(self, q, k, v, causal=False, offset=0, sm_scale=None, reference=None, **options):
        out, lse = self.attention(q, k, v, causal, offset, sm_scale, lse=True, **options)
        sm_scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
        expected, expected_lse = reference or attention_reference(q, k, v, sm_scale, causal, offset)
        tolerance = TOLERANCE[q.dtype]
        torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(lse, expected_lse, atol=1e-3, rtol=1e-4)
        return out


def serves(name):
    """Skip where the template does not serve this card."""
    refusal = registry.get(name).supports(Specialization(64, True, "fp16"), capability())
    if refusal is not None:
        pytest.skip(refusal)


@pytest.fixture(params=registry.names())
def kernel(request):
    serves(request.param)
    return Kernel(request.param)


@pytest.fixture(params=READERS)
def reader(request):
    name, changes = READERS[request.param]
    serves(name)
    if changes.get("tma") and capability() < 90:
        pytest.skip("the card has no TMA: it is older than sm_90")
    return Kernel(name, **changes)


def randn(*shape, dtype=torch.float16, seed=0, device="cuda"):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, dtype=dtype, device=device, generator=generator)


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("seqlen", [1, 2, 7, 8, 15, 100, 127, 1000, 4097])
def test_every_length(kernel, headdim, dtype, causal, seqlen):
    q, k, v = (randn(1, 2, seqlen, headdim, dtype=TORCH[dtype], seed=i) for i in range(3))
    kernel.check(q, k, v, causal)


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
def test_a_sample_of_the_space(kernel, headdim, dtype, causal):
    q, k, v = (randn(2, 67, 517, headdim, dtype=TORCH[dtype], seed=i) for i in range(3))
    k[:, :, 500] = 8 * q[:, :, 510]  # a late spike forces the deferred rescale
    reference = attention_reference(q, k, v, headdim**-0.5, causal)  # which is slow
    for config in sample(kernel.template.name, headdim, causal, dtype):
        kernel.check(q, k, v, causal, reference=reference, config=config)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(1, 20), (16, 64), (300, 77), (77, 300)])
@pytest.mark.parametrize("headdim", HEADDIMS)
def test_lengths_of_queries_and_keys_differ(reader, seqlen_q, seqlen_k, headdim):
    q = randn(2, 4, seqlen_q, headdim)
    k, v = (randn(2, 2, seqlen_k, headdim, seed=i) for i in (1, 2))
    reader.check(q, k, v)
    for offset in (0, seqlen_k - seqlen_q):
        out = reader.check(q, k, v, True, offset)
        assert (out[:, :, : max(0, -offset)] == 0).all()


@pytest.mark.parametrize("headdim", HEADDIMS)
def test_every_place_of_the_diagonal_in_a_block(reader, headdim):
    q = randn(1, 2, 150, headdim)
    k, v = (randn(1, 2, 330, headdim, seed=i) for i in (1, 2))
    edges = {edge + near for edge in (-128, -64, -32, 0, 32, 64, 128) for near in (-2, -1, 0, 1, 2)}
    for offset in sorted(edges | {-150, -149, 179, 180, 181}):
        out = reader.check(q, k, v, True, offset)
        assert (out[:, :, : max(0, -offset)] == 0).all()


def test_no_query_or_no_key(kernel):
    q, k = randn(2, 2, 5, 64), randn(2, 2, 0, 64)
    out, lse = kernel.attention(q, k, k, lse=True)
    assert (out == 0).all()
    assert (lse == -math.inf).all()
    kernel.attention(randn(0, 2, 5, 64), randn(0, 2, 5, 64), randn(0, 2, 5, 64))


@pytest.mark.parametrize("sm_scale", [0.0, -0.5, 1e-3, 10.0])
def test_scales(kernel, sm_scale):
    q, k, v = (randn(1, 2, 300, 64, seed=i) for i in range(3))
    kernel.check(q, k, v, True, sm_scale=sm_scale)


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("defer_rescale", [True, False])
def test_giant_scores(reader, headdim, defer_rescale):
    q = torch.full((1, 2, 300, headdim), 133120.0, dtype=torch.bfloat16, device="cuda")
    for causal in (True, False):
        out, _ = reader.attention(q, q, q, causal, defer_rescale=defer_rescale)
        assert (out == 133120.0).all()
    q, k, v = (randn(1, 2, 300, headdim, seed=i) for i in range(3))
    q *= 60
    k *= 60  # scores around ±1e4
    expected, _ = attention_reference(q, k, v, headdim**-0.5, True)
    out, _ = reader.attention(q, k, v, True, defer_rescale=defer_rescale)
    torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("headdim", HEADDIMS)
def test_lse_of_giant_scores(reader, headdim):
    q = torch.full((1, 2, 300, headdim), 133120.0, dtype=torch.bfloat16, device="cuda")
    out, lse = reader.attention(q, q, q, True, lse=True)
    assert (out == 133120.0).all()
    score = headdim**0.5 * 133120.0**2  # beside which the logarithm of their number is nothing
    torch.testing.assert_close(lse, torch.full_like(lse, score), atol=0, rtol=1e-6)


def test_keys_that_no_row_sees_are_not_read(kernel):
    q, k, v = randn(1, 2, 100, 128), randn(1, 2, 300, 128, seed=1), randn(1, 2, 300, 128, seed=2)
    clean, _ = kernel.attention(q, k, v, True, 50)
    k[:, :, 150:] = v[:, :, 150:] = math.nan
    out, _ = kernel.attention(q, k, v, True, 50)
    assert torch.equal(out, clean)


def test_views_are_read_and_written_in_place(reader):
    packed = randn(2, 333, 3, 4, 64)  # batch, seqlen, qkv, heads, headdim
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
    out = torch.empty(2, 333, 4, 64, dtype=torch.float16, device="cuda").transpose(1, 2)
    reader.check(q, k, v, True, out=out)
    shared = randn(2, 1, 333, 64).expand(2, 4, 333, 64)  # a stride of 0
    reader.check(q, shared, shared, True)


def test_writes_nothing_beyond_its_output(kernel):
    around = torch.full((2, 2, 10 + 77 + 10, 64), 7.0, dtype=torch.float16, device="cuda")
    q, k, v = (randn(2, 2, 77, 64, seed=i) for i in range(3))
    kernel.check(q, k, v, True, out=around[:, :, 10:87])
    assert (around[:, :, :10] == 7).all()
    assert (around[:, :, 87:] == 7).all()


def test_more_blocks_than_a_grid_has_in_y(kernel):
    q, k, v = (randn(70000, 1, 4, 64, seed=i) for i in range(3))
    out, _ = kernel.attention(q, k, v, True)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q[-64:].float(), k[-64:].float(), v[-64:].float(), is_causal=True
    )
    torch.testing.assert_close(out[-64:].float(), expected, atol=2e-3, rtol=2e-3)
    assert out.isfinite().all()


def test_more_than_two_to_the_31_elements(reader):
    if torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 12 GiB")
    wide = torch.zeros(2, 17000, 65536, dtype=torch.float16, device="cuda")  # 2^31 and more
    view = wide[:, :, -64:].unsqueeze(1)  # (batch, 1, seqlen, headdim) at its far end
    q, k, v = (randn(2, 1, 17000, 64, seed=i) for i in range(3))
    expected, _ = reader.attention(q, k, v, True)
    for which in range(3):
        given = [q, k, v]
        view.copy_(given[which])
        given[which] = view
        out, _ = reader.attention(*given, True)
        torch.testing.assert_close(out, expected, atol=2e-3, rtol=2e-3)
    out, _ = reader.attention(q, k, v, True, out=view)
    torch.testing.assert_close(view.contiguous(), expected, atol=2e-3, rtol=2e-3)


def test_a_first_call_can_be_captured(kernel):
    q, k, v = (randn(1, 2, 200, 64, seed=i) for i in range(3))
    config = {"portable": {"num_stages": 3, "maxnreg": 0}, "hopper": {"stages": 2}}
    binary = kernel.binary_for(q, True, BLOCK_N=64, **config[kernel.template.name])  # no other's
    out = torch.full_like(q, math.nan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.template.launch(binary, q, k, v, out, None, 0.125)
    assert out.isnan().all()
    graph.replay()
    expected, _ = attention_reference(q, k, v, 0.125, True)
    torch.testing.assert_close(out.float(), expected, atol=2e-3, rtol=2e-3)


def test_runs_on_the_current_stream(kernel):
    q, k, v = (randn(1, 2, 200, 64, seed=i) for i in range(3))
    binary = kernel.binary_for(q, True)
    out = torch.zeros_like(q)
    kernel.template.launch(binary, q, k, v, out, None, 0.125)  # loads the module, which may wait
    out.zero_()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        kernel.template.launch(binary, q, k, v, out, None, 0.125)
        early = torch.cuda.current_stream().query()
    assert not early
    stream.synchronize()
    expected, _ = attention_reference(q, k, v, 0.125, True)
    torch.testing.assert_close(out.float(), expected, atol=2e-3, rtol=2e-3)


def test_another_device_than_the_first(kernel):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for device in ("cuda:0", "cuda:1"):  # one binary, loaded on each
        with torch.cuda.device(device):
            kernel.check(*(randn(1, 2, 200, 64, seed=i, device=device) for i in range(3)), True)


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
def test_repeats_and_batches_are_bit_equal(kernel, headdim, dtype, causal):
    q, k, v = (randn(3, 40, 1000, headdim, dtype=TORCH[dtype], seed=i) for i in range(3))
    default = {"config": None, "lse": False}, 20  # a race would show sometimes
    others = sample(kernel.template.name, headdim, causal, dtype)
    for options, repeats in (default, *(({"config": c, "lse": True}, 5) for c in others)):
        first, first_lse = kernel.attention(q, k, v, causal, **options)
        # One sequence alone has other tiles beside it, in other programs.
        alone, alone_lse = kernel.attention(q[1:2], k[1:2], v[1:2], causal, **options)
        assert torch.equal(first[1:2], alone), options
        assert first_lse is None or torch.equal(first_lse[1:2], alone_lse), options
        for _ in range(repeats):
            again, again_lse = kernel.attention(q, k, v, causal, **options)
            assert torch.equal(first, again), options
            assert first_lse is None or torch.equal(first_lse, again_lse), options


def test_streams_run_side_by_side(kernel):
    q, k, v = (randn(1, 20, 1000, 64, seed=i) for i in range(3))
    binary = kernel.binary_for(q, True)
    outs = [torch.full_like(q, math.nan) for _ in range(8)]
    streams = [torch.cuda.Stream() for _ in outs]
    torch.cuda.synchronize()
    for out, stream in zip(outs, streams):
        with torch.cuda.stream(stream):
            kernel.template.launch(binary, q, k, v, out, None, 0.125)
    torch.cuda.synchronize()
    assert all(torch.equal(out, outs[0]) for out in outs)
    expected, _ = attention_reference(q, k, v, 0.125, True)
    torch.testing.assert_close(outs[0].float(), expected, atol=2e-3, rtol=2e-3)


def test_an_unseen_length_compiles_nothing(kernel):
    q, k, v = (randn(1, 2, 1000, 64, seed=i) for i in range(3))
    binary = kernel.binary_for(q, True)
    for seqlen in (1000, 993, 992, 512, 3):
        sources = [tensor[:, :, :seqlen] for tensor in (q, k, v)]
        out = torch.empty(1, 2, seqlen, 64, dtype=q.dtype, device="cuda")
        kernel.template.launch(binary, *sources, out, None, 0.125)
        expected, _ = attention_reference(*sources, 0.125, True)
        torch.testing.assert_close(out.float(), expected, atol=2e-3, rtol=2e-3)
