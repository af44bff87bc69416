"""A learner: one inverter under training, with its defenses, its reduction and its optimiser."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn import functional

from gradleak.defenses import Defense, defend_each, examples_needed
from gradleak.errors import GradleakError, unknown_name
from gradleak.exchange import Origin
from gradleak.federation import Client, Embeddings
from gradleak.inversion.examples import Chunk, Examples
from gradleak.inversion.probe import choose_rows, informativeness
from gradleak.inversion.streams import Shape, Stream, random_stream
from gradleak.inverters.features import Hashed, Reduction
from gradleak.inverters.network import Card, Inverter, Output, Reduced
from gradleak.targets import Target

RATES = (1e-3, 1e-4, 1e-5)
"""The learning rates that the paper chooses from, for each defense (section 4.2)."""
MOST_SEQUENCES = 4


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an inverter is trained; the paper's values (section 4.2) are in `PAPER`.

    Attributes:
        tokens: the most tokens of a sentence, special ones included.
        shortest: the fewest; the same where text is cut into pieces of one length, as the paper does.
        sequences: sentences in a batch; of several, the order is not asked for.
        embeddings: which embedding gradients the clients send.
        dropout: whether the clients train with dropout.
        defenses: what is done to their updates, in order; the inverter learns from gradients after it.
        reduction: `hash` (the paper's) or `keep` (the most informative parameters).
        share: features for each entry of the gradient, at most.
        output: `vocabulary` (the paper's) or `words` (the target's frozen word embeddings).
        hidden: sizes of the hidden layers.
        direct: let the features reach the output by a linear map as well.
        lr: learning rate of Adam.
        decay: let it fall to zero in a straight line over all epochs.
        batch: examples in a step.
        epochs: how often the auxiliary text is gone through, at most.
        patience: stop when held-out accuracy has not risen for so many epochs; 0 to go to the end.
        chunk: examples whose gradients are made at once.
        probe: examples that the choice of `keep` is measured on.
        seed: seed of everything random.
    """

    tokens: int = 16
    shortest: int = 16
    sequences: int = 1
    embeddings: Embeddings = "frozen"
    dropout: bool = False
    defenses: tuple[Defense, ...] = ()
    reduction: Reduced = "keep"
    share: float = 0.1
    output: Output = "words"
    hidden: tuple[int, ...] = (600, 1000)
    direct: bool = True
    lr: float = 1e-3
    decay: bool = True
    batch: int = 64
    epochs: int = 20
    patience: int = 2
    chunk: int = 512
    probe: int = 1_024
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, kind in (("reduction", self.reduction, Reduced), ("output", self.output, Output)):
            if value not in get_args(kind):
                raise unknown_name(name, value, get_args(kind))
        if not 0 < self.share <= 1 or not self.lr > 0 or min(self.batch, self.epochs, self.chunk, *self.hidden) < 1:
            raise GradleakError(
                "share must be above 0 and at most 1, lr above 0, and batch, epochs and layers at least 1"
            )
        if not 1 <= self.sequences <= MOST_SEQUENCES:
            raise GradleakError(f"an inverter takes batches of 1 to {MOST_SEQUENCES} sentences, not {self.sequences}")
        if examples_needed(self.defenses) and self.sequences > 1:
            raise GradleakError(f"{self.defenses[0].name} is learnt for batches of one sentence only")

    @property
    def shape(self) -> Shape:
        """How long sentences are."""
        return Shape(self.tokens, self.shortest)

    def client_options(self) -> dict[str, Any]:
        """Return what `Examples` must know of the clients."""
        return {"sequences": self.sequences, "dropout": self.dropout, "seed": self.seed}

    def sent(self, target: Target) -> list[str]:
        """Return the parameters whose gradients the clients send."""
        return Client(target, embeddings=self.embeddings).sent_parameters


PAPER = Recipe(
    embeddings="words-frozen", reduction="hash", share=0.1, output="vocabulary", direct=False, decay=False, batch=64
)
"""LTI as published; the learning rate is one of `RATES`."""


