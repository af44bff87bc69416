"""The tokens of the private texts, from the word embeddings' gradient (Melis et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.targets import Target

ROW_IS_ZERO = 1e-6
"""A row whose largest entry is below this fraction of the largest row's is rounding."""

ALL_ROWS = 0.9
"""No text has nearly all words: if more than this fraction of the word embeddings' rows changed, weight decay or noise
changed them."""

CLIFF = 10.0
"""The rows of a text's words are recognised among changed rows if the smallest is this many times the largest of the
others. Measured on `tiny`: 13 to 170 times for AdamW, 36 for noise of 1e-5, 3.5 for 1e-4; within the rows of a text,
or of noise, less than 2."""


def used_rows(table: Tensor) -> Tensor:
    """Return the indices of the non-zero rows of an embedding table's gradient, in order.

    Only rows that were looked up have a gradient (Melis et al. 2019).
    """
    size = table.abs().amax(dim=1)
    return torch.nonzero(size > size.max() * ROW_IS_ZERO).flatten()


def rows_above_cliff(table: Tensor) -> Tensor | None:
    """Return the indices of the rows that are far larger than most others, in order; None if there is no such gap."""
    size, rows = table.abs().amax(dim=1).sort(descending=True)
    upper = size[: len(size) // 2 + 1]
    if len(upper) < 2 or not bool(upper[0] > 0):
        return None
    gap, last = (upper[:-1] / upper[1:].clamp_min(ROW_IS_ZERO * float(upper[0]))).max(dim=0)
    return rows[: int(last) + 1].sort().values if float(gap) >= CLIFF else None


def all_rows_changed(target: Target, gradient: Mapping[str, Tensor]) -> bool:
    """Return whether nearly all rows of the word embeddings' gradient are non-zero, which no text causes."""
    (table,) = target.word_parameters
    if table not in gradient or target.task != "classification":  # a language model's output layer shares the table
        return False
    used = used_rows(gradient[table])
    if len(used) <= ALL_ROWS * len(gradient[table]):
        return False
    # a long text may have nearly all words of a small vocabulary, but never the ids that no text is tokenised into
    before, after = target.special_tokens
    framing = {*before, *after, target.pad_id, target.tokenizer.unk_token_id}
    never = set(target.impossible_ids) - framing
    return not never or len(never & set(used.tolist())) > ALL_ROWS * len(never)


def words_hidden(target: Target, gradient: Mapping[str, Tensor]) -> bool:
    """Return whether every row of the word embeddings' gradient changed and the words' rows are not recognisable."""
    (table,) = target.word_parameters
    return all_rows_changed(target, gradient) and rows_above_cliff(gradient[table]) is None


def require_words(name: str, target: Target, gradient: Mapping[str, Tensor]) -> None:
    """Raise a GradleakError if the word embeddings' gradient does not reveal the texts' words.

    Args:
        name: the attack that needs the words.
        target: the model.
        gradient: gradients, or any multiple of them, by name.
    """
    if words_hidden(target, gradient):
        raise GradleakError(
            f"{name} needs the words, and the word embeddings' gradient does not tell them apart: "
            "all rows changed, as AdamW or noise do; try --attack auto"
        )


def observed_tokens(target: Target, gradient: Mapping[str, Tensor]) -> Tensor:
    """Return the ids of all tokens of the private texts, each once and in order, from the word embeddings' gradient.

    Special tokens that frame every text, and padding, are left out: their positions are known. The unknown token is
    kept, because a text may contain it (FET, section 4.1; EDR, section 4.1). If weight decay or small noise changed
    all rows, the rows above the gap are returned; if there is no gap (see `require_words`), all rows.

    Args:
        target: the model, a classifier: if the output layer shares the table, every row has a gradient.
        gradient: gradients by name, that of the word embeddings included.
    """
    (table,) = target.word_parameters
    ids = used_rows(gradient[table])
    if all_rows_changed(target, gradient):
        recognised = rows_above_cliff(gradient[table])
        ids = ids if recognised is None else recognised
    before, after = target.special_tokens
    frame = torch.tensor([*before, *after, target.pad_id], device=ids.device)
    return ids[~torch.isin(ids, frame)]


def possible_words(target: Target, gradient: Mapping[str, Tensor]) -> Tensor:
    """Return the ids that may occur inside a text: those that the word embeddings' gradient reveals, if it was sent."""
    impossible = set(target.impossible_ids) - {target.tokenizer.unk_token_id}
    if target.word_parameters <= gradient.keys() and target.task == "classification":
        ids = observed_tokens(target, gradient)
        ids = ids[[int(i) not in impossible for i in ids]]
        if len(ids):  # a table of zeros reveals no words and rules none out
            return ids
    possible = [index for index in range(len(target.word_embeddings)) if index not in impossible]
    return torch.tensor(possible, device=target.device)
