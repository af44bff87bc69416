"""What an attacker finds out before it searches, where it was not told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.base import Victim
from gradleak.attacks.evidence import looks_noisy, noise_level
from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge
from gradleak.targets import Target

# A row of a gradient whose largest entry is below this share of the largest row's is rounding noise.
ROW_IS_ZERO = 1e-6
# No text has nearly all words: where so many rows of the word embeddings have changed, weight decay or noise did it.
ALL_ROWS = 0.9
# Rows of words stand out from that if the smallest is so many times the largest of the others. Measured on `tiny`: 13
# to 170 times for AdamW, 36 for noise of 1e-5, 3.5 for 1e-4; within the rows of a text, or of noise, less than 2.
CLIFF = 10.0
# Random texts that show what a classifier predicts whatever it reads, and how many words each has.
NOISE_TEXTS = (32, 10)
# Defenses that change how long a gradient is, which nothing in the update shows.
CLIPPING = ("clip", "dpsgd")


def told_clipped(known: Knowledge) -> bool:
    """Whether the attacker is told that the gradient was clipped."""
    return any(defense.startswith(CLIPPING) for defense in known.defenses or ())


def single_label(target: Target, gradient: Mapping[str, Tensor]) -> int | None:
    """Return the class of a batch of one from the classifier's bias gradient, which is negative only there.

    The gradient of the bias is p − y: probability minus truth (iDLG, Zhao et al. 2020).
    """
    bias = gradient.get(f"{target.classifier}.bias")
    if bias is None or target.task != "classification" or int((bias < 0).sum()) != 1:
        return None
    return int(bias.argmin())


def class_counts(target: Target, gradient: Mapping[str, Tensor], sequences: int) -> list[int] | None:
    """Return how many sequences of a batch have each class, from the classifier's bias gradient.

    It is the mean of p − y over the batch: the classes' shares in what the model predicts, less their shares in the
    truth. A model that is about to be trained predicts much the same for any words; one that has learnt to tell them
    apart does not, and then it is not known (None).

    Args:
        target: the model, a classifier.
        gradient: gradients by name; not clipped, which would draw all shares to the predicted ones.
        sequences: how many there are.
    """
    bias = gradient.get(f"{target.classifier}.bias")
    if bias is None or bool((bias == 0).any()):  # pruned or masked
        return None
    predicted = _predictions_of_noise(target)
    counts = sequences * (predicted.mean(dim=0) - bias.to(predicted))
    # Each sequence's p differs from the mean, and so does noise from none; sums of them differ by so much.
    noise = sequences * (noise_level(target, gradient) or 0.0)
    spread = (sequences * predicted.var(dim=0).max() + noise**2).sqrt()
    whole = counts.round()
    # In a large batch one wrong label is better than none known.
    most = max(0.5, sequences / 8)
    certain = 3 * float(spread) < most and 2 * float((counts - whole).abs().max()) < most
    found = [int(count) for count in whole.tolist()]
    return found if certain and sum(found) == sequences and min(found) >= 0 else None


@torch.no_grad()
def _predictions_of_noise(target: Target) -> Tensor:
    """Return the probabilities `[texts, classes]` that a classifier gives to random words."""
    possible = sorted(set(range(len(target.word_embeddings))) - set(target.impossible_ids))
    drawn = torch.randint(len(possible), NOISE_TEXTS, generator=torch.Generator().manual_seed(0))
    before, after = (torch.tensor(part, dtype=torch.long).expand(len(drawn), -1) for part in target.special_tokens)
    ids = torch.cat([before, torch.tensor(possible)[drawn], after], dim=1).to(target.device)
    logits = target.family.logits(target.model, target.embed(ids), torch.ones_like(ids, dtype=torch.bool), target.task)
    return logits.double().softmax(dim=-1)


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


def longest_length(target: Target, gradient: Mapping[str, Tensor]) -> int | None:
    """Return the number of tokens of the longest sequence from the position embeddings' gradient, if it was sent.

    Noise stands in every row: then none says anything. Weight decay does, too, which the words' rows show.
    """
    table = gradient.get(f"{target.family.position_embedding}.weight")
    if table is None or looks_noisy(target, gradient) or all_rows_changed(target, gradient):
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


def known_labels(target: Target, victim: Victim, *, any_order: bool = False) -> tuple[Sequence[int] | None, str | None]:
    """Return the classes as told or inferred, and a note where they were not told; None if they must be searched.

    Args:
        target: the model.
        victim: the update under attack.
        any_order: whether a batch's sequences may stand in any order. How many there are of each class is enough then,
            unless lengths that differ tell the sequences apart.
    """
    known = victim.knowledge
    if target.task != "classification":
        return None, None
    if known.labels is not None:
        return known.labels, None
    if (known.sequences or 1) == 1:
        label = single_label(target, victim.gradient)
        if label is not None:
            return [label], f"label {label}: read from the classifier's bias gradient"
    elif any_order and not told_clipped(known):
        counts = class_counts(target, victim.gradient, known.sequences or 1) or []
        labels = [label for label, count in enumerate(counts) for _ in range(count)]
        if labels and (len(set(labels)) == 1 or len(set(known.lengths or ())) <= 1):
            return labels, f"labels {', '.join(map(str, labels))}: read from the classifier's bias gradient"
    return None, "labels searched together with the embeddings"
