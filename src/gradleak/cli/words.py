"""Counts in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradleak.exchange import Update


def sizes(update: Update) -> str:
    """Return how much an update holds, in words."""
    return f"{len(update.tensors)} tensors, {update.num_values:,} values"


def plural(count: int, noun: str) -> str:
    """Return `1 batch`, `2 batches`."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"
