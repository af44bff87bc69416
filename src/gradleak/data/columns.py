"""Find the text column and the label column of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from gradleak.errors import GradleakError

TEXT_NAMES = (
    "text",
    "sentence",
    "content",
    "utterance",
    "question",
    "query",
    "review",
    "comment",
    "message",
    "body",
)
LABEL_NAMES = ("label", "labels", "intent", "class", "category", "target", "sentiment")
_LOOK_AT = 100  # number of values by which a column is recognised as text


def find_columns(
    columns: Sequence[str],
    values: Callable[[str], Iterable[object]],
    place: str,
    *,
    text_column: str | None = None,
    label_column: str | None = None,
) -> tuple[str, str | None]:
    """Return the names of the text column and of the label column, if there is one.

    Args:
        columns: Names of all columns.
        values: Returns the values of a column; called only if no column has a usual name.
        place: Name of the file or set, for the error message.
        text_column: The user's choice.
        label_column: The user's choice.

    Raises:
        GradleakError: If a chosen column does not exist or no text column can be found.
    """
    label = (
        _first(LABEL_NAMES, [c for c in columns if c != text_column])
        if label_column is None
        else _chosen(label_column, columns, place, "--label-column")
    )
    if text_column is not None:
        return _chosen(text_column, columns, place, "--text-column"), label
    others = [c for c in columns if c != label]
    text = _first(TEXT_NAMES, others) or _only_text(others, values)
    if text is None:
        raise GradleakError(
            f"no text column found in {place}; its columns: {', '.join(columns) or 'none'}; "
            "name it with --text-column (and the labels with --label-column)"
        )
    return text, label


def _chosen(name: str, columns: Sequence[str], place: str, option: str) -> str:
    if name in columns:
        return name
    found = _first([name.lower()], columns)
    if found is None:
        raise GradleakError(f"{place} has no column '{name}' for {option}; its columns: {', '.join(columns)}")
    return found


def _first(names: Iterable[str], columns: Sequence[str]) -> str | None:
    by_name = {column.lower(): column for column in reversed(columns)}
    return next((by_name[name] for name in names if name in by_name), None)


def _only_text(columns: Sequence[str], values: Callable[[str], Iterable[object]]) -> str | None:
    if len(columns) == 1:
        return columns[0]
    like_text = [column for column in columns if _reads_like_text(values(column))]
    return like_text[0] if len(like_text) == 1 else None


def _reads_like_text(values: Iterable[object]) -> bool:
    """Tell text from identifiers, dates and categories: most values of text have several words."""
    seen = list(islice(values, _LOOK_AT))
    several = [v for v in seen if isinstance(v, str) and sum(w[:1].isalpha() for w in v.split()) > 1]
    return 2 * len(several) > len(seen)
