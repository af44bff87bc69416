"""The inverter: a network that reads a gradient and answers with tokens (LTI, sections 3 and 4.2).

It is trained by `gradleak.inversion`; here is what an attack needs of it: the network, its card, and its files.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from gradleak.errors import GradleakError
from gradleak.exchange import Origin
from gradleak.inverters.features import Hashed, Kept, Reduction
from gradleak.targets import Target

FILE = "inverter.safetensors"
FORMAT = "gradleak-inverter"
Reduced = Literal["hash", "keep"]
Output = Literal["vocabulary", "words"]
# Features beyond this many standard deviations are cut off: an entry that pruning lets through once in a thousand
# examples would else drown all others.
FARTHEST = 10.0


@dataclass(frozen=True, kw_only=True)
class Card:
    """What an inverter was trained for, and how.

    Attributes:
        origin: the target.
        parameters: names of the parameters whose gradients it reads.
        sequences: sentences in a batch.
        tokens: the most tokens of a sentence, special ones included.
        shortest: the fewest.
        embeddings: which embedding gradients the clients send.
        dropout: whether the clients train with dropout.
        defenses: what is done to their updates, in order.
        pseudo: whether it saw nothing but pseudo-data (LTI-P).
        data: the text it was trained on, in words.
        reduction: `hash` or `keep`.
        share: features for each entry of the gradient, at most.
        output: `vocabulary`: weights for every token at every place, as in the paper; `words`: an embedding for every
            place, compared with the target's own frozen word embeddings.
        hidden: sizes of the hidden layers.
        direct: whether the features also reach the output by a linear map of their own.
        seed: seed of everything random in its training.
        samples: how many examples it has learnt from.
        accuracy: share of the tokens of unseen text that it gets right, in per cent.
    """

    origin: Origin
    parameters: tuple[str, ...]
    sequences: int = 1
    tokens: int = 16
    shortest: int = 16
    embeddings: str = "frozen"
    dropout: bool = False
    defenses: tuple[str, ...] = ()
    pseudo: bool = False
    data: str = ""
    reduction: Reduced = "hash"
    share: float = 0.1
    output: Output = "words"
    hidden: tuple[int, ...] = (600, 1000)
    direct: bool = False
    seed: int = 0
    samples: int = 0
    accuracy: float = 0.0

    def as_json(self) -> str:
        """Return the card as it is kept in the file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Card:
        """Read a card."""
        values: dict[str, Any] = json.loads(text)
        values["origin"] = Origin(**values["origin"])
        for name in ("parameters", "defenses", "hidden"):
            values[name] = tuple(values[name])
        return cls(**{field.name: values[field.name] for field in fields(cls)})


