"""Random cases of fuzz.py: batches of texts, and updates made of them in every way that `KINDS` names."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from gradleak.defenses import parse_defense
from gradleak.exchange import Update
from gradleak.federation import Client, FedAvg, sum_updates
from gradleak.simulation.training import step_batches
from gradleak.targets import Target, Task, load_target
from gradleak.targets.adapters import Lora
from small_decoder import NAME as SMALL_LLAMA
from small_decoder import small_decoder

SURE = 60.0
"""What the classifier is multiplied with to be sure of its classes."""

Batch = list[tuple[str, int]]


@cache
def target_of(
    model: str, *, sure: bool = False, head: int = 0, task: Task = "classification", lora: str | None = None
) -> Target:
    """Load a model once in each process; `head` is the seed of its classifier, which may be sure of itself."""
    adapters = None if lora is None else Lora.parse(lora)
    small = model == SMALL_LLAMA
    name = str(small_decoder()) if small else model
    target = load_target(name, 2, head, task=task, device="cpu", lora=adapters, random_weights=small)
    if sure and task == "classification":
        with torch.no_grad():
            target.parameters[target.classifier_weight].mul_(SURE)
    return target


class Case:
    """One update, and all that went into it.

    Args:
        model: name of the model.
        texts: sentences to draw from.
        number: of the case.
        kinds: kinds of updates to draw from.
        options: `task` and `lora` of the target, if they are not those of a classifier without adapters.
    """

    def __init__(self, model: str, texts: list[str], number: int, kinds: Sequence[str], **options: Any) -> None:  # noqa: ANN401
        self.draw, self.number = random.Random(number), number
        self.kind = self.draw.choice(kinds)
        self.target_of = partial(target_of, model, **options)
        self.target = self.target_of(sure=self.kind == "confident")
        self.how = ""
        self.passes = 1
        self.dropout = self.draw.random() < 0.5
        self.embeddings: Any = self.draw.choice(["frozen", "frozen", "frozen", "words-frozen", "trained"])
        if self.target.adapter is not None:
            self.embeddings = "frozen"
        self._texts = texts
        self.batches: list[Batch] = []

    def update(self) -> Update:
        """Make the update as the case's kind has it."""
        return KINDS[self.kind][1](self)

    def batch(self, most: int = 8) -> Batch:
        """Draw a batch that is trained on."""
        size = self.draw.choice([size for size in (1, 1, 2, 3, 4, 6, 8) if size <= most])
        batch = [(self._text(), self.draw.randrange(2)) for _ in range(size)]
        if self.draw.random() < 0.2:
            batch.append(self.draw.choice(batch))
        self.batches.append(batch)
        return batch

    def trained(self) -> list[tuple[list[int], int]]:
        """Return the token ids of each text, and how often the model saw it."""
        times = Counter(text for batch in self.batches for text, _ in batch)
        seen: Counter[tuple[int, ...]] = Counter()
        for text, number in times.items():
            seen[self._ids(text)] += number * self.passes
        return [(list(ids), number) for ids, number in seen.items()]

    def labelled(self) -> list[tuple[tuple[int, ...], int]]:
        """Return the token ids of each text with its label."""
        return [(self._ids(text), label) for batch in self.batches for text, label in batch]

    # --- one gradient, or several of them, without its protocol -------------------------------------------------------

    def honest(self) -> Update:
        """One gradient."""
        return self._bare(self.batch())

    def scaled(self) -> Update:
        """The same times a factor."""
        return _sum([self._bare(self.batch())], self.draw.choice([0.5, 0.1, 0.37, 3.0]))

    def several_passes(self) -> Update:
        """The mean of two or three dropout passes over a batch."""
        self.dropout, self.passes = True, self.draw.choice([2, 3])
        batch = self.batch(3)
        return _sum([self._bare(batch, seed) for seed in range(self.passes)], 1 / self.passes)

    def steps(self) -> Update:
        """Local steps of plain SGD, of which the attacker is told rate and number."""
        batch = self.batch(4)
        steps, lr = self.draw.choice([1, 2, 4]), self.draw.choice([1e-4, 1e-2, 1.0, 10.0])
        self.how = f"{steps} steps, lr {lr:g}"
        return self._bare_steps(batch, FedAvg(steps=steps, lr=lr, batch=self.draw.choice([None, 1])))

    def sum_or_mean(self) -> Update:
        """The sum or mean of two or three clients' gradients."""
        clients = [self._bare(self.batch(3), seed) for seed in range(self.draw.choice([2, 3]))]
        return _sum(clients, self.draw.choice([1.0, 1 / len(clients)]))

    def difference(self) -> Update:
        """One client's gradient minus another's."""
        first, second = self._bare(self.batch(3), 0), self._bare(self.batch(3), 1)
        return _sum([first, _sum([second], -1.0)], 1.0)

    def other_head(self) -> Update:
        """A gradient computed with another classifier than the attacker is given."""
        return self._bare(self.batch(4), target=self.target_of(head=1))

    def rounded(self) -> Update:
        """A gradient cast to half precision."""
        update = self._bare(self.batch())
        dtype = self.draw.choice([torch.bfloat16, torch.float16])
        return update.with_tensors({name: tensor.to(dtype).float() for name, tensor in update.tensors.items()})

    def altered(self) -> Update:
        """A gradient some of whose tensors, or all but the first layer's maps, are replaced."""
        update = self._bare(self.batch())
        layer = self.target.layers[0]
        maps = {name for part in (layer.query, layer.key, layer.value) for name in (part.weight, part.bias)}
        maps |= {name for module in self.target.adapters if module.layer == 0 for name in (module.a, module.b)}
        rest = [name for name in update.tensors if name not in maps]
        rest = rest or list(update.tensors)  # adapters of a single layer
        few = self.draw.random() >= 0.5
        chosen = set(self.draw.sample(rest, min(len(rest), self.draw.choice([1, 2, 5]))) if few else rest)
        way = self.draw.choice(["other text", "noise", "zero", "pruned", "scaled"])
        self.how = f"{way}, {len(chosen)} of {len(update.tensors)} tensors"
        other = None
        if way == "other text":
            other = self._bare([(self._text(), 0) for _ in self.batches[0]], 7)
        factor = self.draw.choice([1.01, 0.9, 2.0])
        generator = torch.Generator().manual_seed(self.number)

        def change(name: str, tensor: Tensor) -> Tensor:
            if other is not None:
                return other.tensors[name]
            if way == "noise":
                return tensor.std(correction=0) * torch.randn(tensor.shape, generator=generator)
            if way == "zero":
                return torch.zeros_like(tensor)
            return factor * tensor if way == "scaled" else tensor * (tensor.abs() > tensor.abs().mean())

        return update.with_tensors({n: change(n, t) if n in chosen else t for n, t in update.tensors.items()})

    # --- the options of docs/clients.md, with the protocol that an update carries -------------------------------------

    def autocast(self) -> Update:
        """A gradient computed in mixed precision."""
        return self._sent(self.batch(), precision=self._one_of("precision", ["bf16", "bf16", "fp16"]))

    def sent(self) -> Update:
        """A gradient sent in a smaller number format."""
        return self._sent(self.batch(), send=self._one_of("send", ["fp16", "bf16", "int8", "int8-tensor"]))

    def local_sgd(self) -> Update:
        """Several steps or epochs of SGD."""
        batch = self.batch()
        return self._sent(batch, fedavg=self._local(batch, "sgd", [1e-4, 1e-3, 1e-2, 1e-1]))

    def local_adamw(self) -> Update:
        """One to eight steps of AdamW."""
        batch = self.batch()
        return self._sent(batch, fedavg=self._local(batch, "adamw", [1e-5, 5e-5, 5e-5, 1e-3]))

    def clients(self) -> Update:
        """The sum of two to four clients' gradients, as secure aggregation shows it."""
        return self._summed({})

    def noise(self) -> Update:
        """A gradient with Gaussian noise."""
        update = self._sent(self.batch(4))
        defense = parse_defense(f"noise:{self._one_of('noise', [1e-6, 1e-5, 1e-4, 5e-4])}")
        return defense.apply(update, torch.Generator().manual_seed(self.number))

    def combined(self) -> Update:
        """Several options at once: precision, number format, local steps, clients."""
        options: dict[str, Any] = {}
        if self.draw.random() < 0.5:
            options["precision"] = self._one_of("precision", ["bf16"])
        if self.draw.random() < 0.5 or not options:
            options["send"] = self._one_of("send", ["fp16", "bf16", "int8"])
        if self.draw.random() < 0.5:
            return self._summed(options)
        batch = self.batch(4)
        optimizer = self._one_of("optimizer", ["sgd", "adamw"])
        return self._sent(batch, fedavg=self._local(batch, optimizer, [5e-5, 1e-3]), **options)

    def _summed(self, options: dict[str, Any]) -> Update:
        count = self._one_of("clients", [2, 3, 4])
        return sum_updates([self._sent(self.batch(2), seed, **options) for seed in range(count)])

    def _local(self, batch: Batch, optimizer: Any, rates: list[float]) -> FedAvg:  # noqa: ANN401
        """Draw a protocol of local training, and note which texts it trains on, how often."""
        size = self.draw.choice([None, 1, min(2, len(batch))])
        whole = self.draw.random() < 0.25
        length: dict[str, Any] = {"epochs": self.draw.choice([1, 2])} if whole else {"steps": self.draw.randint(1, 8)}
        fedavg = FedAvg(
            **length,
            lr=self.draw.choice(rates),
            batch=size,
            optimizer=optimizer,
            weight_decay=self.draw.choice([0.0, 0.0, 0.01]),
            schedule=self.draw.choice(["constant", "linear"]),
            clip=self.draw.choice([0.0, 0.0, 1.0]),
            shuffle=whole,  # of whole passes alone: then it does not matter which texts come first
        )
        self._note(str(fedavg))
        rows = [row for step in step_batches(fedavg, len(batch), torch.Generator()) for rows in step for row in rows]
        self.batches[-1] = [batch[int(row)] for row in rows]
        return fedavg

    def _one_of(self, name: str, values: list[Any]) -> Any:  # noqa: ANN401
        value = self.draw.choice(values)
        self._note(f"{name} {value}")
        return value

    def _note(self, words: str) -> None:
        self.how = ", ".join(filter(None, [self.how, words]))

    def _sent(self, batch: Batch, seed: int = 0, target: Target | None = None, **options: Any) -> Update:  # noqa: ANN401
        client = Client(
            target or self.target,
            dropout=self.dropout,
            embeddings=self.embeddings,
            seed=100 * self.number + seed,
            **options,
        )
        labels = [label for _, label in batch] if self.target.task == "classification" else None
        update = client.update([text for text, _ in batch], labels)
        return replace(update, origin=None)  # what head it was computed with is not told

    def _bare(self, batch: Batch, seed: int = 0, target: Target | None = None) -> Update:
        return Update(self._sent(batch, seed, target).tensors)

    def _bare_steps(self, batch: Batch, fedavg: FedAvg) -> Update:
        update = self._sent(batch, fedavg=fedavg)
        if not all(bool(torch.isfinite(tensor).all()) for tensor in update.tensors.values()):
            return self._bare(batch)
        if fedavg.batch:  # one text a step, from the first on
            self.batches = [[batch[step % len(batch)] for step in range(fedavg.steps or 1)]]
        else:
            self.passes = fedavg.steps or 1
        return Update(update.tensors, update.kind, update.learning_rate, update.steps)

    def _text(self) -> str:
        """Draw a text that the model can be trained on: a language model needs two tokens."""
        while True:
            text = _random_text(self._texts, self.draw)
            if len(self.target.tokenizer(text)["input_ids"]) >= self.target.min_length:
                return text

    def _ids(self, text: str) -> tuple[int, ...]:
        encoded = self.target.encode([text])
        return tuple(encoded.ids[0][encoded.mask[0]].tolist())


