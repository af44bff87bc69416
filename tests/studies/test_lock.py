"""One driver per file of records, whatever the file is called and however a driver ends."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

import pytest
from study_tools import in_background, until

from gradleak.errors import GradleakError
from gradleak.studies.execution.lock import SIGNATURE, only_driver


def hold(path: Path) -> None:
    """Hold a lock until killed."""
    with only_driver(path):
        time.sleep(60)


def take(path: Path) -> None:
    """Take a lock, waiting for it, and leave a sign of it."""
    with only_driver(path, wait=True):
        path.with_name("taken").touch()


def test_only_one_driver_at_a_time_and_no_lock_is_left(tmp_path: Path) -> None:
    path = tmp_path / "my.db"
    with only_driver(path):
        message = rf"another run \(process {os.getpid()}\) holds .*my\.db; use --wait to wait for it"
        with pytest.raises(GradleakError, match=message), only_driver(path):
            pass
        assert (tmp_path / "my.db.lock").exists(), "the second driver must not remove the first one's lock"
        with only_driver(tmp_path / "other.db"):
            pass
    with only_driver(path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_all_names_of_a_file_share_one_lock(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "folder")
    (tmp_path / "name.db").symlink_to(tmp_path / "folder" / "my.db")
    with only_driver(tmp_path / "folder" / "my.db"):
        for other in (tmp_path / "linked" / "my.db", tmp_path / "name.db"):
            with pytest.raises(GradleakError, match="another run"), only_driver(other):
                pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "linked", "name.db"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_in_place_of_the_lock_is_refused_and_not_followed(tmp_path: Path, exists: bool) -> None:
    precious, link = tmp_path / "precious", tmp_path / "my.db.lock"
    if exists:
        precious.write_text("precious")
    link.symlink_to(precious)
    with pytest.raises(GradleakError, match=r"my\.db\.lock is a link.*remove it"), only_driver(tmp_path / "my.db"):
        pass
    assert link.is_symlink()
    assert precious.exists() is exists
    assert not exists or precious.read_text() == "precious"


@pytest.mark.parametrize("content", ["", "1234", "my own notes"])
def test_a_file_that_was_there_before_is_locked_but_neither_changed_nor_deleted(tmp_path: Path, content: str) -> None:
    (tmp_path / "my.db.lock").write_text(content)
    with only_driver(tmp_path / "my.db"):
        message = r"another run \(process unknown\) holds"
        with pytest.raises(GradleakError, match=message), only_driver(tmp_path / "my.db"):
            pass
    assert (tmp_path / "my.db.lock").read_text() == content


def test_a_file_that_took_the_name_of_the_lock_is_not_deleted(tmp_path: Path) -> None:
    place = tmp_path / "my.db.lock"
    with only_driver(tmp_path / "my.db"):
        place.unlink()
        place.write_text("mine")
    assert place.read_text() == "mine"


def test_a_lock_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "my.db.lock").mkdir()
    with (
        pytest.raises(GradleakError, match=r"my\.db cannot be written: Is a directory"),
        only_driver(tmp_path / "my.db"),
    ):
        pass
    missing = tmp_path / "none" / "my.db"
    with pytest.raises(GradleakError, match=r"my\.db cannot be written: there is no folder"), only_driver(missing):
        pass
    assert not missing.parent.exists()


def test_a_lock_that_finds_the_disk_full_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gradleak.studies.execution.lock.os.write", refuse)
    with (
        pytest.raises(GradleakError, match=r"my\.db cannot be written: No space left on device"),
        only_driver(tmp_path / "my.db"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_killed_driver_leaves_no_lock(tmp_path: Path) -> None:
    path, place = tmp_path / "my.db", tmp_path / "my.db.lock"
    first = in_background(hold, path, output=tmp_path / "first")
    until(lambda: place.exists() and place.read_bytes().startswith(SIGNATURE), "the lock is held")
    with pytest.raises(GradleakError, match=rf"another run \(process {first.pid}\)"), only_driver(path):
        pass
    second = in_background(take, path, output=tmp_path / "second")
    time.sleep(0.1)
    assert not (tmp_path / "taken").exists()
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    second.join(20)
    assert second.exitcode == 0
    assert (tmp_path / "taken").exists()
    assert not place.exists(), "an earlier run's lock is gradleak's own"


def test_drivers_that_come_and_go_never_overlap(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    drivers = [in_background(_count, tmp_path / "my.db", counter, output=tmp_path / f"{n}") for n in range(3)]
    for driver in drivers:
        driver.join(60)
        assert driver.exitcode == 0
    assert counter.read_text() == "60"


def _count(path: Path, counter: Path) -> None:
    """Add to a number without any other protection than the lock, which is made and deleted every time."""
    for _ in range(20):
        with only_driver(path, wait=True):
            number = int(counter.read_text())
            time.sleep(0.001)
            counter.write_text(str(number + 1))
