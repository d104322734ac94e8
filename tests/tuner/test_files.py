from __future__ import annotations

from pathlib import Path

import pytest

from tuner.files import replacing


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_it_keeps_the_permissions_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "private"
    path.write_text("old")
    path.chmod(0o600)
    with replacing(path) as part:
        part.write_text("new")
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_writers_do_not_collide(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as first:
        first.write_text("first")
        with replacing(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), replacing(path) as part:
        part.write_text("half of it \ud800", encoding="utf-8")
    with pytest.raises(FileNotFoundError), replacing(path):
        pass  # nothing was written
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "x" * 99 + "é"])
def test_the_longest_names(tmp_path: Path, name: str) -> None:
    with replacing(tmp_path / name) as part:
        part.write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    for folder in (Path("/"), tmp_path):
        with pytest.raises(IsADirectoryError), replacing(folder) as part:
            part.write_text("new")
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path, link = tmp_path / "folder" / "file", tmp_path / "link"
    path.write_text("old")
    link.symlink_to(path)
    with replacing(link) as part:
        part.write_text("new")
    assert link.is_symlink()
    assert path.read_text() == "new"
