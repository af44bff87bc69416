"""The tokens of the private texts, from the word embeddings' gradient (Melis et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.targets import Target

# A row of a gradient whose largest entry is below this share of the largest row's is rounding noise.
ROW_IS_ZERO = 1e-6
# No text has nearly all words: where so many rows of the word embeddings have changed, weight decay or noise did it.
ALL_ROWS = 0.9
# Rows of words stand out from that if the smallest is so many times the largest of the others. Measured on `tiny`: 13
# to 170 times for AdamW, 36 for noise of 1e-5, 3.5 for 1e-4; within the rows of a text, or of noise, less than 2.
CLIFF = 10.0


def used_rows(table: Tensor) -> Tensor:
    """Return the numbers of the rows of an embedding table's gradient that are not zero, in order.

    Only rows that were looked up get a gradient (Melis et al. 2019).
    """
    size = table.abs().amax(dim=1)
    return torch.nonzero(size > size.max() * ROW_IS_ZERO).flatten()


def rows_above_cliff(table: Tensor) -> Tensor | None:
    """Return the numbers of the rows that are far larger than most others, in order; None if there is no such gap."""
    size, rows = table.abs().amax(dim=1).sort(descending=True)
    upper = size[: len(size) // 2 + 1]
    if len(upper) < 2 or not bool(upper[0] > 0):
        return None
    gap, last = (upper[:-1] / upper[1:].clamp_min(ROW_IS_ZERO * float(upper[0]))).max(dim=0)
    return rows[: int(last) + 1].sort().values if float(gap) >= CLIFF else None


def all_rows_changed(target: Target, gradient: Mapping[str, Tensor]) -> bool:
    """Whether the word embeddings' gradient was sent and nearly all of its rows are non-zero, as no text makes them."""
    (table,) = target.word_parameters
    if table not in gradient or target.task != "classification":  # a language model's output shares the table
        return False
    used = used_rows(gradient[table])
    if len(used) <= ALL_ROWS * len(gradient[table]):
        return False
    # A long text may hold nearly all words of a small vocabulary, but never these.
    before, after = target.special_tokens
    framing = {*before, *after, target.tokenizer.pad_token_id, target.tokenizer.unk_token_id}
    never = set(target.impossible_ids) - framing
    return not never or len(never & set(used.tolist())) > ALL_ROWS * len(never)


def require_words(name: str, target: Target, gradient: Mapping[str, Tensor]) -> None:
    """Raise a GradleakError if the word embeddings' gradient does not show which words the texts have.

    Args:
        name: the attack that needs the words.
        target: the model.
        gradient: gradients, or any multiple of them, by name.
    """
    (table,) = target.word_parameters
    if all_rows_changed(target, gradient) and rows_above_cliff(gradient[table]) is None:
        raise GradleakError(
            f"{name} needs the words, and the word embeddings' gradient does not tell them apart: "
            "all rows changed, as AdamW or noise do; try --attack auto"
        )


def observed_tokens(target: Target, gradient: Mapping[str, Tensor]) -> Tensor:
    """Return the ids of all tokens of the private texts, each once and in order, from the word embeddings' gradient.

    Special tokens that frame every text, and padding, are left out: where they stand is known. The unknown token stays
    in, because a text may hold it. (FET, section 4.1; EDR, section 4.1.) Where weight decay or small noise changed all
    rows, those that stand out are taken; if none do (see `require_words`), all rows.

    Args:
        target: the model, a classifier: where the output layer shares the table, every row has a gradient.
        gradient: gradients by name, that of the word embeddings among them.
    """
    (table,) = target.word_parameters
    ids = used_rows(gradient[table])
    if all_rows_changed(target, gradient):
        standing_out = rows_above_cliff(gradient[table])
        ids = ids if standing_out is None else standing_out
    before, after = target.special_tokens
    frame = torch.tensor([*before, *after, target.tokenizer.pad_token_id], device=ids.device)
    return ids[~torch.isin(ids, frame)]