class Learner:
    """Learns from chunks of examples, step by step.

    Args:
        target: the model.
        recipe: how.
        inverter: what learns.
        steps: how many there will be, for the decay of the learning rate.
    """

    def __init__(self, target: Target, recipe: Recipe, inverter: Inverter, steps: int) -> None:
        self.target, self.recipe, self.inverter, self.steps, self.done = target, recipe, inverter, steps, 0
        on_gpu = target.device.type == "cuda"
        self.optimizer = torch.optim.Adam(inverter.parameters(), lr=recipe.lr, fused=on_gpu)

    @classmethod
    def fresh(cls, target: Target, recipe: Recipe, stream: Stream, steps: int) -> Learner:
        """Return a learner that has learnt nothing yet: its reduction is chosen, its features are calibrated.

        Args:
            target: the model.
            recipe: how.
            stream: the text it will learn from.
            steps: how many steps there will be.
        """
        probe = Examples(target, stream, recipe.sent(target), **recipe.client_options())
        reduction = _reduction(target, recipe, probe)
        card = Card(
            origin=Origin.of(target),
            parameters=reduction.names,
            sequences=recipe.sequences,
            tokens=recipe.tokens,
            shortest=recipe.shortest,
            embeddings=recipe.embeddings,
            dropout=recipe.dropout,
            defenses=tuple(map(str, recipe.defenses)),
            pseudo=stream.pseudo,
            data=stream.words,
            reduction=recipe.reduction,
            share=recipe.share,
            output=recipe.output,
            hidden=recipe.hidden,
            direct=recipe.direct,
            seed=recipe.seed,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            learner = cls(target, recipe, Inverter(card, reduction, target), steps)
        learner.inverter.calibrate(learner.features(probe.make(-1, recipe.chunk), -1))
        return learner

    @property
    def names(self) -> list[str]:
        """The parameters whose gradients it needs: those it reads, and with some defenses all."""
        if all(defense.by_tensor for defense in self.recipe.defenses):
            return list(self.inverter.reduction.names)
        return self.recipe.sent(self.target)

    def features(self, chunk: Chunk, number: int) -> Tensor:
        """Return what it reads of a chunk `[examples, features]`; defenses draw from chunk `number`'s own stream."""
        gradients = {name: chunk.gradients[name] for name in self._names_in(chunk)}
        if self.recipe.defenses:
            stream = random_stream(self.target.device, self.recipe.seed, "defenses", number)
            gradients = defend_each(gradients, self.recipe.defenses, stream)
        return self.inverter.reduction(gradients)

    def _names_in(self, chunk: Chunk) -> list[str]:
        """Return the names of `names`, in the chunk's order."""
        wanted = set(self.names)
        return [name for name in chunk.gradients if name in wanted]

    def learn(self, features: Tensor, ids: Tensor) -> Tensor:
        """Take steps through a chunk and return their mean loss, without waiting for the device."""
        losses = []
        for start in range(0, len(features), self.recipe.batch):
            part = slice(start, start + self.recipe.batch)
            for group in self.optimizer.param_groups:
                group["lr"] = self._rate()
            with fast_matrices(self.target.device):
                loss = matched_loss(self.inverter(features[part]), ids[part])
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            self.optimizer.step()
            self.done += 1
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    @torch.no_grad()
    def accuracy(self, features: Tensor, ids: Tensor, counted: Tensor) -> float:
        """Return the per cent of counted tokens `[examples, sequences, tokens]` that it gets right."""
        right = total = 0
        for start in range(0, len(features), self.recipe.chunk):
            part = slice(start, start + self.recipe.chunk)
            with fast_matrices(self.target.device):
                logits = self.inverter(features[part])
            order = best_orders(logits, ids[part])
            found = take_order(logits.argmax(dim=-1), order)
            right += int(((found == ids[part]) & counted[part]).sum())
            total += int(counted[part].sum())
        return 100.0 * right / max(1, total)

    def finished(self, samples: int, accuracy: float) -> None:
        """Write on the card how far it has come."""
        self.inverter.card = replace(self.inverter.card, samples=samples, accuracy=accuracy)

    def _rate(self) -> float:
        return self.recipe.lr * max(0.0, 1 - self.done / self.steps) if self.recipe.decay else self.recipe.lr


def matched_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the mean cross-entropy; which of several sentences an answer is held against, the best order decides.

    Args:
        logits: `[examples, sequences, tokens, vocabulary]`.
        ids: `[examples, sequences, tokens]`.
    """
    if ids.shape[1] > 1:
        ids = take_order(ids, best_orders(logits.detach(), ids).argsort(dim=1))
    return functional.cross_entropy(logits.flatten(0, 2), ids.flatten())


def best_orders(logits: Tensor, ids: Tensor) -> Tensor:
    """Return which answer belongs to each sentence `[examples, sequences]`, so that all together are likeliest."""
    examples, sequences, _ = ids.shape
    if sequences == 1:
        return torch.zeros(examples, 1, dtype=torch.long, device=ids.device)
    chances = logits.log_softmax(dim=-1)
    each = [chances.gather(-1, ids[:, s, None, :, None].expand(-1, sequences, -1, 1)) for s in range(sequences)]
    likelihood = torch.stack([chance.sum(dim=(2, 3)) for chance in each], dim=1)  # [examples, sentences, answers]
    orders = torch.tensor(list(itertools.permutations(range(sequences))), device=ids.device)  # [orders, sequences]
    every = torch.arange(sequences, device=ids.device)
    return orders[likelihood[:, every, orders].sum(dim=2).argmax(dim=1)]


def take_order(rows: Tensor, order: Tensor) -> Tensor:
    """Return rows `[examples, sequences, tokens]` in another order of their sequences `[examples, sequences]`."""
    return rows.gather(1, order[:, :, None].expand(-1, -1, rows.shape[2]))


def countable(target: Target, ids: Tensor, mask: Tensor) -> Tensor:
    """Return which tokens are worth finding: not padding, and not the special ones whose places are known."""
    frame = torch.tensor([*sum(target.special_tokens, ()), target.tokenizer.pad_token_id], device=ids.device)
    return mask & ~torch.isin(ids, frame)


@contextmanager
def fast_matrices(device: torch.device) -> Iterator[None]:
    """On a GPU let matrix products run in bfloat16: an inverter learns as well, several times faster."""
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        yield


def _reduction(target: Target, recipe: Recipe, probe: Examples) -> Reduction:
    """Return the hash, or what a probe on gradients under the defenses chooses."""
    sizes = {name: target.parameters[name].numel() for name in probe.names}
    if recipe.reduction == "hash":
        return Hashed(sizes, recipe.share, recipe.seed)
    found = informativeness(target, _defended(target, recipe, probe))
    kept = choose_rows(found, int(recipe.share * sum(sizes.values())))
    if kept is None:
        raise GradleakError(
            f"a share of {recipe.share:g} of the gradient is not one row of any parameter; give a larger one"
        )
    return kept


def _defended(target: Target, recipe: Recipe, probe: Examples) -> Iterator[tuple[Chunk, dict[str, Tensor]]]:
    """Yield the probe's chunks, numbered backwards from -1, with their gradients as they are sent."""
    for number in range(-1, -1 - max(2, math.ceil(recipe.probe / recipe.chunk)), -1):
        chunk = probe.make(number, recipe.chunk)
        stream = random_stream(target.device, recipe.seed, "defenses", number)
        yield chunk, defend_each(chunk.gradients, recipe.defenses, stream)
