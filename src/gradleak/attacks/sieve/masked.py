"""Reading a batch under dropout: rows, sentences, proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.sieve.consistency import contradictions
from gradleak.attacks.sieve.decoding import accepted
from gradleak.attacks.sieve.inputs import Inputs
from gradleak.attacks.sieve.removal import without_sentences
from gradleak.attacks.sieve.rows import Rows, RowSearch
from gradleak.attacks.sieve.seen import Teller
from gradleak.attacks.sieve.sentences import Assignment, assign
from gradleak.attacks.sieve.subspace import Subspace, rank
from gradleak.attacks.sieve.verify import Proof, gradient_of, surplus, unexplained
from gradleak.exchange import Deadline
from gradleak.targets import Target

CLEARLY_APART = 1e-2
"""A row's distance from its sentence, as a share of that to the next one, in a proof; rounding gives 1e-6."""

EXPLAINED = 1e-5
"""Share of the gradient that may stay unexplained in a proof: rounding gives 1e-7, a missing row 1e-2."""


@dataclass(frozen=True)
class MaskedReading:
    """What was read under dropout.

    Attributes:
        sentences: token ids of each sentence, in order of position; one for each time that the model saw it.
        labels: the class of each sentence; None if rows do not tell.
        missing: how many rows were not found.
        rate: share of entries that were dropped.
        loss: share of the gradient that the rows do not explain.
        proof: what the update proves of the sentences.
    """

    sentences: tuple[tuple[int, ...], ...]
    labels: list[int] | None
    missing: int
    rate: float
    loss: float
    proof: Proof


def read_masked(
    target: Target,
    inputs: Inputs,
    gradient: Mapping[str, Tensor],
    space: Subspace,
    words: Tensor,
    tell: Teller | None = None,
    deadline: Deadline | None = None,
) -> MaskedReading:
    """Read a batch whose client had dropout switched on; `tell` hears of the words found so far."""
    key = target.layers[0].key
    shares_keys = key in inputs.maps
    count = space.rank - rank(key.weight_in(gradient), space.floor) if shares_keys else None
    reader = RowReader(target, inputs, gradient, space, words, count or None, tell, deadline)
    reader.run()
    rows = reader.rows
    if not len(rows) or not rows.at(0):
        return MaskedReading((), None, space.rank, 0.0, 1.0, Proof())
    vectors = rows.vectors(inputs)
    starts = len(rows.at(0))
    total = count or starts
    if total > 1 and shares_keys:
        found = assign(key.weight_in(gradient), vectors, rows.positions, total, space.floor)
    else:
        found = in_one_sentence(rows)
    loss = max(unexplained(projection.weight_in(gradient), vectors) for projection in inputs.maps)
    dropped = 1 - float(torch.stack(rows.masks).double().mean())
    sentences = tuple(_filled(target, rows, reader.search, sentence) for sentence in found.sentences if sentence)
    spare = surplus(space, dropped, len(words), accepted(space))
    decided = (
        target.task == "classification"  # a language model's last tokens leave no row
        and len(rows) == space.rank
        and loss < max(EXPLAINED, 2 * space.width**0.5 * space.floor)
        and found.complete
        and found.spread < CLEARLY_APART
        and count == starts
        and all(map(target_fits(target), sentences))
    )
    proof = Proof(unexplained=loss)
    if decided and spare is not None:
        proof = _proof(spare, contradictions(target, gradient, vectors, sentences, space.floor), len(rows), loss)
    labels = None
    if shares_keys and target.task == "classification" and not (deadline is not None and deadline.passed):
        labels = labels_by_parts(target, gradient, vectors, list(filter(None, found.sentences)), sentences)
    return MaskedReading(sentences, labels, max(0, space.rank - len(rows)), dropped, loss, proof)


def _proof(spare: int, against: Sequence[str], tokens: int, loss: float) -> Proof:
    """Return the proof by the first layer's maps; what contradicts it elsewhere in the update takes it back."""
    if against:
        more = f", and {len(against) - 1} more" if len(against) > 1 else ""
        line = (
            f"not confirmed: the first layer shows these texts, the rest of the update contradicts ({against[0]}{more})"
        )
        return Proof(evidence=(line,), unexplained=loss)
    line = f"proven by the first layer's maps: {tokens} tokens, {spare:,} equations more than unknowns"
    return Proof(True, evidence=(line,), unexplained=loss)


def labels_by_parts(
    target: Target,
    gradient: Mapping[str, Tensor],
    vectors: Tensor,
    numbers: Sequence[Sequence[int]],
    sentences: Sequence[tuple[int, ...]],
) -> list[int]:
    """Return the class of each sentence by its own part of the first value map's gradient.

    The rows split dW = Σ δ xᵀ into the sentences' parts. Dropout changes what a sentence's part is, but not much of its
    direction: the class whose gradient without dropout is most alike is the one.

    Args:
        target: the model.
        gradient: what was sent.
        vectors: what the map was fed `[rows, width]`.
        numbers: the rows of each sentence.
        sentences: the token ids of each sentence.
    """
    value = target.layers[0].value
    each = value.weight_in(gradient).double() @ torch.linalg.pinv(vectors)  # [outputs, rows]
    labels = []
    for own, sentence in zip(numbers, sentences, strict=True):
        part = each[:, list(own)] @ vectors[list(own)]
        likeness = []
        for label in range(target.num_labels):
            guess = value.weight_in(gradient_of(target, [sentence], [label], [value.weight])).double()
            likeness.append(float((guess * part).sum() / guess.norm().clamp(min=1e-300)))
        labels.append(likeness.index(max(likeness)))
    return labels


