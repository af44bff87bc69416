"""Atomic writes: a reader of a file finds the old content or the complete new one, never a part."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradleak.errors import GradleakError


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary file in the same folder, which replaces `path` when the block ends without an error.

    After an error the temporary file is removed and `path` is unchanged.

    Raises:
        GradleakError: if the file cannot be written.
    """
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
        os.close(handle)
        temporary = Path(name)
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # temporary files are readable by their owner alone
        temporary.replace(path)
    except OSError as error:
        raise GradleakError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
