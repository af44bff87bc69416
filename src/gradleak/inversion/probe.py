"""Which parameters' gradients say most about the text: measured, not guessed from the architecture.

LTI hashes all parameters alike and names that as its limit (section 5). Here a small probe, a ridge regression from one
parameter's gradient to the embeddings of the tokens, tells how much of the text each gradient gives away by itself; the
best ones are kept as they are, within the same budget of features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from gradleak.inversion.examples import Chunk
from gradleak.inverters.features import Hashed, Kept
from gradleak.targets import Target

MOST_FEATURES = 512
# A gradient that explains less than this share of the tokens' variance is left out, once others fill this much of the
# budget. Before that it is taken: under noise every parameter says little by itself, and all together say a lot.
LEAST, ENOUGH = 0.003, 0.25


@dataclass(frozen=True)
class Finding:
    """What a probe found out about one parameter.

    Attributes:
        explained: the share of the tokens' variance that its gradient explains in unseen examples.
        rows: the rows whose gradient is ever anything but zero.
        width: entries of a row.
    """

    explained: float
    rows: Tensor
    width: int


def informativeness(target: Target, chunks: Iterable[tuple[Chunk, Mapping[str, Tensor]]]) -> dict[str, Finding]:
    """Return what the gradient of each parameter, by itself, gives away of the tokens.

    Args:
        target: the model.
        chunks: examples, and their gradients as they are sent; gone through once. The first one's gradients before any
            defense tell which rows are alive: noise would make all of them look so.
    """
    words = functional.normalize(target.word_embeddings - target.word_embeddings.mean(dim=0), dim=1)
    alive: dict[str, Tensor] = {}
    features: dict[str, list[Tensor]] = {}
    truth = []
    for chunk, sent in chunks:
        alive = alive or {name: _alive_rows(gradient) for name, gradient in chunk.gradients.items()}
        truth.append(words[chunk.ids].flatten(1))  # [examples, sequences × tokens × width]
        for name, rows in alive.items():
            features.setdefault(name, []).append(_few(name, sent[name], rows))
    widths = {name: target.parameters[name].shape[1:].numel() for name in alive}
    answers = torch.cat(truth)
    return {
        name: Finding(_explained(torch.cat(features[name]), answers) if len(rows) else 0.0, rows, widths[name])
        for name, rows in alive.items()
    }


def choose_rows(found: Mapping[str, Finding], budget: int) -> Kept | None:
    """Return which rows of which parameters to keep, the most informative parameters first; None if nothing fits.

    Of a parameter that does not fit whole, as many rows as fit are kept, evenly spaced.

    Args:
        found: what `informativeness` found.
        budget: the most entries to keep.
    """
    chosen: dict[str, Tensor] = {}
    left = budget
    for name in sorted(found, key=lambda name: -found[name].explained):
        rows, width = found[name].rows, found[name].width
        room = min(left // width, len(rows))
        enough = left < budget * (1 - ENOUGH)
        if not room or (enough and found[name].explained < LEAST):
            continue
        chosen[name] = rows[torch.linspace(0, len(rows) - 1, room, device=rows.device).long()]
        left -= room * width
    kept = {name: chosen[name] for name in found if name in chosen}
    return Kept(kept, {name: found[name].width for name in kept}) if kept else None


def _alive_rows(gradient: Tensor) -> Tensor:
    largest = gradient.reshape(*gradient.shape[:2], -1).abs().amax(dim=(0, 2))
    return torch.nonzero(largest).flatten()


def _few(name: str, gradient: Tensor, rows: Tensor) -> Tensor:
    """Return the gradient hashed to so few features that a regression is quick."""
    entries = gradient.index_select(1, rows).flatten(1)
    size = entries.shape[1]
    return Hashed({name: size}, min(1.0, MOST_FEATURES / max(1, size)))({name: entries}) if size else entries


def _explained(features: Tensor, truth: Tensor) -> float:
    """Fit on the first half of the examples, and return the share of the second half's variance that is explained."""
    half = len(features) // 2
    deviation, mean = torch.std_mean(features[:half].double(), dim=0)
    even = ((features - mean) / deviation.clamp(min=1e-6 * float(deviation.max()) + 1e-30)).clamp(-10, 10)
    centred = (truth - truth[:half].mean(dim=0)).double()
    gram = even[:half].T @ even[:half] / half
    gram.diagonal().add_(len(gram) / half + 1e-6)  # the noise that as many features as this pick up by chance
    weights = torch.linalg.solve(gram, even[:half].T @ centred[:half] / half)
    rest = centred[half:] - even[half:] @ weights
    return float(1 - rest.square().sum() / centred[half:].square().sum().clamp(min=1e-30))
