"""Recompute classifier inputs, logits and gradients of candidate sequences, to compare them with an update.

Used by the closed forms of this room and by sieve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.matching import Candidates, Cosine, Matcher
from gradleak.simulation.training import Batch
from gradleak.simulation.training import gradient as simulated_gradient
from gradleak.targets import Target
from gradleak.targets.hooks import captured_calls


def random_texts(target: Target, count: int, words: int) -> Tensor:
    """Return texts of random words, special tokens included `[count, tokens]`; always the same for a target."""
    possible = sorted(set(range(len(target.word_embeddings))) - set(target.impossible_ids))
    drawn = torch.randint(len(possible), (count, words), generator=torch.Generator().manual_seed(0))
    before, after = (torch.tensor(part, dtype=torch.long).expand(count, -1) for part in target.special_tokens)
    return torch.cat([before, torch.tensor(possible)[drawn], after], dim=1).to(target.device)


@torch.no_grad()
def classifier_pass(target: Target, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the logits of sequences and the inputs of the output layer, both as the model computes them."""
    ids, mask = target.pad(sequences)
    with captured_calls(target, [target.classifier]) as calls:
        logits = target.logits(target.embed(ids), mask)
    return logits, calls[-1].inputs


def batch_gradient(
    target: Target,
    sequences: Sequence[Sequence[int]],
    labels: Sequence[int] | None,
    names: Sequence[str],
    precision: str = "fp32",
) -> dict[str, Tensor]:
    """Return the gradient that a client without dropout computes on a batch, by parameter name."""
    batch = target.pad(sequences)
    classes = batch.ids if target.task == "causal-lm" else torch.tensor(labels, device=target.device)
    with torch.enable_grad():
        return simulated_gradient(target, Batch(batch, classes), names, precision)


def cosine_to_update(
    target: Target,
    gradient: Mapping[str, Tensor],
    sequences: Sequence[Sequence[int]],
    labels: Tensor | None,
    names: Sequence[str] | None = None,
    *,
    kept_only: bool = False,
) -> float:
    """Return the mean cosine distance of a batch's gradient tensors from the update's: 0 for the same direction.

    Args:
        target: the model.
        gradient: the update's gradients by name.
        sequences: token ids of the batch.
        labels: classes or their probabilities; None for a language model.
        names: the tensors to compare; all by default.
        kept_only: compare only entries that pruning has left.
    """
    ids, mask = target.pad(sequences)
    batch = Candidates(ids[None, None], mask[None, None], ids[None, None] if labels is None else labels[None, None])
    distance = float(Matcher(target, [gradient], Cosine(kept_only=kept_only), names)(batch))
    return max(distance, 0.0)  # a cosine may round to a little more than 1