class RowReader:
    """Looks for all rows; while some are missing, takes whole sentences out of the gradient and looks at the rest.

    Args:
        target: the model.
        inputs: the tables of x(t, p).
        gradient: what was sent.
        space: the row space of the first maps' gradient.
        words: ids that may stand inside a text.
        sentences: how many there are; None if nothing tells.
        tell: called with the words found so far, as one text, and the share of rows that is missing.
        deadline: when to end with the rows found so far.
    """

    def __init__(
        self,
        target: Target,
        inputs: Inputs,
        gradient: Mapping[str, Tensor],
        space: Subspace,
        words: Tensor,
        sentences: int | None,
        tell: Teller | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self.target, self.inputs, self.gradient = target, inputs, gradient
        self.space, self.words, self.sentences, self.tell = space, words, sentences, tell
        self.deadline = deadline or Deadline()
        self.settled = Rows()
        self.search = self._search(space, Rows(), sentences)

    @property
    def rows(self) -> Rows:
        """All rows found so far."""
        return self.settled.with_rows(self.search.rows)

    def run(self) -> None:
        """Look until all rows are found; closer where a first look let no further sentence be taken out."""
        closer = False
        while self.search.lacking and not self.deadline.passed:
            last = self.search
            last.run(closer=closer)
            if last.lacking and self.sentences and len(self.rows):
                self._take_out(self.sentences)
            if closer and self.search is last:
                break
            closer = self.search is last

    def _search(self, space: Subspace, rows: Rows, sentences: int | None) -> RowSearch:
        specials, longest = self.target.special_tokens, self.target.max_length
        return RowSearch(
            self.inputs,
            space,
            specials,
            self.words,
            sentences,
            longest,
            rows,
            self.space,
            self._report,
            self.deadline,
        )

    def _report(self, rows: Rows) -> None:
        """Let a listener know, who may have had enough: where rows are many, a search takes minutes."""
        found = self.settled.with_rows(rows)
        if self.tell is not None and len(found):
            order = sorted(range(len(found)), key=lambda row: found.positions[row])
            self.tell([torch.tensor([found.tokens[row] for row in order])], 1 - len(found) / self.space.rank)

    def _take_out(self, sentences: int) -> None:
        """Set the rows of whole sentences aside and go on among the others, in a smaller space."""
        layer, rows = self.target.layers[0], self.rows
        vectors = rows.vectors(self.inputs)
        maps = [projection.weight_in(self.gradient) for projection in (layer.query, layer.key, layer.value)]
        found = assign(maps[1], vectors, rows.positions, sentences, self.space.floor).sentences
        keys = vectors @ layer.key.weight_in(self.target.parameters).detach().double().T
        keys = keys.view(len(keys), int(self.target.config.num_attention_heads), -1)
        whole_ones = list(filter(self._ended, found))
        rest, whole = without_sentences(maps, vectors, keys, whole_ones, self.space.rank, self.space.error)
        if rest is None or rest.rank >= self.search.space.rank:
            return
        done = {row for sentence in whole for row in sentence}
        self.settled = rows.only(done)
        self.search = self._search(rest, rows.only(set(range(len(rows))) - done), sentences - len(whole))

    def _ended(self, sentence: Sequence[int]) -> bool:
        """Return whether a sentence has a row at each position up to an end."""
        rows, ends = self.rows, self.target.special_tokens[1][-1:]
        unbroken = [rows.positions[row] for row in sentence] == list(range(len(sentence)))
        return bool(sentence) and unbroken and rows.tokens[sentence[-1]] in ends


def _filled(target: Target, rows: Rows, search: RowSearch, sentence: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of a sentence, with a guess at each place that no row was found for."""
    before, after = target.special_tokens
    tokens = {rows.positions[row]: rows.tokens[row] for row in sentence}
    last = max(tokens)
    if after and tokens[last] != after[-1]:
        last = search.likely_end(last)
        tokens[last] = after[-1]
    for position in range(last):
        if position not in tokens:
            tokens[position] = before[position] if position < len(before) else search.likely(position)
    return tuple(tokens[position] for position in sorted(tokens))


def in_one_sentence(rows: Rows) -> Assignment:
    """Return all rows as one sentence: one row for each position."""
    first = {rows.positions[row]: row for row in reversed(range(len(rows)))}
    chosen = tuple(first[position] for position in sorted(first))
    complete = len(chosen) == len(rows) and sorted(first) == list(range(len(rows)))
    return Assignment((chosen,), 0.0, complete)


def target_fits(target: Target) -> Callable[[tuple[int, ...]], bool]:
    """Return a test of whether a sentence begins and ends as the tokenizer has it, and nowhere else."""
    before, after = target.special_tokens

    def fits(sentence: tuple[int, ...]) -> bool:
        inner = sentence[len(before) : len(sentence) - len(after)]
        return sentence == (*before, *inner, *after) and bool(inner) and not set(inner) & {*before, *after}

    return fits
