"""The short way of a forward, on CPU tensors that a patched torch takes for device -1."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")

from torch.autograd import forward_ad  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tuner import repetition  # noqa: E402
from tuner.repetition import forget, remember, repeat  # noqa: E402


class Launches(list):  # type: ignore[type-arg]
    def __call__(self, *arguments: object) -> None:
        self.append(arguments)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 77, raising=False)
    forget()
    yield Launches()
    forget()


def tensors(*shape: int, dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    return [torch.zeros(shape or (1, 2, 16, 64), dtype=dtype) for _ in range(3)]


def test_a_call_like_an_earlier_one_is_launched_on_its_own_tensors(launches: Launches) -> None:
    remember(*tensors(), True, None, lambda: launches)
    q, k, v = tensors()
    out = repeat(q, k, v, True, None)
    assert out is not None
    assert (out.shape, out.stride(), out.dtype) == (q.shape, q.stride(), q.dtype)
    assert launches == [(q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), None, 77)]


ODD = torch.zeros(2049, dtype=torch.float16)[1:].view(1, 2, 16, 64)  # an odd address


@pytest.mark.parametrize(
    "change",
    [
        {"q": torch.zeros(1, 2, 17, 64, dtype=torch.float16)},
        {"k": torch.zeros(1, 2, 17, 64, dtype=torch.float16)},
        {"v": torch.zeros(1, 2, 16, 64, dtype=torch.bfloat16)},
        {"q": torch.zeros(1, 16, 2, 64, dtype=torch.float16).transpose(1, 2)},  # other strides
        {"q": torch.zeros(1, 2, 16, 64, dtype=torch.float16, requires_grad=True)},
        {"q": torch.nn.Parameter(torch.zeros(1, 2, 16, 64, dtype=torch.float16))},
        {"q": ODD},
        {"k": ODD},
        {"v": ODD},
        {"q": [[0.0]]},
        {"q": None},
        {"causal": False},
        {"causal": 1},
        {"causal": None},
        {"sm_scale": 0.125},
        {"sm_scale": True},
        {"sm_scale": "x"},
    ],
)
def test_anything_else_takes_the_long_way(launches: Launches, change: dict) -> None:
    remember(*tensors(), True, None, lambda: launches)
    arguments = dict(zip("qkv", tensors())) | {"causal": True, "sm_scale": None} | change
    assert repeat(**arguments) is None
    assert not launches


def test_without_gradients_to_record_tensors_that_want_them_may_repeat(launches: Launches) -> None:
    remember(*tensors(), True, None, lambda: launches)
    q, k, v = tensors()
    q.requires_grad_()
    with torch.no_grad():
        assert repeat(q, k, v, True, None) is not None


def test_another_current_device_takes_the_long_way(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(*tensors(), True, None, lambda: launches)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    assert repeat(*tensors(), True, None) is None


def test_modes_and_transforms_see_the_operator(launches: Launches) -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    remember(*tensors(), True, None, lambda: launches)
    q, k, v = tensors()
    with Mode():
        assert repeat(q, k, v, True, None) is None
    seen = []
    torch.func.vmap(lambda x: seen.append(repeat(x, x, x, True, None)) or x)(torch.stack([q, q]))
    torch.jit.trace(
        lambda x: seen.append(repeat(x, x, x, True, None)) or x + 1, q, check_trace=False
    )
    assert seen
    assert set(seen) == {None}
    assert not launches


def test_modes_of_functions_see_it_and_a_default_device_is_none(launches: Launches) -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    remember(*tensors(), True, None, lambda: launches)
    q, k, v = tensors()
    with torch.device("cpu"):
        assert repeat(q, k, v, True, None) is not None
        with Mode():
            assert repeat(q, k, v, True, None) is None
    with Mode(), torch.device("cpu"):
        assert repeat(q, k, v, True, None) is None
    assert len(launches) == 1


def test_within_forward_mode_differentiation_the_long_way_is_taken(launches: Launches) -> None:
    remember(*tensors(), True, None, lambda: launches)
    with forward_ad.dual_level():
        assert repeat(*tensors(), True, None) is None
    assert repeat(*tensors(), True, None) is not None


def test_what_is_to_be_forgotten_while_it_is_prepared_is_not_remembered(launches: Launches) -> None:
    def prepare() -> Launches:
        forget()  # as another thread might
        return launches

    remember(*tensors(), True, None, prepare)
    assert repeat(*tensors(), True, None) is None


def test_forgetting_and_not_growing_without_bound(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(*tensors(), True, None, lambda: launches)
    forget()
    assert repeat(*tensors(), True, None) is None
    monkeypatch.setattr(repetition, "_KEPT", 3)
    for seqlen in range(1, 9):
        remember(*tensors(1, 2, seqlen, 64), True, None, lambda: launches)
    assert len(repetition._launches) <= 3
    assert repeat(*tensors(1, 2, 8, 64), True, None) is not None


def test_a_repeated_call_stays_as_short_as_it_is(launches: Launches) -> None:
    import sys

    import tuner

    q, k, v = tensors()
    remember(q, k, v, True, None, lambda: launches)
    called: list[str] = []

    def profile(frame, event, argument) -> None:
        if event in ("call", "c_call"):
            called.append(argument.__name__ if event == "c_call" else frame.f_code.co_name)

    tuner.custom_attention_forward(q, k, v)
    sys.setprofile(profile)
    try:
        tuner.custom_attention_forward(q, k, v)
    finally:
        sys.setprofile(None)
    assert len(launches) == 2
    # Of Python and of C together; what each costs, scripts/measure_host_time.py shows.
    assert len(called) <= 26, called


def test_autocast_takes_the_long_way(launches: Launches, monkeypatch) -> None:
    remember(*tensors(), True, None, lambda: launches)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda: True)
    assert repeat(*tensors(), True, None) is None


def test_entry_points_are_kept_apart_and_lse_is_allocated(launches: Launches) -> None:
    q, k, v = tensors()
    remember(q, k, v, True, None, lambda: launches, "flash lse", (1, 16, 2))
    assert repeat(q, k, v, True, None) is None
    assert repeat(q, k, v, True, None, "flash") is None
    found = repeat(q, k, v, True, None, "flash lse")
    assert found is not None
    out, lse = found
    assert (lse.shape, lse.dtype) == ((1, 16, 2), torch.float32)
    assert launches[0][3:5] == (out.data_ptr(), lse.data_ptr())
