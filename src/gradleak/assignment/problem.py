"""Puzzles: known tokens to be put into known places.

What an update with embedding gradients leaves to be found: which of the tokens that were seen stands where. A solution
names a token for each place by its number in the puzzle's vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.exchange import Deadline, Victim
from gradleak.leakage.labels import known_labels
from gradleak.leakage.lengths import longest_length
from gradleak.leakage.tokens import observed_tokens
from gradleak.matching import L2, Candidates
from gradleak.matching.classifier_matcher import ClassifierMatcher
from gradleak.optimisation.slots import Slots, trimmed
from gradleak.targets import Target

LABELLINGS = 4_096  # ways to label a batch that are tried at most
SAMPLES = 32  # random solutions that tell them apart
LABELLING = 0.25  # the share of the time left that this may take


@dataclass(frozen=True)
class Puzzle:
    """Places for tokens, and the tokens that stand in them.

    A batch whose lengths are not known has places for sequences that are all as long as the longest. Padding is then
    one more token, which a decoded sequence has at its end; one place stands outside of all sequences, and takes the
    padding if all are equally long.

    Attributes:
        target: the model.
        slots: the frame, for one victim and one start.
        vocabulary: ids of the tokens, each of which stands somewhere `[kinds]`, on the CPU.
    """

    target: Target
    slots: Slots
    vocabulary: Tensor

    @property
    def kinds(self) -> int:
        """How many different tokens there are."""
        return len(self.vocabulary)

    @property
    def places(self) -> int:
        """How many tokens there are."""
        return int(self.slots.free.sum()) + int(self.target.tokenizer.pad_token_id in self.vocabulary)

    @property
    def sequences(self) -> int:
        """The batch size."""
        return self.slots.ids.shape[2]

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw solutions `[count, places]`: every token once, what is left at random, in a random order."""
        more = torch.randint(self.kinds, (count, self.places - self.kinds), generator=generator)
        solutions = torch.cat([torch.arange(self.kinds).expand(count, -1), more], dim=1)
        return solutions.gather(1, torch.rand(solutions.shape, generator=generator).argsort(dim=1))

    def decoded(self, solutions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the token ids and the mask `[count, sequences, tokens]` of solutions `[count, places]`."""
        frame, free = self.slots.ids[0, 0], self.slots.free[0, 0]
        ids = frame.repeat(len(solutions), 1, 1)
        ids[:, free] = self.vocabulary[solutions][:, : int(free.sum())].to(ids.device)
        empty = ids == self.target.tokenizer.pad_token_id
        ids = ids.gather(2, empty.to(torch.uint8).argsort(dim=2, stable=True))  # what is empty goes to the end
        return ids, ids != self.target.tokenizer.pad_token_id

    def candidates(self, solutions: Tensor, labels: Tensor) -> Candidates:
        """Return solutions `[count, places]` as candidates, with labels `[sequences]` or `[count, sequences]`."""
        ids, mask = self.decoded(solutions)
        classes = labels.to(ids.device).expand(len(ids), -1)
        return Candidates(ids[None], mask[None], classes[None])

    def sentences(self, solution: Tensor) -> list[list[int]]:
        """Return the token ids of one solution's sequences."""
        ids, mask = self.decoded(solution[None])
        return trimmed(ids[0], mask[0])

    def texts(self, solution: Tensor) -> tuple[str, ...]:
        """Return one solution as text."""
        return tuple(self.target.decode(ids) for ids in self.sentences(solution))


def puzzles(target: Target, victim: Victim, tried: int) -> tuple[list[Puzzle], list[str]]:
    """Return the puzzles that an update leaves, one for each length to try, and notes on what was not told.

    FET, section 4.1: the number of unique tokens gives a reference to test different lengths where there are no
    position embeddings to read it from.

    Args:
        target: the model.
        victim: the update under attack.
        tried: how many lengths to try at most.
    """
    known = victim.knowledge
    tokens = observed_tokens(target, victim.gradient)
    if not len(tokens):
        raise GradleakError("no token can be read from the word embeddings' gradient: it is zero")
    sequences = known.sequences or 1
    notes = [] if known.sequences else ["batch size not told: 1 assumed"]
    # Sequences of equal places are interchangeable, so that of unknown labels only their number counts.
    if known.lengths is not None and (known.labels is not None or sequences == 1):
        return [_puzzle(target, victim.gradient, tokens, known.lengths)], notes
    lengths, note = _longest(target, victim, len(tokens), tried)
    return [_puzzle(target, victim.gradient, tokens, [n] * sequences, sequences > 1) for n in lengths], [*notes, note]


def padded_puzzle(target: Target, gradient: Mapping[str, Tensor], tokens: Tensor, lengths: Sequence[int]) -> Puzzle:
    """Return a puzzle of these tokens, with padding as one more.

    Args:
        target: the model.
        gradient: gradients by name, that of the word embeddings among them.
        tokens: ids of the tokens that were seen.
        lengths: how long the sequences are at most, special tokens included.
    """
    return _puzzle(target, gradient, tokens, lengths, padded=True)


def likeliest_labels(
    target: Target, victim: Victim, puzzle: Puzzle, deadline: Deadline | None = None
) -> tuple[Tensor, list[str]]:
    """Return the classes of the sequences as told, as inferred, or as random solutions fit them best.

    Which tokens there are, more than their order, decides on the classifier's gradient; a wrong class turns its sign.
    """
    told, note = known_labels(target, victim, any_order=True)
    if told is not None:
        return torch.tensor(told), [note] if note else []
    ways = list(
        itertools.islice(
            itertools.combinations_with_replacement(range(target.num_labels), puzzle.sequences), LABELLINGS + 1
        )
    )
    if len(ways) > LABELLINGS:
        raise GradleakError(f"there are more than {LABELLINGS} ways to label this batch; the labels must be told")
    labellings = torch.tensor(ways)
    solutions = puzzle.draw(SAMPLES, victim.generator)
    deadline = deadline or Deadline()
    matcher = ClassifierMatcher(target, [victim.gradient], L2()).until(deadline.sooner(LABELLING * deadline.left))
    distances = matcher(puzzle.candidates(solutions.repeat(len(ways), 1), labellings.repeat_interleave(SAMPLES, dim=0)))
    labels = labellings[distances.view(len(ways), SAMPLES).median(dim=1).values.argmin()]
    return labels, [f"labels {', '.join(map(str, labels.tolist()))}: those that fit random texts best"]


def _longest(target: Target, victim: Victim, kinds: int, tried: int) -> tuple[Sequence[int], str]:
    """Return how long the longest sequence may be, special tokens included."""
    known = victim.knowledge
    read = longest_length(target, victim.gradient)
    told = known.longest or (max(known.lengths) if known.lengths else None)
    if told is not None or read is not None:
        origin = "told" if told else "read from the position embeddings' gradient"
        return [told or read or 0], f"length {told or read}: {origin}"
    specials = sum(map(len, target.special_tokens))
    shortest = min(max(-(-kinds // (known.sequences or 1)) + specials, target.min_length), target.max_length)
    last = min(shortest + tried - 1, target.max_length)
    return range(shortest, last + 1), f"lengths {shortest} to {last} tried"


def _puzzle(
    target: Target, gradient: Mapping[str, Tensor], tokens: Tensor, lengths: Sequence[int], padded: bool = False
) -> Puzzle:
    slots = Slots.of(target, [[list(lengths)]])
    room = int(slots.free.sum())
    if len(tokens) > room:  # noise gives every row a gradient: those of the text have the largest
        (table,) = target.word_parameters
        size = gradient[table][tokens].norm(dim=1)
        tokens = tokens[size.topk(room).indices].sort().values
    vocabulary = tokens.cpu()
    if padded:
        vocabulary = torch.cat([vocabulary, torch.tensor([target.tokenizer.pad_token_id])])
    return Puzzle(target, slots, vocabulary)
