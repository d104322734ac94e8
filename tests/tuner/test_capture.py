"""Which graph is being captured, with a stand-in for the driver."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")

from tuner import capture  # noqa: E402


class Driver:
    """cuStreamGetCaptureInfo_v2."""

    error = 0

    def __call__(self, stream, status, graph, *rest) -> int:
        assert stream.value == 77
        assert rest == (None, None, None)
        graph._obj.value = 2**40
        return self.error


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(capture, "_asker", lambda: driver)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 77, raising=False)
    return driver


def test_the_driver_tells_the_id(driver: Driver) -> None:
    assert capture.current() == 2**40


def test_without_an_answer_there_is_a_graph_of_no_known_id(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.error = 1
    assert capture.current() == capture.UNTOLD
    monkeypatch.setattr(capture, "_asker", lambda: None)
    assert capture.current() == capture.UNTOLD


def test_a_cuda_that_is_not_in_use_is_not_asked(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", None)
    assert capture.current() is None
