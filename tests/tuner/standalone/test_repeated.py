"""The file repeats a launch without Triton where it may, and only there."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

from tests.tuner.standalone import exported  # noqa: E402
from tuner.standalone.document import standalone_file  # noqa: E402


class File:
    """A standalone file that takes the CPU for an H100, and what it launches."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module = exported.load(standalone_file([], exported.TARGET), folder)
        self.launched: list[str] = []
        self.known = True  # whether this Triton's launch is
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 7, raising=False)
        monkeypatch.setattr(self.module, "validate", lambda *given: given[4] or 0.125)
        monkeypatch.setattr(self.module.Hopper, "launch", self._launch)

    def _launch(self, q: Any, k: Any, v: Any, out: Any, causal: bool, scale: float) -> Any:
        self.launched.append(f"by Triton, scale {scale}")
        return self._again if self.known else None

    def _again(self, q: int, k: int, v: int, out: int, lse: None, stream: int) -> None:
        assert (lse, stream) == (None, 7)
        self.launched.append(f"again at {q}")

    def __call__(self, *given: Any) -> Any:
        self.launched.clear()
        out = self.module.custom_attention_forward(*given)
        assert out.shape == given[0].shape
        return list(self.launched)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> File:
    return File(tmp_path, monkeypatch)


def draw(seqlen: int = 64) -> list[Any]:
    return [torch.zeros(1, 2, seqlen, 128, dtype=torch.float16) for _ in range(3)]


def test_a_call_like_an_earlier_one_is_repeated(file: File) -> None:
    q, k, v = draw()
    assert file(q, k, v) == ["by Triton, scale 0.125"]
    assert file(q, k, v) == [f"again at {q.data_ptr()}"]
    others = draw()
    assert file(*others) == [f"again at {others[0].data_ptr()}"]
    for other in ((q, k, v, False), (q, k, v, True, 0.5), tuple(draw(65))):
        assert file(*other)[0].startswith("by Triton")
        assert file(*other)[0].startswith("again")


def test_what_is_copied_or_negated_first_is_not(file: File) -> None:
    q, k, v = draw()
    odd = torch.zeros(q.numel() + 1, dtype=torch.float16)[1:].view(q.shape)
    for given in ((odd, k, v), (q, odd, v), (q, k, v, True, -0.5)):
        for _ in range(2):
            assert file(*given)[0].startswith("by Triton")
    assert file(q, k, v) == ["by Triton, scale 0.125"]
    assert file(odd, k, v)[0].startswith("by Triton")  # though its shape and strides are known


def test_gradients_are_refused_although_the_call_is_known(file: File) -> None:
    q, k, v = draw()
    file(q, k, v)
    with pytest.raises(NotImplementedError, match="no gradients here"):
        file(q.requires_grad_(), k, v)
    with torch.no_grad():
        assert file(q, k, v) == [f"again at {q.data_ptr()}"]


def test_tangents_are_refused_as_gradients_are(file: File) -> None:
    q, k, v = draw()
    file(q, k, v)
    with forward_ad.dual_level():
        for name, given in (
            ("q", (forward_ad.make_dual(q, q), k, v)),
            ("v", (q, k, forward_ad.make_dual(v, v))),
        ):
            with pytest.raises(NotImplementedError, match=f"{name} has a tangent"):
                file(*given)
        assert file(q, k, v) == ["by Triton, scale 0.125"]  # none of them has one


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_tracing_is_refused_for_what_it_is(file: File) -> None:
    q, k, v = draw()
    with pytest.raises(NotImplementedError, match=r"torch\.jit\.trace is not served"):
        torch.jit.trace(file.module.custom_attention_forward, (q, k, v))


def test_where_the_launch_is_not_known_triton_launches_each_time(file: File) -> None:
    file.known = False
    q, k, v = draw()
    for _ in range(2):
        assert file(q, k, v) == ["by Triton, scale 0.125"]


def test_a_triton_that_launches_otherwise_is_left_to_launch(file: File) -> None:
    work = file.module.Work(1, ())
    assert file.module.direct(object(), work, 0) is None
