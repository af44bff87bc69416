"""Files are replaced as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gradleak.errors import GradleakError
from gradleak.files import write_atomically


def test_a_file_is_replaced_by_an_ordinary_one(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old", encoding="utf-8")
    with write_atomically(path) as temporary:
        temporary.write_text("new", encoding="utf-8")
        assert path.read_text(encoding="utf-8") == "old"
    assert path.read_text(encoding="utf-8") == "new"
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_nothing_has_changed(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "result.json"
    path.write_text("old", encoding="utf-8")

    def write() -> None:
        with write_atomically(path) as temporary:
            temporary.write_text("half of", encoding="utf-8")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text(encoding="utf-8") == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "result.json"
    with (
        pytest.raises(GradleakError, match=r"result\.json cannot be written: No such file or directory"),
        write_atomically(path),
    ):
        pass
