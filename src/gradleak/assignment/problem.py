"""Assignment problems: which of the known tokens belongs to which place. Used by FET, EDR and Mosaic.

An update with embedding gradients shows the tokens of a batch; what is left to be found is their order. A place is a
position of one of the sequences that is not taken by a special token. A solution names a token for each place, by its
index in the problem's vocabulary.
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

LABELLINGS = 4_096  # the most labellings of a batch that are tried
SAMPLES = 32  # random solutions by which labellings are compared
LABELLING = 0.25  # the share of the time left that this may take


@dataclass(frozen=True)
class AssignmentProblem:
    """Places for tokens, and the tokens that belong there.

    Where the lengths of a batch are not known, all sequences have as many places as the longest. Padding is then one
    more token, which `decode` moves to the end of its sequence. One further place belongs to no sequence: it takes the
    padding if all sequences are equally long.

    Attributes:
        target: the model.
        slots: the special tokens and the places, for one victim and one start.
        vocabulary: ids of the tokens, each of which occurs at least once `[kinds]`, on the CPU.
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
        """How many places there are."""
        return int(self.slots.free.sum()) + int(self.target.pad_id in self.vocabulary)

    @property
    def sequences(self) -> int:
        """The batch size."""
        return self.slots.ids.shape[2]

    @property
    def length(self) -> int:
        """How long the longest sequence is, special tokens included."""
        return self.slots.ids.shape[-1]

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw random solutions `[count, places]` that use every token at least once."""
        more = torch.randint(self.kinds, (count, self.places - self.kinds), generator=generator)
        solutions = torch.cat([torch.arange(self.kinds).expand(count, -1), more], dim=1)
        return solutions.gather(1, torch.rand(solutions.shape, generator=generator).argsort(dim=1))

    def decode(self, solutions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the token ids and the mask `[count, sequences, tokens]` of solutions `[count, places]`."""
        frame, free = self.slots.ids[0, 0], self.slots.free[0, 0]
        ids = frame.repeat(len(solutions), 1, 1)
        ids[:, free] = self.vocabulary[solutions][:, : int(free.sum())].to(ids.device)
        empty = ids == self.target.pad_id
        ids = ids.gather(2, empty.to(torch.uint8).argsort(dim=2, stable=True))  # padding goes to the end
        return ids, ids != self.target.pad_id

    def candidates(self, solutions: Tensor, labels: Tensor) -> Candidates:
        """Return solutions `[count, places]` as candidates, with labels `[sequences]` or `[count, sequences]`."""
        ids, mask = self.decode(solutions)
        classes = labels.to(ids.device).expand(len(ids), -1)
        return Candidates(ids[None], mask[None], classes[None])

    def sentences(self, solution: Tensor) -> list[list[int]]:
        """Return the token ids of one solution's sequences."""
        ids, mask = self.decode(solution[None])
        return trimmed(ids[0], mask[0])

    def texts(self, solution: Tensor) -> tuple[str, ...]:
        """Return one solution as text."""
        return tuple(self.target.decode(ids) for ids in self.sentences(solution))


def assignment_problems(
    target: Target, victim: Victim, lengths_tried: int
) -> tuple[list[AssignmentProblem], list[str]]:
    """Return the problems that an update leaves, one for each length to try, and notes on what had to be inferred.

    FET, section 4.1: where there are no position embeddings to read the length from, the number of unique tokens is the
    reference from which different lengths are tested.

    Args:
        target: the model.
        victim: the update under attack.
        lengths_tried: the most lengths to try.
    """
    known = victim.knowledge
    tokens = observed_tokens(target, victim.gradient)
    if not len(tokens):
        raise GradleakError("no token can be read from the word embeddings' gradient: it is zero")
    sequences = known.sequences or 1
    notes = [] if known.sequences else ["batch size not told: 1 assumed"]
    # Of unknown labels only the number of each class is inferred, not its sequence: that needs sequences which are
    # interchangeable, all with the same number of places.
    if known.lengths is not None and (known.labels is not None or sequences == 1):
        return [_problem(target, victim.gradient, tokens, known.lengths)], notes
    lengths, note = _longest_lengths(target, victim, len(tokens), lengths_tried)
    padded = sequences > 1
    return [_problem(target, victim.gradient, tokens, [n] * sequences, padded) for n in lengths], [*notes, note]


