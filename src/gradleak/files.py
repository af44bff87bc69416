"""Files that are written whole or not at all, and files of others that are read within bounds."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradleak.bounds import LARGEST_TEXT_FILE
from gradleak.errors import GradleakError
from gradleak.printable import quoted

STDOUT = Path("-")
"""The name that stands for standard output."""

OWNER_ONLY = 0o600

UNREADABLE: tuple[type[Exception], ...] = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    ArithmeticError,
    AssertionError,
)
"""What libraries raise over the content of a file that makes no sense to them."""


@contextmanager
def refused_as(words: str, *others: type[Exception]) -> Iterator[None]:
    """Turn whatever the body raises over the content of a file into a GradleakError of one line.

    Args:
        words: what is wrong, with the file's name; the reason follows.
        others: further exceptions, of the library that reads the file.
    """
    try:
        yield
    except GradleakError:
        raise
    except UNREADABLE + others as error:
        raise GradleakError(f"{words}: {quoted(str(error)) or type(error).__name__}") from None


@contextmanager
def write_atomically(path: Path, *, private: bool = True) -> Iterator[Path]:
    """Yield a temporary file in the same folder, which replaces `path` when the block ends without an error.

    A reader finds the old content or the complete new one, never a part. After an error the temporary file is removed
    and `path` is unchanged. A file that exists keeps its mode. For `-` the content goes to standard output instead.

    Args:
        path: the file.
        private: a new file may hold text of clients, or what gives it away: only its owner may read it.

    Raises:
        GradleakError: if the file cannot be written, is a link, is read-only, or is no ordinary file.
    """
    if path == STDOUT:
        with _written_to_stdout() as buffer:
            yield buffer
        return
    temporary: Path | None = None
    try:
        mode = _mode_of(path, private)
        handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name[:100]}.")
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        raise GradleakError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Raise a GradleakError if `path` exists and must not be replaced: a link, a read-only or no ordinary file."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        raise GradleakError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISLNK(found.st_mode):
        raise GradleakError(f"{path} is a link, which is not replaced: give the file itself, or - for standard output")
    if stat.S_ISDIR(found.st_mode):
        raise GradleakError(f"{path} is a folder; give the name of a file in it")
    if not stat.S_ISREG(found.st_mode):
        raise GradleakError(f"{path} is no ordinary file; give the name of one")
    if not found.st_mode & 0o222 or not os.access(path, os.W_OK):
        raise GradleakError(f"{path} is read-only: make it writable (chmod u+w), or give another file")


def create_private(path: Path) -> None:
    """Create an empty file that only its owner may read, unless there is one.

    Raises:
        GradleakError: if it cannot be written, or is a link that leads nowhere.
    """
    if path.is_symlink() and not path.exists():
        raise GradleakError(f"{path} is a link to a file that is not there: remove it, or give the file itself")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0), OWNER_ONLY))
    except FileExistsError:
        return
    except OSError as error:
        raise GradleakError(f"{path} cannot be written: {error.strerror}") from None


def check_ordinary(path: Path) -> None:
    """Raise a GradleakError unless `path` is an ordinary file: a pipe would wait, and a device may never end."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise GradleakError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(found.st_mode):
        raise GradleakError(f"{path} cannot be read: Is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise GradleakError(f"{path} is no ordinary file; save its content as one first")


def read_bytes(path: Path, limit: int = LARGEST_TEXT_FILE) -> bytes:
    """Return the content of an ordinary file of at most `limit` bytes.

    Raises:
        GradleakError: if it does not exist, cannot be read, is larger, or is no ordinary file.
    """
    check_ordinary(path)
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise GradleakError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > limit:
        raise GradleakError(f"{path} is larger than {limit / 2**20:,.0f} MiB, the most that is read; split it")
    return content


def _mode_of(path: Path, private: bool) -> int:
    """Return the mode that the file will have: the one it has, else that of a private or an ordinary new file."""
    check_replaceable(path)
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    return OWNER_ONLY if private else 0o666 & ~_umask()


@contextmanager
def _written_to_stdout() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gradleak-") as folder:
        temporary = Path(folder) / "output"
        yield temporary
        content = temporary.read_bytes()
    sys.stdout.flush()
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:
        sys.stdout.write(content.decode())
    else:
        binary.write(content)
    sys.stdout.flush()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
