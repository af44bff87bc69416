"""Read a batch under dropout: find the rows, group them into sentences, prove the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradleak.attacks.sieve.defended.feasible_set import count_sentences
from gradleak.attacks.sieve.dropout.deflation import without_sentences
from gradleak.attacks.sieve.dropout.proof import prove_by_first_layer, unexplained
from gradleak.attacks.sieve.dropout.row_search import RowSearch
from gradleak.attacks.sieve.dropout.rows import InputRows
from gradleak.attacks.sieve.dropout.sentence_clustering import cluster_rows, one_sentence
from gradleak.attacks.sieve.observed import ObservedUpdate, Sentence
from gradleak.leakage.labels import labels_from_parts
from gradleak.leakage.proof import Proof
from gradleak.leakage.row_space import CLEAN, Subspace, matrix_rank
from gradleak.targets import Target


@dataclass(frozen=True)
class DropoutReading:
    """What was read under dropout.

    Attributes:
        sentences: token ids of each sentence in order of position, once for each time that the model saw it.
        labels: the class of each sentence; None if not determined.
        missing: how many rows were not found.
        rate: the fraction of entries that were dropped.
        loss: the fraction of the gradient that the rows do not explain.
        proof: what the update proves about the sentences.
    """

    sentences: tuple[Sentence, ...]
    labels: list[int] | None
    missing: int
    rate: float
    loss: float
    proof: Proof


def read_with_dropout(observed: ObservedUpdate) -> DropoutReading:
    """Read a batch whose client had dropout switched on."""
    target, gradient, space = observed.target, observed.gradient, observed.space
    key = target.layers[0].key
    reads_keys = key in observed.inputs.maps  # not ALBERT, whose first map precedes the layer
    count = None
    if reads_keys and space.floor > CLEAN:
        count = count_sentences(target, gradient, observed.protocol, observed.deadline)
    elif reads_keys:  # the key gradients of each sentence sum to zero: one dimension less per sentence
        count = space.rank - matrix_rank(key.weight_in(gradient), space.floor)
    reader = RowReader(observed, count or None)
    reader.run()
    rows = reader.rows
    if not len(rows) or not rows.at(0):
        return DropoutReading((), None, space.rank, 0.0, 1.0, Proof())
    vectors = rows.vectors(observed.inputs)
    starts = len(rows.at(0))
    total = count or starts
    if total > 1 and reads_keys:
        clusters = cluster_rows(key.weight_in(gradient), vectors, rows.positions, total, space.floor)
    else:
        clusters = one_sentence(rows.positions)
    loss = max(unexplained(own, vectors) for own in observed.map_gradients)
    dropped = 1 - float(torch.stack(rows.masks).double().mean())
    groups = [group for group in clusters.sentences if group]
    sentences = tuple(_filled(target, rows, reader.search, group) for group in groups)
    proof = Proof(unexplained=loss)
    if count == starts:
        proof = prove_by_first_layer(observed, vectors, clusters, sentences, dropped, loss)
    labels = None
    if reads_keys and target.task == "classification" and not observed.deadline.passed:
        labels = labels_from_parts(target, gradient, vectors, groups, sentences)
    return DropoutReading(sentences, labels, max(0, space.rank - len(rows)), dropped, loss, proof)


class RowReader:
    """Finds all rows; while some are missing, removes complete sentences from the gradient and reads the remainder.

    Args:
        observed: the update; its progress callback is given the words found so far as one text, and the fraction of
            rows that is missing.
        sentences: the number of sentences; None if unknown.
    """

    def __init__(self, observed: ObservedUpdate, sentences: int | None) -> None:
        self.observed, self.sentences = observed, sentences
        self.removed = InputRows()
        self.search = self._search(observed.space, InputRows(), sentences)

    @property
    def rows(self) -> InputRows:
        """All rows found so far."""
        return self.removed.joined(self.search.rows)

    def run(self) -> None:
        """Search until all rows are found; more closely where a first look completed no further sentence."""
        closer = False
        while self.search.missing and not self.observed.deadline.passed:
            last = self.search
            last.run(closer=closer)
            if last.missing and self.sentences and len(self.rows):
                self._remove_sentences(self.sentences)
            if closer and self.search is last:
                break
            closer = self.search is last

    def _search(self, space: Subspace, rows: InputRows, sentences: int | None) -> RowSearch:
        return RowSearch(self.observed, space, sentences, rows, self._report)

    def _report(self, rows: InputRows) -> None:
        found = self.removed.joined(rows)
        if len(found):
            order = sorted(range(len(found)), key=lambda row: found.positions[row])
            words = torch.tensor([found.tokens[row] for row in order])
            self.observed.report([words], 1 - len(found) / self.observed.space.rank)

    def _remove_sentences(self, sentences: int) -> None:
        """Set the rows of complete sentences aside and continue with the others, in a smaller space."""
        target, rows, space = self.observed.target, self.rows, self.observed.space
        layer = target.layers[0]
        vectors = rows.vectors(self.observed.inputs)
        maps = [projection.weight_in(self.observed.gradient) for projection in (layer.query, layer.key, layer.value)]
        found = cluster_rows(maps[1], vectors, rows.positions, sentences, space.floor).sentences
        keys = vectors @ layer.key.weight_in(target.parameters).detach().double().T
        keys = keys.view(len(keys), int(target.config.num_attention_heads), -1)
        rest, complete = without_sentences(maps, vectors, keys, list(filter(self._ended, found)), space)
        if rest is None or rest.rank >= self.search.space.rank:
            return
        done = {row for sentence in complete for row in sentence}
        self.removed = rows.select(done)
        remaining = rows.select(set(range(len(rows))) - done)
        self.search = self._search(rest, remaining, sentences - len(complete))

    def _ended(self, sentence: Sequence[int]) -> bool:
        """Return whether a sentence has a row at each position up to an end token."""
        rows, ends = self.rows, self.observed.target.special_tokens[1][-1:]
        unbroken = [rows.positions[row] for row in sentence] == list(range(len(sentence)))
        return bool(sentence) and unbroken and rows.tokens[sentence[-1]] in ends


def _filled(target: Target, rows: InputRows, search: RowSearch, sentence: Sequence[int]) -> Sentence:
    """Return the tokens of a sentence, with a guess at each position for which no row was found."""
    before, after = target.special_tokens
    tokens = {rows.positions[row]: rows.tokens[row] for row in sentence}
    last = max(tokens)
    if after and tokens[last] != after[-1]:
        last = search.most_probable_end(last)
        tokens[last] = after[-1]
    for position in range(last):
        if position not in tokens:
            tokens[position] = before[position] if position < len(before) else search.most_probable(position)
    return tuple(tokens[position] for position in sorted(tokens))
