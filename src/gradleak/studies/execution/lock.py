"""The lock that keeps a second driver away from a file of records; used by `run_study`.

The operating system drops it when its holder ends, also by `kill -9`. Its file, `NAME.db.lock`, is deleted after a run
if gradleak made it; a file that was there before is locked, and neither written nor deleted.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from gradleak.errors import GradleakError

SIGNATURE = b"gradleak study run, process "
LONGEST_SIGNATURE = 64


@contextmanager
def only_driver(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a file of records while the body runs.

    Args:
        path: the file of records. Links are resolved: all names of one file share one lock.
        wait: wait for another holder to finish.

    Raises:
        GradleakError: if another run holds the lock and this one is not to wait, or the lock cannot be made.
    """
    place = Path(f"{os.path.realpath(path)}.lock")
    if not place.parent.is_dir():  # or FileLock would make it
        raise GradleakError(f"{path} cannot be written: there is no folder {place.parent}")
    signed = _SignedFile(place)
    lock = FileLock(place, on_acquired=signed.sign, preserve_lock_file=True, thread_local=False)
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        raise GradleakError(f"another run (process {_holder(place)}) holds {path}; use --wait to wait for it") from None
    except OSError as error:
        if error.errno == errno.ELOOP or place.is_symlink():
            raise GradleakError(f"{place} is a link, which a lock must not be; remove it") from None
        raise GradleakError(f"{path} cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        signed.delete()  # before the release: a driver that waits checks that the file it locked still has a name
        lock.release()


class _SignedFile:
    """The lock's file; it is ours if this run or an earlier one of gradleak created it."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._existed = os.path.lexists(place)
        self._descriptor: int | None = None  # of a file that is ours, open as long as the lock is held

    def sign(self, descriptor: int) -> None:
        """Write this process's number into the locked file, if it is ours."""
        content = os.read(descriptor, LONGEST_SIGNATURE)
        if content.startswith(SIGNATURE) or not (content or self._existed):
            self._descriptor = descriptor
            try:
                os.lseek(descriptor, 0, os.SEEK_SET)
                os.ftruncate(descriptor, 0)
                os.write(descriptor, SIGNATURE + str(os.getpid()).encode())
            except OSError:  # a full disk: without its signature no later run would know the file as ours
                self.delete()
                raise

    def delete(self) -> None:
        """Delete the file if it is ours and its name has not been given to another."""
        with suppress(OSError):  # Windows does not delete an open file
            if self._descriptor is not None and os.path.samestat(os.fstat(self._descriptor), os.lstat(self._place)):
                self._place.unlink()


def _holder(place: Path) -> str:
    """Return the number of the process that holds the lock, if the file tells it."""
    with suppress(OSError), place.open("rb") as file:
        content = file.read(LONGEST_SIGNATURE)
        if content.startswith(SIGNATURE):
            return content.removeprefix(SIGNATURE).decode(errors="replace")
    return "unknown"
