"""A client's texts, as a component of FLARE can be told of them: by a file, or by a function's name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path

from gradleak.errors import GradleakError

FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def check_texts(source: object) -> str:
    """Return where texts come from, after checking that it may be such a place.

    Raises:
        GradleakError: unless it names a .txt file, or a function as `module:function`.
    """
    if isinstance(source, str) and (FUNCTION.fullmatch(source) or source.endswith(".txt")):
        return source
    raise GradleakError(
        f"texts takes a .txt file, which may have {{site}} in its name, or module:function, not {source!r}"
    )


def read_texts(source: str, site: str, number: int) -> Sequence[str]:
    """Return the texts of a site in a round.

    Args:
        source: a file with one text in each line, whose name may have `{site}`; or `module:function`, which is called
            with site and round.
        site: the site's name.
        number: the round.

    Raises:
        GradleakError: if there are none.
    """
    if FUNCTION.fullmatch(source):
        module, _, name = source.partition(":")
        try:
            found = list(getattr(importlib.import_module(module), name)(site, number))
        except (ImportError, AttributeError) as error:
            raise GradleakError(f"texts={source}: {error}") from None
    else:
        path = Path(source.replace("{site}", site))
        try:
            found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except OSError as error:
            raise GradleakError(f"{path} cannot be read: {error.strerror}") from None
    if not found:
        raise GradleakError(f"texts={source} gives no text for {site}")
    return found
