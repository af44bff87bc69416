"""Staleness: a record is valid for a cell if weights and sentences are the same and the same release made it.

A release is the first two numbers of a version: the results of attacks may change between 0.1 and 0.2, and do not
between 0.1.0 and 0.1.1. Used by the driver and by `summarise`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradleak.version import __version__

UNKNOWN = "weights and sentences not recorded"


@dataclass(frozen=True)
class CellRecord:
    """A recorded cell without its results.

    Attributes:
        id: of the cell that was run.
        setting: see `Cell.setting`.
        hashes: see `Cell.hashes`.
        done: whether it finished; if not, it failed.
        attempts: number of attempts.
        error: of the last attempt, if it failed.
        version: of gradleak when it ran.
    """

    id: str
    setting: str
    hashes: Mapping[str, str] | None
    done: bool
    attempts: int
    error: str
    version: str


def why_stale(record: CellRecord, hashes: Mapping[str, str], *, keep_old: bool = False) -> str | None:
    """Return why a record is stale for the cell of the same setting; None if it is valid.

    Args:
        record: the record.
        hashes: the cell's hashes now.
        keep_old: accept records of other releases, and those without hashes.
    """
    if record.hashes is not None:
        names = {*record.hashes, *hashes}
        changed = sorted(name for name in names if record.hashes.get(name) != hashes.get(name))
        if changed:
            return f"other {', '.join(changed)}"
    return None if keep_old else why_old(record.hashes, record.version)


def why_old(hashes: Mapping[str, str] | None, version: str) -> str | None:
    """Return why a record is stale for any cell: no hashes, or another release; None if neither holds."""
    if hashes is None:
        return UNKNOWN
    return None if release(version) == release(__version__) else f"made by gradleak {version}"


def release(version: str) -> str:
    """Return the first two numbers of a version."""
    return ".".join(version.split(".")[:2])
