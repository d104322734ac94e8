"""Where nobody answers, without Ray, which would try for minutes."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tuner.evaluate.ray_connection import connect


class Ray:
    """Notes what it is asked to connect to."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    def init(self, address: str | None, **_: Any) -> None:
        self.asked.append(address)


@pytest.fixture
def closed() -> str:
    """An address where nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    path = tmp_path / "ray" / "ray_current_cluster"
    path.parent.mkdir()
    return path


@pytest.mark.parametrize("address", [None, "", "auto"])
def test_a_remembered_cluster_that_is_gone_is_one_sentence(
    address: str | None, memory: Path, closed: str
) -> None:
    memory.write_text(f"{closed}\n", encoding="utf-8")
    ray = Ray()
    with pytest.raises(
        RuntimeError,
        match=rf"^the Ray cluster at {closed} cannot be reached: .*refused \({memory} names it; "
        r"remove that file if the cluster is gone\)$",
    ):
        connect(ray, address)
    assert ray.asked == []


def test_a_given_address_is_not_that_of_the_memory(
    memory: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.write_text("127.0.0.1:1", encoding="utf-8")
    with pytest.raises(RuntimeError, match=rf"^the Ray cluster at {closed} .*refused$"):
        connect(Ray(), closed)
    monkeypatch.setenv("RAY_ADDRESS", closed)
    with pytest.raises(RuntimeError, match=rf"^the Ray cluster at {closed} .*refused$"):
        connect(Ray(), None)


@pytest.mark.parametrize("address", ["[::1]:1", "::1:1", "localhost:1", " 127.0.0.1:1\n"])
def test_every_way_to_write_an_address_is_tried_first(address: str, memory: Path) -> None:
    ray = Ray()
    with pytest.raises(RuntimeError, match=r"^the Ray cluster at \S+ cannot be reached: .*$"):
        connect(ray, address)
    assert ray.asked == []


def test_where_nothing_is_remembered_no_file_is_blamed(memory: Path) -> None:
    class Alone(Ray):
        def init(self, address: str | None, **_: Any) -> None:
            raise ConnectionError(f"nothing runs at {address}")

    with pytest.raises(
        RuntimeError, match=r"^the Ray cluster at auto cannot be reached: nothing runs at auto$"
    ):
        connect(Alone(), "auto")


@pytest.mark.parametrize("remembered", ["", "\xff\x00", "no address"])
def test_a_memory_that_names_nothing_is_left_to_ray(memory: Path, remembered: str) -> None:
    memory.write_bytes(remembered.encode("latin-1"))
    ray = Ray()
    connect(ray, None)
    assert ray.asked == [None]


def test_a_cluster_that_answers_is_connected_to(memory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        memory.write_text(f"127.0.0.1:{server.getsockname()[1]}", encoding="utf-8")
        ray = Ray()
        connect(ray, None)
    assert ray.asked == [None]
