"""Files are replaced as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gradleak.errors import GradleakError
from gradleak.files import read_bytes, write_atomically


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("before", [0o600, 0o640, 0o664])
def test_a_file_is_replaced_and_keeps_its_mode(tmp_path: Path, before: int) -> None:
    path = tmp_path / "result.json"
    path.write_text("old", encoding="utf-8")
    path.chmod(before)
    with write_atomically(path) as temporary:
        temporary.write_text("new", encoding="utf-8")
        assert path.read_text(encoding="utf-8") == "old"
    assert path.read_text(encoding="utf-8") == "new"
    assert mode(path) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_a_new_file_is_its_owners_alone_unless_it_holds_no_text(tmp_path: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    for private, wanted in ((True, 0o600), (False, 0o666 & ~mask)):
        path = tmp_path / f"{private}"
        with write_atomically(path, private=private) as temporary:
            assert mode(temporary) == 0o600, "nobody reads what is being written"
            temporary.touch()
        assert mode(path) == wanted


def test_a_link_is_neither_followed_nor_replaced(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious", tmp_path / "link.json"
    precious.write_text("precious")
    link.symlink_to(precious)
    with pytest.raises(GradleakError, match=r"link\.json is a link, which is not replaced"), write_atomically(link):
        pass
    assert link.is_symlink()
    assert precious.read_text() == "precious"


def test_a_read_only_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(GradleakError, match=r"result\.json is read-only: make it writable"), write_atomically(path):
        pass
    assert (path.read_text(), mode(path)) == ("old", 0o444)


def test_a_dash_is_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with write_atomically(Path("-")) as temporary:
        temporary.write_text("naïve\n", encoding="utf-8")
        assert capsys.readouterr().out == ""
    assert capsys.readouterr().out == "naïve\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["pipe", "folder", "missing", "large"])
def test_only_an_ordinary_file_within_bounds_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        path.write_bytes(bytes(101))
    messages = {
        "pipe": "pipe is no ordinary file; save its content as one first",
        "folder": "folder cannot be read: Is a directory",
        "missing": "missing cannot be read: No such file or directory",
        "large": "large is larger than 0 MiB, the most that is read; split it",
    }
    with pytest.raises(GradleakError, match=messages[kind]):
        read_bytes(path, 100)


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