class Inverter(nn.Module):
    """A multi-layer perceptron from features to a distribution over tokens at every place.

    Args:
        card: what it is for.
        reduction: where its features come from.
        target: the model whose gradients it reads; it lends its word embeddings and its device.
    """

    mean: Tensor
    scale: Tensor
    table: Tensor

    def __init__(self, card: Card, reduction: Reduction, target: Target) -> None:
        super().__init__()
        self.card, self.reduction = card, reduction
        vocabulary, width = target.word_embeddings.shape
        each = width if card.output == "words" else vocabulary
        sizes = (reduction.features, *card.hidden, card.sequences * card.tokens * each)
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        self.direct = nn.Linear(sizes[0], sizes[-1], bias=False) if card.direct else None
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if card.output == "words" else None
        self.register_buffer("mean", torch.zeros(reduction.features))
        self.register_buffer("scale", torch.ones(reduction.features))
        self.register_buffer("table", _even_words(target.word_embeddings), persistent=False)
        self.to(target.device)

    def calibrate(self, features: Tensor) -> None:
        """Take mean and deviation of the features from a first batch of them."""
        deviation, self.mean = torch.std_mean(features.float(), dim=0)
        self.scale = 1.0 / deviation.clamp(min=1e-6 * float(deviation.max()) + 1e-30)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits `[examples, sequences, tokens, vocabulary]` of features `[examples, features]`."""
        even = ((features.float() - self.mean) * self.scale).clamp(-FARTHEST, FARTHEST)
        answer = self.body(even)
        if self.direct is not None:
            answer = answer + self.direct(even)
        answer = answer.view(len(features), self.card.sequences, self.card.tokens, -1)
        return answer if self.bias is None else functional.linear(answer, self.table, self.bias)

    def save(self, folder: str | Path) -> None:
        """Write the inverter as safetensors with its card: weights in half precision, all else as it is."""
        halves = {f"weight.{name}": parameter.half() for name, parameter in self.named_parameters()}
        wholes = {f"weight.{name}": buffer for name, buffer in self.state_dict().items() if name in ("mean", "scale")}
        write_tensors(
            Path(folder) / FILE,
            halves | wholes | self.reduction.tensors(),
            {"format": FORMAT, "schema": "1", "card": self.card.as_json()},
        )


def build_reduction(card: Card, target: Target, tensors: Mapping[str, Tensor]) -> Reduction:
    """Return the reduction of a card.

    Args:
        card: says which kind, and which parameters are read.
        target: the model.
        tensors: what `Reduction.tensors` gave.
    """
    shapes = {name: target.parameters[name].shape for name in card.parameters}
    if card.reduction == "hash":
        return Hashed({name: shape.numel() for name, shape in shapes.items()}, card.share, card.seed)
    rows = {name: tensors[f"rows.{name}"] for name in card.parameters}
    return Kept(rows, {name: shape[1:].numel() for name, shape in shapes.items()})


def read_card(folder: Path) -> Card:
    """Return the card of the inverter in a folder."""
    path = folder / FILE
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError("it is no inverter")
        return Card.from_json(metadata["card"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise GradleakError(f"{path} cannot be read: {' '.join(str(error).split())}") from None


def load_inverter(folder: str | Path, target: Target) -> Inverter:
    """Read an inverter for a target; that of another target is refused.

    Raises:
        GradleakError: if it was trained for other weights, or the file is damaged.
    """
    folder = Path(folder)
    card = read_card(folder)
    if card.origin.fingerprint != target.fingerprint:
        raise GradleakError(
            f"the inverter in {folder} was trained for other weights ({card.origin.name}, "
            f"{card.origin.fingerprint[:12]}) than those of {target.name} ({target.fingerprint[:12]})"
        )
    try:
        with safe_open(str(folder / FILE), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        with torch.random.fork_rng(devices=[]):  # building a network draws weights; the caller's random state stays
            inverter = Inverter(card, build_reduction(card, target, tensors), target)
        state = {name.removeprefix("weight."): t.float() for name, t in tensors.items() if name.startswith("weight.")}
        inverter.load_state_dict(state)
    except (SafetensorError, OSError, KeyError, RuntimeError) as error:
        raise GradleakError(f"{folder / FILE} is damaged: {' '.join(str(error).split())[:200]}") from None
    return inverter.to(target.device).requires_grad_(False).eval()


def inverters_in(folder: str | Path) -> Iterator[Path]:
    """Yield the folder if it holds an inverter, and all folders in it that do."""
    for path in sorted({Path(folder) / FILE, *Path(folder).glob(f"*/{FILE}")}):
        if path.is_file():
            yield path.parent


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write safetensors so that whoever reads finds the old file or the new one, never half of it."""
    unfinished = path.with_suffix(".unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        save_file(plain, str(unfinished), metadata=dict(metadata))
        unfinished.chmod(0o644)  # safetensors lets only the owner read what it writes
        unfinished.replace(path)
    except (OSError, SafetensorError) as error:
        raise GradleakError(f"{path} cannot be written: {error}") from None


def _even_words(table: Tensor) -> Tensor:
    """Return word embeddings around zero and of length one, so that no word is likelier for being long."""
    centred = table.detach().float() - table.detach().float().mean(dim=0)
    return functional.normalize(centred, dim=1)
