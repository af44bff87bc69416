"""Which records still stand for a cell: those of the same weights and sentences, made by the same release.

A release is the first two numbers of a version: what attacks find may change between 0.1 and 0.2, and does not between
0.1.0 and 0.1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradleak.version import __version__

UNKNOWN = "weights and sentences not recorded"


@dataclass(frozen=True)
class Recorded:
    """A cell in the store, without its results.

    Attributes:
        id: of the cell that was run.
        setting: see `Cell.setting`.
        hashes: see `Cell.hashes`.
        done: whether it finished; else it failed.
        attempts: how often it was tried.
        error: why it failed the last time.
        version: of the gradleak that ran it.
    """

    id: str
    setting: str
    hashes: Mapping[str, str] | None
    done: bool
    attempts: int
    error: str
    version: str


def why_stale(recorded: Recorded, hashes: Mapping[str, str], *, keep_old: bool = False) -> str | None:
    """Return why a record does not stand for the cell of the same setting; None if it does.

    Args:
        recorded: the record.
        hashes: what the cell's names stand for now.
        keep_old: accept records of other releases, and those that do not say what they were made of.
    """
    if recorded.hashes is not None:
        names = {*recorded.hashes, *hashes}
        changed = sorted(name for name in names if recorded.hashes.get(name) != hashes.get(name))
        if changed:
            return f"other {', '.join(changed)}"
    return None if keep_old else why_old(recorded.hashes, recorded.version)


def why_old(hashes: Mapping[str, str] | None, version: str) -> str | None:
    """Return what makes a record one of earlier days, whatever its cell; None if nothing does."""
    if hashes is None:
        return UNKNOWN
    return None if release(version) == release(__version__) else f"made by gradleak {version}"


def release(version: str) -> str:
    """Return the first two numbers of a version."""
    return ".".join(version.split(".")[:2])
