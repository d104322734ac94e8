"""What of the runtime needs no GPU: validation, import cost, fake kernel, the snapshot."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import tuner  # noqa: E402
from kernels.attention.base_2 import in_base_2  # noqa: E402
from tests.tuner.stand_in import H100  # noqa: E402
from tuner import validation  # noqa: E402
from tuner.target import Target  # noqa: E402
from tuner.validation import validate  # noqa: E402


def cuda(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """A tensor that says it is on a GPU; only inside a FakeTensorMode."""
    return torch.empty(shape, dtype=dtype, device="cuda")


@pytest.fixture
def fake():
    with FakeTensorMode():
        yield


def test_the_fake_kernel_promises_shape_dtype_and_strides(fake: None) -> None:
    q = cuda(2, 128, 4, 64).transpose(1, 2)  # BSHD storage
    out = tuner.custom_attention_forward(q, q, q)
    assert (out.shape, out.dtype, out.stride()) == (q.shape, q.dtype, q.stride())
    v = cuda(2, 4, 128, 32)
    assert tuner.custom_attention_forward(q, q, v).shape == (2, 4, 128, 32)


LARGE = torch.zeros(9, 9)  # whose repr has many lines
SPARSE = torch.zeros(2, 4, 16, 64).to_sparse()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # nested tensors are a prototype, as they say when made
    NESTED = torch.nested.nested_tensor([torch.zeros(4, n, 64).half() for n in (16, 8)])


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"q": [[1.0]]}, TypeError, "q is of type list, but must be a torch.Tensor"),
        ({"q": ("shape", 2, 3, 4)}, ValueError, "q has 3 dimensions, but must have 4"),
        ({"k": ("dtype", torch.bfloat16)}, TypeError, "k is torch.bfloat16, but must have q's"),
        ({"q": ("dtype", torch.float32)}, TypeError, "k is torch.float16, but must have q's"),
        ({"q": ("dtype", torch.int32)}, TypeError, "q is torch.int32"),
        ({"v": ("device", "cpu")}, ValueError, "v is on cpu, but must be on a CUDA device"),
        ({"v": ("device", "cuda:1")}, ValueError, "v is on cuda:1, but must be on q's cuda:0"),
        ({"k": ("shape", 3, 4, 16, 64)}, ValueError, "k has batch 3"),
        ({"k": ("shape", 2, 4, 16, 32)}, ValueError, "k has headdim 32, but must have q's"),
        ({"v": ("shape", 2, 4, 17, 64)}, ValueError, r"v has \(nheads, seqlen\) \(4, 17\)"),
        ({"k": ("shape", 2, 3, 16, 64), "v": ("shape", 2, 3, 16, 64)}, ValueError, "k has 3 heads"),
        ({"causal": 1}, TypeError, "causal is 1, but must be True or False"),
        ({"causal": None}, TypeError, "causal is None"),
        ({"sm_scale": "0.5"}, TypeError, "sm_scale is '0.5'"),
        ({"sm_scale": True}, TypeError, "sm_scale is True"),
        ({"sm_scale": float("nan")}, ValueError, "sm_scale is nan, but must be finite"),
        ({"sm_scale": float("inf")}, ValueError, "sm_scale is inf"),
        (
            {"sm_scale": 10**400},
            ValueError,
            "sm_scale is a number of 1329 bits, but must be finite",
        ),
        ({"sm_scale": 10**5000}, ValueError, "sm_scale is a number of 16610 bits, but must be"),
        ({"sm_scale": 10**40}, ValueError, f"sm_scale is {10**40}, but must be finite"),
        (
            {"sm_scale": 1.2e38},
            ValueError,
            r"sm_scale is 1.2e\+38, but must be finite, also in fp32",
        ),
        ({"causal": "a\x1b[2J"}, TypeError, r"causal is 'a\\x1b\[2J', but must be True or False"),
        (
            {"sm_scale": -1e300},
            ValueError,
            r"sm_scale is -1e\+300, but must be finite, also in fp32",
        ),
        (
            {"sm_scale": LARGE},
            TypeError,
            r"sm_scale is tensor\(.*\.\.\., but must be an int, a float",
        ),
        ({"causal": LARGE}, TypeError, r"causal is tensor\(.*\.\.\., but must be True or False"),
        ({"q": SPARSE}, TypeError, "q is torch.sparse_coo, but must be a dense tensor"),
        ({"v": NESTED}, TypeError, "v is nested, but must be a dense tensor"),
        ({"q": NESTED}, TypeError, "q is nested, but must be a dense tensor"),
    ],
)
def test_bad_arguments_get_one_sentence(
    fake: None, change: dict, error: type[Exception], sentence: str
) -> None:
    arguments = {name: cuda(2, 4, 16, 64) for name in "qkv"} | {"causal": True, "sm_scale": None}
    for name, value in change.items():
        if isinstance(value, tuple):
            kind, *rest = value
            if kind == "shape":
                value = cuda(*rest)
            elif kind == "dtype":
                value = cuda(2, 4, 16, 64, dtype=rest[0])
            else:
                value = torch.empty(2, 4, 16, 64, dtype=torch.float16, device=rest[0])
        arguments[name] = value
    with pytest.raises(error, match=sentence) as caught:
        validate(**arguments)
    assert "\n" not in str(caught.value)
    with pytest.raises(error, match=sentence):
        tuner.custom_attention_forward(**arguments)


def test_an_unknown_keyword_is_refused(fake: None) -> None:
    q = cuda(1, 1, 16, 64)
    with pytest.raises(TypeError, match="dropout"):
        tuner.custom_attention_forward(q, q, q, dropout=0.1)


def test_the_scale_defaults_to_one_over_the_root_of_headdim(fake: None) -> None:
    q = cuda(1, 1, 16, 64)
    assert validate(q, q, q, True, None) == 64**-0.5
    assert validate(q, q, q, True, 0) == 0.0
    assert validate(q, q, q, True, -3) == -3.0


@pytest.mark.parametrize("entry", ["custom_attention_forward", "attention", "flash_attn_func"])
@pytest.mark.parametrize("strict", [1, None, "yes"])
def test_strict_is_true_or_false(fake: None, entry: str, strict: object) -> None:
    q = cuda(1, 1, 16, 64)
    with pytest.raises(TypeError, match=r"^strict is .*, but must be True or False$"):
        getattr(tuner, entry)(q, q, q, strict=strict)


@pytest.mark.parametrize("target", ["sm_90", 90])
def test_lookup_says_what_a_target_is(target: object) -> None:
    with pytest.raises(TypeError, match=r"^target is .*, but must be a tuner\.target\.Target or"):
        tuner.lookup(64, 1024, target=target)


def test_lookup_says_what_hardware_is() -> None:
    with pytest.raises(
        TypeError, match=r"^target\.hardware is None, but must be a tuner\.target\."
    ):
        tuner.lookup(64, 1024, target=Target(None, "a", "b", "c", "d"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            (LARGE, LARGE, LARGE),
            r"headdim is tensor\(\[\[0\., .*\.\.\., but must be a whole number",
        ),
        ((torch.tensor(64), 512), r"headdim is tensor\(64\), but must be a whole number"),
        ((64, 512, LARGE), r"causal is tensor\(.*, but must be true or false"),
        ((64, 512, True, LARGE), r"dtype is tensor\(.*, but must be one of"),
        ((64, np.float64(512)), r"seqlen is .*512\.0\)?, but must be a whole number"),
        ((64, np.bool_(True)), r"seqlen is .*True.*, but must be a whole number"),
        ((True, 512), "headdim is True, but must be a whole number"),
        ((64, -(10**5000)), "seqlen is a number of 16610 bits, but must be a whole number"),
    ],
)
def test_lookup_refuses_in_one_short_line(arguments: tuple, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}") as caught:
        tuner.lookup(*arguments)
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("kind", [np.int64, np.uint16])
def test_lookup_takes_whole_numbers_of_numpy(kind: type) -> None:
    numbers = {"headdim": 64, "seqlen": 1024, "batch": 2, "heads": 3}
    found = tuner.lookup(**{name: kind(value) for name, value in numbers.items()}, target=H100)
    assert found == tuner.lookup(**numbers, target=H100)


def test_pin_says_what_parameters_there_are() -> None:
    with pytest.raises(ValueError, match=r"portable takes BLOCK_M, BLOCK_N, .*num_warps"):
        tuner.pin({"BLOCK_M": 128})
    with pytest.raises(ValueError, match="hopper takes BLOCK_N, consumers") as caught:
        tuner.pin({"BLOCK_M": 128}, template="hopper")
    assert "portable" not in str(caught.value)


@pytest.mark.parametrize("database", ["", ".", "/"])
def test_a_database_without_a_name_is_left_out_with_a_warning(database: str, caplog) -> None:
    tuner.use(database)
    tuner.refresh()
    assert "going on without its records" in caplog.text
    tuner.use()


def test_a_nul_in_the_name_of_a_database_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^the database is 'a\\x00b', but must have no NUL"):
        tuner.use("a\0b")


def test_a_name_that_has_no_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^the database is '\\ud800', but must have no lone surr"):
        tuner.use("\ud800")


@pytest.mark.parametrize("database", [5, b"my.db", ["my.db"]])
def test_what_names_no_database_is_refused(database: object) -> None:
    with pytest.raises(TypeError, match=r"^the database is .*, but must be a path or a URL$"):
        tuner.use(database)


def test_export_sees_one_operator_and_its_strides() -> None:
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return tuner.custom_attention_forward(q, k, v, causal=False)

    with FakeTensorMode():
        q = cuda(2, 128, 4, 64).transpose(1, 2)
        k = v = cuda(2, 4, 128, 64)
        dynamic = {2: torch.export.Dim("seqlen", min=2, max=4096)}
        program = torch.export.export(Module(), (q, k, v), dynamic_shapes=(dynamic,) * 3)
        calls = [node for node in program.graph.nodes if node.op == "call_function"]
        (call,) = [node for node in calls if "attention_tuner" in str(node.target)]
        assert call.target is torch.ops.attention_tuner.forward.default
        out, lse = call.meta["val"]
        assert out.stride()[1:] == (64, 256, 1)
        assert str(out.shape[2]).startswith("s")  # still free
        assert lse.numel() == 0


_IMPORT = """
import sys
import tuner
loaded = {"optuna", "typer", "alembic", "torch", "triton", "sqlalchemy", "rich"} & set(sys.modules)
assert not loaded, loaded
from tuner import attention, custom_attention_forward, flash_attn_func, lookup, pin, refresh, use
loaded = {"optuna", "typer", "alembic", "rich", "pydantic"} & set(sys.modules)
assert not loaded, loaded
import torch
assert not torch.cuda.is_initialized()
"""


def test_importing_loads_no_tuning_library_and_makes_no_context() -> None:
    result = subprocess.run(
        [sys.executable, "-c", _IMPORT], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr


_BROKEN = """
import os, sys
os.environ["TUNER_DB"] = sys.argv[1]
from tuner.snapshot import Snapshot
from kernels.attention.problem import Problem
from tuner.target import Hardware, Target
import logging
logging.basicConfig(level=logging.WARNING)
snapshot = Snapshot.load()
target = Target(Hardware(90, 132, 80, 700), "x", "3.6.0", "2.11.0", "0")
print(snapshot.resolve(target, Problem.on_grid(128, 4096, True)).source)
loaded = {"optuna", "typer", "alembic", "pydantic"} & set(sys.modules)
assert not loaded, loaded
"""


@pytest.mark.parametrize("kind", ["missing", "directory", "garbage", "truncated"])
def test_a_broken_database_never_raises_into_a_forward(tmp_path, kind: str) -> None:
    path = tmp_path / "configs.db"
    if kind == "directory":
        path.mkdir()
    elif kind == "garbage":
        path.write_bytes(b"not a database at all" * 100)
    elif kind == "truncated":
        from tuner.store.database import Store

        with Store.open(path):
            pass
        path.write_bytes(path.read_bytes()[:5000])
    before = path.read_bytes() if path.is_file() else None
    result = subprocess.run(
        [sys.executable, "-c", _BROKEN, str(path)], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-1] in ("exact", "nearest", "family")
    if kind in ("garbage", "truncated"):
        assert str(path) in result.stderr  # said in the log
    assert (path.read_bytes() if path.is_file() else None) == before


def test_what_kernels_make_of_the_largest_scale_is_finite_in_fp32() -> None:
    largest = validation._LARGEST
    with FakeTensorMode():
        q = cuda(2, 4, 16, 64)
        assert validate(q, q, q, True, -largest) == -largest
    assert torch.tensor(in_base_2(largest), dtype=torch.float32).isfinite().all()
