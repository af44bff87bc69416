"""The last stage where noise hides the words of the first layer: gradient matching, and a prior to propose words.

The gradient as a whole still tells every sentence from every other (`likelihood.py`); what is missing are sentences to
compare. Three sources propose words. Embeddings that go down the distance from nowhere, in a frame that is wide enough,
come to stand near the words of the sentence, at wrong places and some of them several times; going down from a sentence
that is nearly right, they leave its wrong words for better ones. And a language model says what may follow what stands
already, which finds the small words that leave hardly a trace. A climb (`climbing.py`) puts them in order; as soon as a
sentence leaves nothing but noise to explain, the search is over. What the update leaves open the prior decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from gradleak.attacks.sieve.batches import Batch
from gradleak.attacks.sieve.climbing import Climb
from gradleak.attacks.sieve.drafts import Change, Draft
from gradleak.attacks.sieve.likelihood import Likelihood, deviation_of, label_of
from gradleak.attacks.sieve.seen import Seen
from gradleak.optimisation.descent import Descent, descend
from gradleak.optimisation.guess import Guess, random_guess
from gradleak.optimisation.slots import Slots
from gradleak.priors import Prior, SharedVocabulary

FRAME = 20
"""Tokens that embeddings are searched for from nowhere: too many do no harm."""

FROM_NOWHERE = Descent(steps=80, lr=0.01, linear=True)
FROM_HERE = Descent(steps=20, lr=0.01, linear=True)

NEAR = 8
"""How many words near to each embedding are tried: at all places, or at its own if that was a word's."""

FOLLOWING = 5
"""How many words that the prior expects to follow are tried at each place."""

LOOKS = 6
"""How often embeddings are let down from a sentence that no change makes better."""

TRIED = 5000
"""How many sentences are compared with the update at most."""


def read_matched(seen: Seen, read: Batch | None, prior: Prior | None, length: int | None = None) -> Batch:
    """Read the sentence of a noisy update; what was read of it already stays where it leaves nothing but noise.

    Args:
        seen: the update.
        read: what was read so far, which may be nearly right; None to start from nothing.
        prior: proposes words, and decides between sentences that the update does not tell apart.
        length: the number of tokens, if it is known.
    """
    target = seen.target
    start = read.sentences[0] if read else None
    label = label_of(target, seen.gradient, start or [*target.special_tokens[0], *target.special_tokens[1]])
    likelihood = Likelihood(target, seen.gradient, deviation_of(seen), label, seen.deadline)
    if read and start and likelihood.explained(start):
        return read
    sentence = _Search(seen, likelihood, prior, length).run(start)
    return Batch([sentence], [label], likelihood.distance(sentence))


class _Search:
    """A search for one sentence."""

    def __init__(self, seen: Seen, likelihood: Likelihood, prior: Prior | None, length: int | None) -> None:
        self.seen, self.target, self.likelihood, self.prior, self.length = seen, seen.target, likelihood, prior, length
        before, after = self.target.special_tokens
        self._frame = (list(before), list(after))
        longest = seen.longest - len(before) - len(after)
        self.climb = Climb(self._judged, self._following, longest, resize=length is None, deadline=seen.deadline)

    def run(self, start: Sequence[int] | None) -> list[int]:
        """Climb from a start, and look around wherever no change makes the sentence better."""
        before, after = map(len, self._frame)
        draft = Draft.of(start[before : len(start) - after] if start else ())
        self.climb.learn(draft.tokens)
        for look in range(LOOKS):
            if look and self.seen.deadline.passed:
                break
            if look == (1 if start else 0):
                draft = self._from_nowhere(draft)
            else:
                self.climb.consider(self._near(draft))
            draft, _ = self.climb.top(draft, TRIED - self.climb.tried)
            if self.climb.tried >= TRIED or self.likelihood.explained(self._whole(draft.tokens)):
                break
        return self._decided([self._whole(leader) for leader in self.climb.leaders])

    def _decided(self, sentences: list[list[int]]) -> list[int]:
        """Return the likeliest of sentences, what the prior says of them included."""
        return sentences[int(self.likelihood.posterior(sentences, self.prior).argmax())]

    def _whole(self, tokens: Sequence[int]) -> list[int]:
        before, after = self._frame
        return [*before, *tokens, *after]

    def _judged(self, drafts: Sequence[Draft]) -> Tensor:
        sentences = [self._whole(draft.tokens) for draft in drafts]
        values = self.likelihood(sentences)
        best = sentences[int(values.argmax())]
        self.seen.told([torch.tensor(best, device=self.target.device)], self.likelihood.distance(best))
        return values

    def _following(self, draft: Draft) -> list[list[int]]:
        """Return the words that the prior expects most at each place of a draft, and behind its last."""
        if not isinstance(self.prior, SharedVocabulary):
            return [[] for _ in range(len(draft.tokens) + 1)]
        ids = torch.tensor([[*self._frame[0], *draft.tokens]], device=self.target.device)
        with torch.no_grad():
            expected = self.prior.model(input_ids=ids, use_cache=False).logits[0, len(self._frame[0]) - 1 :]
        possible = torch.full_like(expected, -inf)
        possible[:, self.seen.words] = expected[:, self.seen.words]
        return possible.topk(min(FOLLOWING, len(self.seen.words)), dim=1).indices.tolist()

    def _from_nowhere(self, draft: Draft) -> Draft:
        """Learn the words that embeddings come near to which begin as noise; they are the draft if there is none yet.

        A draft whose length may change grows word by word instead.
        """
        slots = Slots.of(self.target, [[[self.length or min(FRAME, self.seen.longest)]]])
        scale = float(self.target.word_embeddings.norm(dim=1).mean()) / self.target.word_embeddings.shape[1] ** 0.5
        labels = torch.full_like(slots.ids[..., 0], self.likelihood.label)
        generator = torch.Generator().manual_seed(0)
        near = self._descended(random_guess(self.target, slots, labels, [generator], scale), FROM_NOWHERE)
        self.climb.learn(near.flatten().tolist())
        return Draft.of(near[:, 0].tolist()) if self.length is not None and not draft.tokens else draft

    def _near(self, draft: Draft) -> list[Change]:
        """Return the replacements of a draft's words by those that their embeddings come near to."""
        sentence = torch.tensor(self._whole(draft.tokens), device=self.target.device)
        slots = Slots.of(self.target, [[[len(sentence)]]])
        labels = torch.full_like(slots.ids[..., 0], self.likelihood.label)
        losses = torch.full_like(labels[..., 0], torch.inf, dtype=torch.float64)
        guess = Guess(slots, self.target.embed(sentence)[None, None, None].clone(), labels, losses)
        near = self._descended(guess, FROM_HERE).tolist()
        words = zip(draft.names, draft.tokens, near, strict=True)
        return [Change("replace", name, token) for name, there, row in words for token in row if token != there]

    def _descended(self, guess: Guess, descent: Descent) -> Tensor:
        """Return the words near to where embeddings come to stand, at each place that is free `[places, words]`."""
        guess = descend(self.target, self.likelihood.standing, guess, descent)
        near = guess.slots.nearest(self.target, guess.embeddings, NEAR)
        return near[guess.slots.free]
