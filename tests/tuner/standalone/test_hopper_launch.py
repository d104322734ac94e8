"""The file launches the Hopper kernel with the grid and the arguments of the template."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from kernels.attention import hopper, registry  # noqa: E402
from kernels.attention.problem import Problem, Specialization  # noqa: E402
from tests.tuner.standalone import exported  # noqa: E402
from tuner.standalone.document import standalone_file  # noqa: E402


class Loaded:
    """Stands for the compiled kernel: keeps what a repeated launch tells it."""

    def __init__(self) -> None:
        self.told: tuple[Any, ...] = ()

    def descriptor(self, index: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        return lambda address: (index, address, shape, strides)

    def __call__(self, *told: Any) -> None:
        self.told = told


class Told:
    """Stands for the kernel: keeps what a launch tells it."""

    def __init__(self, kernel: Any) -> None:
        self.names = kernel.arg_names
        self.grid: tuple[int, ...] = ()
        self.arguments: dict[str, Any] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, num_warps: int, enable_fp_fusion: bool, **named: Any) -> str:
            assert (num_warps, enable_fp_fusion) == (4, True)
            self.grid = grid
            positional = dict(zip(self.names, arguments))
            assert not positional.keys() & named.keys()
            self.arguments = {**positional, **named}
            return "compiled"

        return launch


def tensors(draw: random.Random, headdim: int) -> tuple[Any, Any, Any]:
    """q, k and v on no device at all, contiguous or as (batch, seqlen, heads, headdim)."""
    batch, heads_kv, group = draw.choice((1, 2, 7)), draw.choice((1, 3, 8)), draw.choice((1, 4))
    seqlen_q, seqlen_k = (draw.choice((1, 65, 512, 1000, 4096, 20001)) for _ in range(2))

    def tensor(heads: int, seqlen: int) -> Any:
        if draw.random() < 0.5:
            shape = (batch, seqlen, heads, headdim)
            return torch.empty(shape, dtype=torch.float16, device="meta").transpose(1, 2)
        return torch.empty(batch, heads, seqlen, headdim, dtype=torch.float16, device="meta")

    return (
        tensor(heads_kv * group, seqlen_q),
        tensor(heads_kv, seqlen_k),
        tensor(heads_kv, seqlen_k),
    )


@pytest.mark.parametrize("headdim", [64, 128, 256])
def test_grid_and_arguments_are_those_of_the_template(
    headdim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = exported.load(standalone_file([], exported.TARGET), tmp_path)
    told, loaded = Told(module._custom_attn_fwd), Loaded()
    monkeypatch.setattr(module, "_custom_attn_fwd", told)
    monkeypatch.setattr(module, "loaded", lambda kernel, device: {"compiled": loaded}[kernel])
    template = registry.get("hopper")
    draw = random.Random(headdim)
    for _ in range(100):
        multiprocessors = draw.choice((78, 114, 132))
        monkeypatch.setattr(module, "_multiprocessors", lambda device, n=multiprocessors: n)
        monkeypatch.setattr(hopper, "_multiprocessors", lambda device, n=multiprocessors: n)
        causal, dtype = draw.random() < 0.5, "fp16"
        of = Specialization(headdim, causal, dtype)
        config = draw.choice(list(template.feasible(of, 90)))
        written = module.Hopper(*(config[name] for name in hopper.HopperTemplate().space(of)))
        q, k, v = tensors(draw, headdim)
        out, scale = torch.empty_like(q), draw.choice((0.0, 1e-3, 0.125, 7.0, 1e30))
        again = written.launch(q, k, v, out, causal, scale)

        work = hopper.work_out(config, causal, q, k, v, out, scale, 0)
        assert work is not None
        assert told.grid == (work.blocks,)
        again(16, 32, 48, 64, None, 7)
        described = zip(range(3), (16, 32, 48), work.shapes, work.strides)
        inputs = tuple(value for each in described for value in each)
        assert loaded.told == (work.blocks, 7, inputs, 64, None, work.after)
        parameters = hopper._arguments(of, config)
        assert set(told.arguments) == {parameter.name for parameter in parameters}
        assert told.arguments["out"] is out
        after = iter(work.after)
        for index, parameter in enumerate(parameters):
            found = told.arguments[parameter.name]
            if index < 3:
                assert found.base is (q, k, v)[index]
                assert tuple(found.shape) == work.shapes[index]
                assert tuple(found.strides) == work.strides[index]
                kind = f"tensordesc<{dtype}[{','.join(map(str, found.block_shape))}],"
                assert parameter.type.startswith(kind)
                assert repr(found.layout).startswith(
                    "NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4"
                )
            elif parameter.type == "constexpr":
                assert found == parameter.value
            elif parameter.name != "out":
                assert found == next(after)
        assert list(after) == [None] * hopper._CONSTEXPRS


def test_it_is_launched_where_the_records_or_the_default_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = exported.load(standalone_file([], exported.TARGET), tmp_path)
    problem = Problem.on_grid(128, 3000, True)
    chosen = {
        capability: module.choose(
            capability, problem.headdim, True, "fp16", problem.seqlen, problem.batch, problem.heads
        )
        for capability in (80, 90, 100)
    }
    assert isinstance(chosen[90], module.Hopper)
    assert isinstance(chosen[80], module.Portable)
    assert isinstance(chosen[100], module.Portable)
