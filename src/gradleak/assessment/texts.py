"""The user's rows made ready: cut to what the model takes, sampled, and split for training and testing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from gradleak.assessment.request import AuditRequest
from gradleak.data import Dataset, load_dataset, parse_take
from gradleak.errors import GradleakError
from gradleak.targets import Target

FEWEST_TESTED = 100
"""Test texts below which no utility is said: one text is then more than one per cent."""

MOST_TRAINED, MOST_TESTED = 2_000, 1_000
SHUFFLED = " (shuffled)"


@dataclass(frozen=True)
class PreparedTexts:
    """Texts that every part of an audit can use.

    Attributes:
        attacked: those that clients hold, in the order in which they are attacked.
        whole: all texts, shuffled: the first ones to train on, the last ones to test.
        rows: rows of the data.
        skipped: rows without a text or a label.
        cut: texts that were cut to what the model takes.
        dropped: texts that the model cannot be trained on: nothing of them is a token, or nothing to predict.
        lengths: tokens of each text in `attacked`, special tokens included.
    """

    attacked: Dataset
    whole: Dataset
    rows: int
    skipped: int
    cut: int
    dropped: int
    lengths: tuple[int, ...]

    @property
    def test_size(self) -> int:
        """Texts to test on: a fifth, but enough to say something if that leaves as many to train on; 0 if not."""
        fifth = min(len(self.whole) // 5, MOST_TESTED)
        wanted = max(FEWEST_TESTED, fifth)
        return wanted if len(self.whole) >= 2 * wanted else 0

    @property
    def train_size(self) -> int:
        """Texts to train on."""
        return min(len(self.whole) - self.test_size, MOST_TRAINED)


def read_texts(request: AuditRequest) -> Dataset:
    """Read the data; rows without a text or a label are left out and counted.

    Raises:
        GradleakError: if it cannot be read, or a classifier's data has labels of one class only.
    """
    data = request.data
    found = load_dataset(data.name, text_column=data.text_column, label_column=data.label_column, skip_bad=True)
    if request.target.task == "classification" and found.labels is not None and len(found.used) == 1 and len(found) > 1:
        named = found.label_names[found.used[0]] if found.label_names else found.used[0]
        raise GradleakError(
            f"all labels of {data.name} are of one class ('{named}'): a classifier needs two; "
            "name another column with --label-column, or give --task causal-lm"
        )
    return found


def prepare(request: AuditRequest, target: Target, found: Dataset) -> PreparedTexts:
    """Cut, sample and shuffle the texts.

    Raises:
        GradleakError: if the selection leaves none, or texts are longer than the model takes and may not be cut.
    """
    whole, cut, dropped = _fitting(target, found, request.truncate)
    if request.data.take is None:
        attacked = _shuffled(whole, request.seed)
    else:
        chosen = found.take(parse_take(request.data.take))  # positions in the file, as the user counts them
        attacked = _fitting(target, chosen, request.truncate)[0]
    if len(attacked) < request.unit:
        raise GradleakError(
            f"one update needs {request.unit} texts (batch size times clients); there are {len(attacked)}"
        )
    name = request.data.name
    return PreparedTexts(
        attacked=replace(attacked, name=name),
        whole=replace(_shuffled(whole, request.seed), name=f"{name}{SHUFFLED}"),
        rows=len(found) + found.skipped,
        skipped=found.skipped,
        cut=cut,
        dropped=dropped,
        lengths=tuple(target.encode(attacked.texts).lengths),
    )


def _fitting(target: Target, data: Dataset, truncate: bool) -> tuple[Dataset, int, int]:
    """Return the texts that the model takes, how many were cut, and how many were dropped."""
    rows = target.tokenizer(list(data.texts))["input_ids"]
    long = sum(len(row) > target.max_length for row in rows)
    if long and not truncate:
        longest = max(map(len, rows))
        raise GradleakError(
            f"{long} of {len(rows)} texts of {data.name} are longer than the {target.max_length} tokens that "
            f"{target.name} takes (the longest has {longest}); give --truncate to cut them as training would"
        )
    texts = [
        shortened(target, text) if len(row) > target.max_length else text
        for text, row in zip(data.texts, rows, strict=True)
    ]
    kept = [number for number, row in enumerate(rows) if len(row) >= target.min_length]
    if not kept:
        raise GradleakError(f"no text of {data.name} is long enough for {target.name} to be trained on")
    labels = None if data.labels is None else tuple(data.labels[number] for number in kept)
    fitting = replace(data, texts=tuple(texts[number] for number in kept), labels=labels)
    return fitting, long, len(rows) - len(kept)


def shortened(target: Target, text: str) -> str:
    """Return the longest beginning of a text that the model takes, found by halving."""
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(target.tokenizer(text[:middle])["input_ids"]) <= target.max_length:
            low = middle
        else:
            high = middle - 1
    return text[:low].strip() or text[:low]


def _shuffled(data: Dataset, seed: int) -> Dataset:
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)).tolist()
    labels = None if data.labels is None else tuple(data.labels[number] for number in order)
    return replace(data, texts=tuple(data.texts[number] for number in order), labels=labels)
