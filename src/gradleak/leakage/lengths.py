"""The lengths of the private texts: from the position embeddings' gradient, or as a list of lengths to try."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gradleak.exchange import Victim
from gradleak.leakage.perturbation import looks_noisy
from gradleak.leakage.tokens import all_rows_changed, used_rows
from gradleak.targets import Target


def longest_length(target: Target, gradient: Mapping[str, Tensor]) -> int | None:
    """Return the number of tokens of the longest sequence from the position embeddings' gradient; None if unknown.

    Noise and weight decay change every row, and no row is informative then; noise shows in the key biases, weight decay
    in the word embeddings' rows.
    """
    table = gradient.get(f"{target.family.position_embedding}.weight")
    if table is None or looks_noisy(target, gradient) or all_rows_changed(target, gradient):
        return None
    used = used_rows(table)
    if not len(used):
        return None
    last = int(used.max()) - target.family.position_offset(target.config)
    # a language model's last token predicts nothing and has no gradient
    return last + (2 if target.task == "causal-lm" else 1)


def lengths_to_try(target: Target, victim: Victim, most: int) -> tuple[list[list[int]], str | None]:
    """Return the lengths `[starts][sequences]` to start from, and a note if they are not known.

    LAMP (section 5): an adversary who does not know the lengths can run the attack for all of them.

    Args:
        target: the model.
        victim: the update under attack.
        most: the greatest length to try if the longest sequence's length is unknown.
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
