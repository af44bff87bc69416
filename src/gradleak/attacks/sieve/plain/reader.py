"""Read a batch without dropout: find sentences, subtract their gradients, and read the remainder again.

Without dropout a token at a position gives the first maps the same input in every sentence, and pairs of tokens and
positions are linearly dependent. The row space still reveals exactly which tokens and which positions occur. With
ê_t = γ ⊙ E_t and p̂_p = γ ⊙ P_p the gradient of a first map is

    dW = Σ_t a_t ê_tᵀ + Σ_p b_p p̂_pᵀ + c βᵀ,     a_t = Σ δ / σ over the occurrences of t,  b_p the same at p,

and since these vectors are independent, a_t and b_p can be solved for. Then
1. a token that occurs once contributes its a_t to the b_p of its position: a regression of b_p on all a_t finds
   positions (`skeletons.py`);
2. attention in a first layer is broad, so the value gradients of one sentence's tokens are alike: the cosine of a_t
   finds tokens of one sentence (`skeletons.py`);
3. the resulting skeletons of sentences are completed by replacing tokens, one at a time, until the sentence passes the
   test of its contexts (`sentence_search.py`, `attention_test.py`), which needs nothing but the sentence itself; with
   causal attention, sentences are grown prefix by prefix instead (`prefixes.py`);
4. its gradient is subtracted, with the label and the weight 1 / B that lower the rank (`remainder.py`), and the
   remainder is read again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradleak.attacks.sieve.observed import ObservedUpdate, Sentence
from gradleak.attacks.sieve.plain.remainder import Remainder
from gradleak.attacks.sieve.plain.sentence_search import find_sentences

DONE = 1e-5
"""The batch is read if the remainder is below this fraction of the gradient."""


@dataclass
class PlainReading:
    """Sentences read without dropout, and their classes as far as they were subtracted one by one."""

    sentences: list[Sentence] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)


def read_plain(observed: ObservedUpdate, longest: int, starts: int) -> PlainReading:
    """Read a batch whose client had dropout switched off.

    Args:
        observed: the update.
        longest: the greatest number of tokens of a sentence.
        starts: how many skeletons are completed at most in one round.
    """
    target = observed.target
    remainder = Remainder.of(observed)
    whole = remainder.norm
    reading = PlainReading()
    left = 1.0
    while left > DONE:
        found = find_sentences(observed, remainder, longest, starts)
        if "causal-lm" in target.family.tasks:  # found all at once, and a language model's lack their last tokens
            reading.sentences = found
            break
        before = len(reading.sentences)
        for sentence in found:
            label = remainder.subtract(target, sentence)
            if label is not None:
                reading.sentences.append(sentence)
                reading.labels.append(label)
        left = remainder.norm / whole
        if len(reading.sentences) == before or observed.deadline.passed:
            break
    return reading
