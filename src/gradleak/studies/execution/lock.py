"""One driver per file: a lock that the operating system drops when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gradleak.errors import GradleakError


@contextmanager
def only_driver(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a store while the body runs.

    Args:
        path: the store.
        wait: wait for another holder to finish.

    Raises:
        GradleakError: if another run holds it and this one is not to wait.
    """
    place = path.with_name(path.name + ".lock")
    file = _hold(place, path, wait)
    try:
        yield
    finally:
        with suppress(OSError):
            place.unlink()  # while the lock is still held: nobody else can have made this file theirs
        os.close(file)


def _hold(place: Path, path: Path, wait: bool) -> int:
    while True:
        try:
            file = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise GradleakError(f"{path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _still_there(file, place):
                os.ftruncate(file, 0)
                os.write(file, str(os.getpid()).encode())
                return file
        except BlockingIOError:
            holder = os.pread(file, 32, 0).decode(errors="replace") or "unknown"
            os.close(file)
            raise GradleakError(f"another run (process {holder}) holds {path}; use --wait to wait for it") from None
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # the last holder removed the file between our opening and locking it


def _still_there(file: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(place))
    except FileNotFoundError:
        return False
