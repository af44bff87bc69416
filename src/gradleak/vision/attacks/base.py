"""Base of the attacks on image models, and their registry."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, TypeVar, cast

import torch
from torch import Tensor

from gradleak.errors import GradleakError, unknown_name
from gradleak.exchange import Deadline, Knowledge, Update
from gradleak.settings import check_settings, settings_of
from gradleak.targets import Target
from gradleak.version import __version__
from gradleak.vision.observation import Observation, excess, matching_loss, observe
from gradleak.vision.sample_gradients import flat
from gradleak.vision.target import ImageTarget

Report = Callable[[int, int, float], None]
"""Called with the steps done, the steps in all, and the mean loss."""


@dataclass
class Search:
    """A running search: the model, what was sent, and what the search may use.

    Attributes:
        target: the model.
        seen: what the clients sent.
        images: images in each client's batch.
        stream: random numbers, on the CPU.
        deadline: when it has to end.
        report: told of progress.
        defenses: the clients', as written on the command line, if they are known.
    """

    target: ImageTarget
    seen: Observation
    images: int
    stream: torch.Generator
    deadline: Deadline
    report: Report | None = None
    defenses: tuple[str, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the images: clients, images, channels, height, width."""
        return (self.seen.count, self.images, *self.target.shape)

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal numbers: the same ones on every device."""
        return torch.randn(shape, generator=self.stream).to(self.target.device)

    def distances(self, images: Tensor) -> Tensor:
        """Return each client's matching loss at some images, differentiable."""
        return matching_loss(self.seen, flat(self.target.gradients(images, self.seen.labels)))

    def excesses(self, images: Tensor) -> Tensor:
        """Return each client's distance from gradients that pruning would have sent so, differentiable."""
        return excess(self.seen, flat(self.target.gradients(images, self.seen.labels)))

    def share_done(self, step: int, steps: int, seconds: float) -> float:
        """Return how much of a descent is done, by its steps or by the clock; learning rates follow it.

        Args:
            step: steps done.
            steps: in all.
            seconds: that were left for it when it began; infinite without a deadline.
        """
        by_clock = 1 - self.deadline.left / seconds if 0 < seconds < math.inf else 0.0
        return min(1.0, max(step / steps, by_clock))

    def tell(self, step: int, total: int, loss: Tensor) -> None:
        """Report progress every hundredth of the steps; reading a loss stops a GPU's queue."""
        if self.report is not None and (step % max(1, total // 100) == 0 or step == total):
            self.report(step, total, float(loss.detach().mean()))


@dataclass(frozen=True, eq=False)
class ImageReconstruction:
    """What an attack found of one client's batch.

    Attributes:
        images: between 0 and 1, `[images, channels, height, width]`, on the CPU.
        labels: their classes, inferred or as they were known.
        loss: distance between the gradient of the images and what was sent.
        seconds: this client's share of the time.
        attack: its name.
        settings: its settings.
        seed: of everything random.
        version: of gradleak.
        model_hash: of the target's weights.
        notes: what a reader must know.
    """

    images: Tensor
    labels: tuple[int, ...]
    loss: float
    seconds: float
    attack: str
    settings: Mapping[str, Any]
    seed: int
    model_hash: str
    version: str = __version__
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImageAttack(ABC):
    """Base of all attacks on images. A subclass declares its settings as fields and writes `run`.

    Attributes:
        name: the name that users give.
        paper: the publication.
        presets: named settings; `paper` does what the paper does, `best` adds what gradleak adds and is the default.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}

    def __post_init__(self) -> None:
        check_settings(self)

    @abstractmethod
    def run(self, search: Search) -> tuple[Tensor, tuple[str, ...]]:
        """Return the images of all clients, in the shape of the search, and notes."""

    @classmethod
    def default_preset(cls) -> str:
        """Return the preset that is taken where none is named: `best` if the attack has one, else `paper`."""
        return "best" if "best" in cls.presets else "paper"

    @classmethod
    def with_settings(cls, preset: str | None = None, settings: Mapping[str, str] | None = None) -> Self:
        """Build the attack from a preset and settings given as text, as the command line has them."""
        chosen_preset = preset or cls.default_preset()
        if chosen_preset not in cls.presets:
            raise unknown_name(f"preset of {cls.name}", chosen_preset, cls.presets)
        known, chosen = settings_of(cls), dict(cls.presets[chosen_preset])
        for key, text in (settings or {}).items():
            if key not in known:
                raise unknown_name(f"setting of {cls.name}", key, known)
            chosen[key] = known[key].parse(text)
        return cls(**chosen)

    def many(
        self,
        target: ImageTarget,
        updates: Sequence[Update],
        knowledge: Sequence[Knowledge],
        *,
        seed: int = 0,
        budget: float | None = None,
        report: Report | None = None,
    ) -> list[ImageReconstruction]:
        """Reconstruct the images behind several updates, all side by side.

        Args:
            target: the model.
            updates: gradients that clients sent.
            knowledge: what the attacker is told of each; batch size and defenses must be the same.
            seed: of everything random.
            budget: seconds for each update, of which all share the sum; None for no limit.
            report: told of progress.
        """
        images = {known.sequences or 1 for known in knowledge}
        defenses = {known.defenses for known in knowledge}
        if len(images) != 1 or len(defenses) != 1:
            raise GradleakError("updates that are attacked side by side must share batch size and defenses")
        known = defenses.pop()
        seen = self._observation(target, updates, knowledge, images.pop(), known)
        deadline = Deadline(None if budget is None else budget * len(updates))
        search = Search(
            target, seen, seen.labels.shape[1], torch.Generator().manual_seed(seed), deadline, report, known
        )
        began = time.perf_counter()
        found, notes = self.run(search)
        found = found.detach().clamp(0, 1)
        with torch.no_grad():
            losses = search.distances(found).tolist()
        seconds = (time.perf_counter() - began) / len(updates)
        out_of_time = ("the time was up before the attack had ended",) if deadline.hit else ()
        return [
            ImageReconstruction(
                pictures.cpu(),
                tuple(labels),
                loss,
                seconds,
                self.name,
                asdict(self),
                seed,
                target.fingerprint,
                notes=(*notes, *out_of_time),
            )
            for pictures, labels, loss in zip(found, seen.labels.tolist(), losses, strict=True)
        ]

    @staticmethod
    def _observation(
        target: ImageTarget,
        updates: Sequence[Update],
        knowledge: Sequence[Knowledge],
        images: int,
        defenses: tuple[str, ...] | None,
    ) -> Observation:
        for update in updates:
            check_update(target, update)
        names = list(target.parameters)
        sent = [update.to(target.device, torch.float32).gradient() for update in updates]
        stacked = {name: torch.stack([one[name] for one in sent]) for name in names}
        given = [known.labels for known in knowledge if known.labels is not None]
        if images > 1 and len(given) < len(updates):
            raise GradleakError("labels are read from the gradient of single images only; tell them (--know labels)")
        labels = torch.tensor(given, device=target.device) if len(given) == len(updates) else None
        return observe(target, stacked, labels, defenses)


def check_update(target: ImageTarget, update: Update) -> None:
    """Raise a GradleakError unless names, shapes, values and origin fit the target."""
    update.check(cast(Target, target))  # it reads nothing that an image model lacks
    missing = next((name for name in target.parameters if name not in update.tensors), None)
    if missing is not None:
        raise GradleakError(f"the update lacks the tensor '{missing}' of {target.name}")


IMAGE_ATTACKS: dict[str, type[ImageAttack]] = {}
A = TypeVar("A", bound=ImageAttack)


def register_image_attack(attack: type[A]) -> type[A]:
    """Class decorator: make an attack on images known by its name."""
    IMAGE_ATTACKS[attack.name] = attack
    return attack


def find_image_attack(name: str) -> type[ImageAttack]:
    """Return the attack on images of that name."""
    if name not in IMAGE_ATTACKS:
        raise unknown_name("attack on images", name, IMAGE_ATTACKS)
    return IMAGE_ATTACKS[name]
