"""Judge whole sentences by all layers' rows, and edit them while the rows explain them better."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from gradleak.attacks.forest.encoders.pairs import FoundPairs, Frame, Sentence
from gradleak.attacks.forest.residual import Residual
from gradleak.attacks.forest.sites import InputSite
from gradleak.exchange import Deadline
from gradleak.search.neighbourhood import neighbour_orders
from gradleak.targets import Target
from gradleak.targets.hooks import captured_inputs

TOGETHER = {"cpu": 2048, "cuda": 32768}
"""Tokens that are computed at a time."""

CLIMBS, CHOICES = 4, 8
"""How many of the best starts are edited, and how many words are tried at each position then."""

SEED = 0.1
"""A pair is one to start from if it contributes at least this fraction of the largest contribution at its position."""

LIKELY = 0.02
"""A token may stand at a position if it contributes at least this fraction of the largest contribution there."""

ALIKE, REFINEMENTS = 0.5, 3
"""Cosine above which a pair counts as one of the sentence, and how often all others are compared with them."""

GAIN = 1e-6
"""Smaller gains of the score are rounding."""

SHORT = 2
"""Scores are means over tokens, with so many more that add nothing: short sentences fit by chance more easily."""


class SentenceJudge:
    """Scores sentences by how much of their inputs lies in the rows of every site, beside those that are fixed.

    The score is the log of the volume that a sentence's inputs span, less that which they span outside of the rows, a
    mean over sites and tokens: a right sentence reaches 3 and more, one put together from two others less.

    Args:
        target: an encoder.
        sites: the sites, in the order of a forward pass.
        residuals: makes the rows of a site anew.
        first: the first layer's site.
    """

    def __init__(
        self, target: Target, sites: Sequence[InputSite], residuals: Callable[[int], Residual], first: InputSite
    ) -> None:
        self.target, self.sites, self.first = target, list(sites), first
        self.residuals = [residuals(number) for number in range(len(sites))]

    def fix(self, sentences: Iterable[Sentence]) -> None:
        """Project the inputs of these sentences, and of no others, out of every site's rows."""
        self.residuals = [residual.fresh() for residual in self.residuals]
        for sentence in sentences:
            for residual, inputs in zip(self.residuals, self._inputs(torch.tensor([sentence])), strict=True):
                residual.pick_all(residual.weighted(inputs[0]))

    @property
    def left(self) -> list[float]:
        """The fraction of each site's rows that the fixed sentences do not explain."""
        return [residual.fraction for residual in self.residuals]

    def __call__(self, sentences: Sequence[Sentence]) -> Tensor:
        """Return the score of each sentence `[sentences]`."""
        scores = torch.zeros(len(sentences), dtype=torch.float64)
        most = TOGETHER.get(self.target.device.type, 2048)
        by_length: dict[int, list[int]] = {}
        for number, sentence in enumerate(sentences):
            by_length.setdefault(len(sentence), []).append(number)
        for length, numbers in by_length.items():
            for part in torch.split(torch.tensor(numbers), max(1, most // length)):
                ids = torch.tensor([sentences[number] for number in part.tolist()])
                scores[part] = self._scores(ids).cpu() / ((length + SHORT) * len(self.sites))
        return scores

    def _scores(self, ids: Tensor) -> Tensor:
        total = torch.zeros(len(ids), dtype=torch.float64, device=self.target.device)
        for residual, inputs in zip(self.residuals, self._inputs(ids), strict=True):
            total += volume_inside(residual, residual.weighted(inputs.double()))
        return total

    def _inputs(self, ids: Tensor) -> list[Tensor]:
        found = captured_inputs(self.target, ids.to(self.target.device), [site.path for site in self.sites])
        return [found[site.path] for site in self.sites]


def volume_inside(residual: Residual, vectors: Tensor) -> Tensor:
    """Return log det of the vectors' Gram matrix, less that of their parts outside the rows `[sets]`.

    Args:
        residual: the rows; what was picked does not count.
        vectors: sets of vectors `[sets, vectors, width]` in float64, weighted.
    """
    error = residual.noise.vectors**2 * vectors.square().sum(dim=-1)
    new = vectors - (vectors @ residual.picked.T) @ residual.picked
    inside = new @ residual.basis.T
    gram = new @ new.mT
    outside = gram - inside @ inside.mT
    return _log_det(gram, error) - _log_det(outside, error)


def _log_det(gram: Tensor, error: Tensor) -> Tensor:
    factor, failed = torch.linalg.cholesky_ex(gram + torch.diag_embed(error))
    found = 2 * factor.diagonal(dim1=-2, dim2=-1).clamp(min=1e-30).log().sum(dim=-1)
    if bool(failed.any()):  # rounding left it not quite positive
        values = torch.linalg.eigvalsh(gram[failed > 0] + torch.diag_embed(error[failed > 0]))
        found[failed > 0] = values.clamp(min=1e-30).log().sum(dim=-1)
    return found


class SentenceSearch:
    """Puts sentences together from pairs and edits them.

    Args:
        judge: scores sentences.
        pairs: the pairs of tokens and positions.
        special: ids before and after every text.
        deadline: when to stop.
    """

    def __init__(self, judge: SentenceJudge, pairs: FoundPairs, special: Frame, deadline: Deadline) -> None:
        self.judge, self.pairs, self.deadline = judge, pairs, deadline
        self.before, self.after = special
        frame = torch.tensor([*self.before, *self.after], device=pairs.tokens.device)
        self.words = (~torch.isin(pairs.tokens, frame)).nonzero().flatten()
        self.weights, self.alike = pairs.weights, pairs.likeness(_value_rows(judge))

    def best(self) -> tuple[Sentence, float]:
        """Return the best sentence that climbs from some starts reach, and its score."""
        starts = self.starts()
        if not starts:
            return (), 0.0
        scores = self.judge(starts)
        tried: dict[Sentence, float] = {}
        for number in scores.argsort(descending=True)[:CLIMBS].tolist():
            sentence, score = self.climb(starts[number], CHOICES)
            tried[sentence] = score
        return self.climb(max(tried, key=lambda sentence: tried[sentence]), len(self.words))

    def starts(self) -> list[Sentence]:
        """Return sentences of pairs that are alike, from every likely pair, of every possible length."""
        places = range(len(self.before), self.pairs.length)
        found: dict[Sentence, None] = {}
        for place in places:
            for word in self.words[self.weights[self.words, place] > SEED].tolist():
                whole = self._around(word, place)
                for length in self._lengths(place):
                    found[(*self.before, *whole[: length - len(self.before) - len(self.after)], *self.after)] = None
        return list(found)

    def _around(self, word: int, place: int) -> Sentence:
        """Return the word at each position that is most alike to a pair, and then to all that were found so."""
        length, likely = self.pairs.length, self.weights[self.words] > LIKELY
        seed = word * length + place
        alike = self.alike[seed]
        best = self.words[:1].expand(length)
        for _ in range(REFINEMENTS):
            cosines = alike.view(-1, length)[self.words]
            best = self.words[torch.where(likely, cosines, cosines - 2).argmax(dim=0)]
            best[place] = word
            chosen = best * length + torch.arange(length, device=best.device)
            members = chosen[len(self.before) :][alike[chosen[len(self.before) :]] > ALIKE]
            alike = self.alike[torch.cat([members, chosen[place : place + 1]])].mean(dim=0)
        return tuple(self.pairs.tokens[best].tolist()[len(self.before) :])

    def _lengths(self, place: int = 0) -> range:
        """Return the possible lengths of sentences that reach a position."""
        first = max(place + 1, len(self.before) + 1) + len(self.after)
        return range(first, self.pairs.length + 1)

    def climb(self, sentence: Sentence, choices: int) -> tuple[Sentence, float]:
        """Take the best edits until none brings a gain; return the sentence and its score.

        Args:
            sentence: the sentence to start from.
            choices: how many words are tried at a position.
        """
        score = float(self.judge([sentence])[0])
        while not self.deadline.passed:
            edits = self._edits(sentence, choices)
            scores = self.judge(edits)
            best = int(scores.argmax())
            if float(scores[best]) <= score + GAIN:
                better = self._reordered(sentence, score) if choices == len(self.words) else None
                if better is None:
                    break
                sentence, score = better
                continue
            several = _merged(sentence, edits, scores, score)
            together = self.judge(several)
            if len(several) and float(together.max()) > float(scores[best]):
                sentence, score = several[int(together.argmax())], float(together.max())
            else:
                sentence, score = edits[best], float(scores[best])
        return sentence, score

    def _reordered(self, sentence: Sentence, score: float) -> tuple[Sentence, float] | None:
        """Return the best sentence with two words exchanged or one moved, and its score; None if none is better."""
        free = torch.ones(len(sentence), dtype=torch.bool)
        free[: len(self.before)] = free[len(sentence) - len(self.after) :] = False
        orders = neighbour_orders(free)[1:].tolist()
        tried = list(dict.fromkeys(tuple(sentence[place] for place in order) for order in orders))
        scores = self.judge(tried) if tried else torch.zeros(1)
        best = int(scores.argmax())
        return (tried[best], float(scores[best])) if tried and float(scores[best]) > score + GAIN else None

    def _edits(self, sentence: Sentence, choices: int) -> list[Sentence]:
        """Return the sentence with one word replaced, and ended at other lengths."""
        found: dict[Sentence, None] = {}
        last = len(sentence) - len(self.after)
        for place in range(len(self.before), last):
            for token in self._likely(place, choices):
                found[(*sentence[:place], token, *sentence[place + 1 :])] = None
        bare = sentence[:last]
        for length in self._lengths():
            inner = length - len(self.after)
            while len(bare) < inner:
                bare = (*bare, self._likely(len(bare), 1)[0])
            found[(*bare[:inner], *self.after)] = None
            bare = sentence[:last]
        found.pop(sentence, None)
        return list(found)

    def _likely(self, place: int, choices: int) -> list[int]:
        own = self.weights[self.words, place]
        best = self.words[own.topk(min(choices, len(own))).indices]
        tokens: list[int] = self.pairs.tokens[best].tolist()
        return tokens


def _value_rows(judge: SentenceJudge) -> slice:
    """Return which of the first site's rows are those of the values; all if none are."""
    start = 0
    values = {layer.value.module for layer in judge.target.layers}
    for part in judge.first.maps:
        if part.path in values:
            return slice(start, start + len(part.rows))
        start += len(part.rows)
    return slice(None)


def _merged(sentence: Sentence, edits: Sequence[Sentence], scores: Tensor, score: float) -> list[Sentence]:
    """Return the sentence with the best two, four, … of the replacements that bring a gain, each at its own place."""
    best: dict[int, tuple[float, int]] = {}
    for edit, own in zip(edits, scores.tolist(), strict=True):
        places = [place for place, (one, other) in enumerate(zip(sentence, edit, strict=False)) if one != other]
        if len(edit) == len(sentence) and own > score + GAIN and (places[0] not in best or own > best[places[0]][0]):
            best[places[0]] = own, edit[places[0]]
    order = sorted(best, key=lambda place: -best[place][0])
    found = []
    count = 2
    while count <= len(order):
        changed = {place: best[place][1] for place in order[:count]}
        found.append(tuple(changed.get(place, token) for place, token in enumerate(sentence)))
        count *= 2
    return found