KINDS: dict[str, tuple[int, Callable[[Case], Update]]] = {
    "honest": (3, Case.honest),
    "scaled": (1, Case.scaled),
    "passes": (1, Case.several_passes),
    "steps": (1, Case.steps),
    "sum": (1, Case.sum_or_mean),
    "difference": (1, Case.difference),
    "confident": (1, Case.honest),
    "other head": (1, Case.other_head),
    "rounded": (1, Case.rounded),
    "altered": (4, Case.altered),
    "autocast": (1, Case.autocast),
    "sent": (2, Case.sent),
    "local sgd": (2, Case.local_sgd),
    "adamw": (2, Case.local_adamw),
    "clients": (1, Case.clients),
    "noise": (1, Case.noise),
    "combined": (2, Case.combined),
}
"""Kinds of updates: how often each is drawn, and what makes it."""


def _sum(updates: list[Update], factor: float) -> Update:
    names = updates[0].tensors
    total = {name: sum(update.tensors[name] for update in updates) for name in names}
    return Update({name: factor * torch.as_tensor(tensor) for name, tensor in total.items()})


def _random_text(texts: list[str], draw: random.Random) -> str:
    """Return a sentence, a part of one, the same word again and again, or word salad."""
    words = draw.choice(texts).split()
    kind = draw.random()
    if kind < 0.5:
        return " ".join(words)
    if kind < 0.7:
        return " ".join(words[draw.randrange(len(words)) :])
    length = draw.randrange(1, 16)
    every = (
        words[:2] if kind < 0.8 else [word for text in draw.sample(texts, min(20, len(texts))) for word in text.split()]
    )
    return " ".join(draw.choices(every, k=length))
