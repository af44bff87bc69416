"""A dataset: texts with or without labels, and the selection of a part of it."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field

from gradleak.errors import GradleakError

# Eighteen digits fit a machine word, and no dataset has more examples.
_TAKE = re.compile(r"([0-9]{0,18}):([0-9]{0,18})")


@dataclass(frozen=True)
class Dataset:
    """Texts, in a fixed order.

    Attributes:
        name: The name that the user gave: `cola`, `cola:train`, a path.
        texts: The texts.
        labels: One class number per text, or None if the texts have no labels.
        label_names: The name of each class, or None if the texts have no labels.
        source: Who made the set, or the file it was read from.
        whole: For a shipped sample the name of the set it was drawn from.
        used: The classes that occur, in order; a part of a dataset keeps those of the whole.
        skipped: Rows of a file that were left out because they hold no text or no label (`load_file`).
    """

    name: str
    texts: tuple[str, ...]
    labels: tuple[int, ...] | None
    label_names: tuple[str, ...] | None
    source: str
    whole: str | None = None
    used: tuple[int, ...] = field(default=(), compare=False)
    skipped: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if not self.used and self.labels is not None:
            object.__setattr__(self, "used", tuple(sorted(set(self.labels))))
        if self.labels is not None and len(self.labels) != len(self.texts):
            raise GradleakError(f"{self.name} has {len(self.texts)} texts but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def num_labels(self) -> int | None:
        """The number of classes, or None if the texts have no labels."""
        return None if self.label_names is None else len(self.label_names)

    def take(self, selection: slice) -> Dataset:
        """Return the selected examples, with the classes of the whole set.

        Raises:
            GradleakError: If the selection leaves no examples.
        """
        texts = self.texts[selection]
        if not texts:
            raise GradleakError(self._nothing_left(selection))
        labels = None if self.labels is None else self.labels[selection]
        return dataclasses.replace(self, texts=texts, labels=labels)

    def _nothing_left(self, selection: slice) -> str:
        start = 0 if selection.start is None else selection.start
        stop = "" if selection.stop is None else selection.stop
        message = f"{self.name} has {len(self)} examples: {start}:{stop} leaves none"
        if self.whole is None:
            return message
        return f"{message}; the whole set is {self.whole} (pip install 'gradleak[hub]')"


def parse_take(selection: str) -> slice:
    """Parse a selection "A:B", ":B" or "A:" into a slice.

    Raises:
        GradleakError: If it is not of this form or selects nothing.
    """
    match = _TAKE.fullmatch(selection)
    start, stop = (int(part) if part else None for part in match.groups()) if match else (None, None)
    if (start is None and stop is None) or (stop is not None and stop <= (start or 0)):
        raise GradleakError(f"examples are taken as A:B with A below B, such as 0:16, :16 or 5:, not '{selection}'")
    return slice(start, stop)
