"""Counts and remarks in words, for the screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradleak.exchange import Update


def sizes(update: Update) -> str:
    """Return the size of an update, such as `26 tensors, 1,204 values`."""
    return f"{len(update.tensors)} tensors, {update.num_values:,} values"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 batch` or `2 batches`."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def score_remarks(means: Mapping[str, float | None]) -> list[str]:
    """Return remarks on what mean scores hide: surplus texts, and texts that the tokenizer cannot represent."""
    remarks = []
    if surplus := int(means.get("surplus") or 0):
        remarks.append(
            f"{plural(surplus, 'text')} more than there were sentences; "
            f"{means['precision']:.1f} % of the texts returned are exactly a private text"
        )
    if lost := int(means.get("unrepresentable") or 0):
        remarks.append(
            f"{plural(lost, 'sentence')} with characters that the model's tokenizer cannot represent: never exact"
        )
    return remarks