def padded_problem(
    target: Target, gradient: Mapping[str, Tensor], tokens: Tensor, lengths: Sequence[int]
) -> AssignmentProblem:
    """Return a problem of these tokens, with padding as one more token.

    Args:
        target: the model.
        gradient: gradients by name, that of the word embeddings among them.
        tokens: ids of the observed tokens.
        lengths: how long each sequence is at most, special tokens included.
    """
    return _problem(target, gradient, tokens, lengths, padded=True)


def likeliest_labels(
    target: Target, victim: Victim, problem: AssignmentProblem, deadline: Deadline | None = None
) -> tuple[Tensor, list[str]]:
    """Return the classes of the sequences: as known, as inferred, or those with which random solutions match best.

    The classifier's gradient depends on which tokens there are more than on their order, and a wrong class turns its
    sign.
    """
    told, note = known_labels(target, victim, any_order=True)
    if told is not None:
        return torch.tensor(told), [note] if note else []
    ways = list(
        itertools.islice(
            itertools.combinations_with_replacement(range(target.num_labels), problem.sequences), LABELLINGS + 1
        )
    )
    if len(ways) > LABELLINGS:
        raise GradleakError(f"there are more than {LABELLINGS} ways to label this batch; the labels must be told")
    labellings = torch.tensor(ways)
    solutions = problem.draw(SAMPLES, victim.generator)
    deadline = deadline or Deadline()
    matcher = ClassifierMatcher(target, [victim.gradient], L2()).until(deadline.sooner(LABELLING * deadline.left))
    candidates = problem.candidates(solutions.repeat(len(ways), 1), labellings.repeat_interleave(SAMPLES, dim=0))
    distances = matcher(candidates)
    labels = labellings[distances.view(len(ways), SAMPLES).median(dim=1).values.argmin()]
    return labels, [f"labels {', '.join(map(str, labels.tolist()))}: those that fit random texts best"]


def _longest_lengths(target: Target, victim: Victim, kinds: int, lengths_tried: int) -> tuple[Sequence[int], str]:
    """Return the possible lengths of the longest sequence, special tokens included, and a note on their origin."""
    known = victim.knowledge
    read = longest_length(target, victim.gradient)
    told = known.longest or (max(known.lengths) if known.lengths else None)
    if told is not None or read is not None:
        origin = "told" if told else "read from the position embeddings' gradient"
        return [told or read or 0], f"length {told or read}: {origin}"
    specials = sum(map(len, target.special_tokens))
    shortest = min(max(-(-kinds // (known.sequences or 1)) + specials, target.min_length), target.max_length)
    last = min(shortest + lengths_tried - 1, target.max_length)
    return range(shortest, last + 1), f"lengths {shortest} to {last} tried"


def _problem(
    target: Target, gradient: Mapping[str, Tensor], tokens: Tensor, lengths: Sequence[int], padded: bool = False
) -> AssignmentProblem:
    slots = Slots.of(target, [[list(lengths)]])
    room = int(slots.free.sum())
    if len(tokens) > room:  # noise gives every row a gradient; the tokens of the text have the largest
        (table,) = target.word_parameters
        size = gradient[table][tokens].norm(dim=1)
        tokens = tokens[size.topk(room).indices].sort().values
    vocabulary = tokens.cpu()
    if padded:
        vocabulary = torch.cat([vocabulary, torch.tensor([target.pad_id])])
    return AssignmentProblem(target, slots, vocabulary)
