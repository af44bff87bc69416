"""What an attacker finds out before it searches, where it was not told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.base import Victim
from gradleak.targets import Target

# A row of a gradient whose largest entry is below this share of the largest row's is rounding noise.
ROW_IS_ZERO = 1e-6


def single_label(target: Target, gradient: Mapping[str, Tensor]) -> int | None:
    """Return the class of a batch of one from the classifier's bias gradient, which is negative only there.

    The gradient of the bias is p − y: probability minus truth (iDLG, Zhao et al. 2020).
    """
    bias = gradient.get(f"{target.classifier}.bias")
    if bias is None or target.task != "classification" or int((bias < 0).sum()) != 1:
        return None
    return int(bias.argmin())


def used_rows(table: Tensor) -> Tensor:
    """Return the numbers of the rows of an embedding table's gradient that are not zero, in order.

    Only rows that were looked up get a gradient (Melis et al. 2019).
    """
    size = table.abs().amax(dim=1)
    return torch.nonzero(size > size.max() * ROW_IS_ZERO).flatten()


def observed_tokens(target: Target, gradient: Mapping[str, Tensor]) -> Tensor:
    """Return the ids of all tokens of the private texts, each once and in order, from the word embeddings' gradient.

    Special tokens that frame every text, and padding, are left out: where they stand is known. The unknown token stays
    in, because a text may hold it. (FET, section 4.1; EDR, section 4.1.)

    Args:
        target: the model, a classifier: where the output layer shares the table, every row has a gradient.
        gradient: gradients by name, that of the word embeddings among them.
    """
    (table,) = target.word_parameters
    ids = used_rows(gradient[table])
    before, after = target.special_tokens
    frame = torch.tensor([*before, *after, target.tokenizer.pad_token_id], device=ids.device)
    return ids[~torch.isin(ids, frame)]


def longest_length(target: Target, gradient: Mapping[str, Tensor]) -> int | None:
    """Return the number of tokens of the longest sequence from the position embeddings' gradient, if it was sent."""
    table = gradient.get(f"{target.family.position_embedding}.weight")
    if table is None:
        return None
    used = used_rows(table)
    if not len(used):
        return None
    last = int(used.max()) - target.family.position_offset(target.config)
    # A language model's last token predicts nothing, and leaves no gradient.
    return last + (2 if target.task == "causal-lm" else 1)


def lengths_to_try(target: Target, victim: Victim, most: int) -> tuple[list[list[int]], str | None]:
    """Return the lengths `[starts][sequences]` to start from, and a note where they were not told.

    LAMP (section 5): an adversary who does not know the lengths can run the attack for all of them.

    Args:
        target: the model.
        victim: the update under attack.
        most: the greatest length to try if nothing says how long the longest sequence is.
    """
    known = victim.knowledge
    if known.lengths is not None:
        return [list(known.lengths)], None
    sequences = known.sequences or 1
    seen = longest_length(target, victim.gradient)
    longest = known.longest or seen
    if longest is not None and sequences == 1:
        origin = "told" if known.longest else "read from the position embeddings' gradient"
        return [[longest]], f"length {longest}: {origin}"
    shortest = target.min_length
    greatest = max(shortest, min(longest or most, target.max_length))
    tried = [[length] * sequences for length in range(shortest, greatest + 1)]
    return tried, f"lengths {shortest} to {greatest} tried"


def known_labels(target: Target, victim: Victim) -> tuple[Sequence[int] | None, str | None]:
    """Return the classes as told or inferred, and a note where they were not told; None if they must be searched."""
    if target.task != "classification":
        return None, None
    if victim.knowledge.labels is not None:
        return victim.knowledge.labels, None
    if (victim.knowledge.sequences or 1) == 1:
        label = single_label(target, victim.gradient)
        if label is not None:
            return [label], f"label {label}: read from the classifier's bias gradient"
    return None, "labels searched together with the embeddings"
