"""Which parameters' gradients tell most about the text, measured by a probe: the features of `reduction="keep"`.

LTI hashes all parameters alike and names that as its limitation (section 5). The probe is a ridge regression from one
parameter's gradient to the embeddings of the tokens; the variance that it explains ranks the parameters. The gradients
of the best ones are kept unchanged, within the same budget of features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from gradleak.inversion.gradients import Chunk
from gradleak.inverters.features import HashedGradient, KeptRows
from gradleak.targets import Target

# Features of one regression, to which a parameter's gradient is hashed.
PROBE_FEATURES = 512
# A parameter that explains less than this share of the tokens' variance is left out, but only once others fill this
# much of the budget: under noise each parameter explains little by itself, and all together explain a lot.
LEAST_EXPLAINED, FILLED_SHARE = 0.003, 0.25


@dataclass(frozen=True)
class ProbeResult:
    """How much one parameter's gradient tells about the text.

    Attributes:
        explained: the share of the tokens' variance that it explains in held-out examples.
        rows: indices of the rows whose gradient is not always zero.
        width: number of entries of a row.
    """

    explained: float
    rows: Tensor
    width: int


def informativeness(target: Target, chunks: Iterable[tuple[Chunk, Mapping[str, Tensor]]]) -> dict[str, ProbeResult]:
    """Return how much the gradient of each parameter, by itself, tells about the tokens.

    Args:
        target: the model.
        chunks: examples, and their gradients after the defenses; iterated once. Which rows are not zero is read from
            the first chunk's gradients before the defenses, since noise changes zeros too.
    """
    words = functional.normalize(target.word_embeddings - target.word_embeddings.mean(dim=0), dim=1)
    nonzero: dict[str, Tensor] = {}
    features: dict[str, list[Tensor]] = {}
    truth = []
    for chunk, sent in chunks:
        nonzero = nonzero or {name: _nonzero_rows(gradient) for name, gradient in chunk.gradients.items()}
        truth.append(words[chunk.ids].flatten(1))  # [examples, sequences × tokens × width]
        for name, rows in nonzero.items():
            features.setdefault(name, []).append(_hashed(name, sent[name], rows))
    widths = {name: target.parameters[name].shape[1:].numel() for name in nonzero}
    answers = torch.cat(truth)
    return {
        name: ProbeResult(
            _explained_variance(torch.cat(features[name]), answers) if len(rows) else 0.0, rows, widths[name]
        )
        for name, rows in nonzero.items()
    }


def choose_rows(found: Mapping[str, ProbeResult], budget: int) -> KeptRows | None:
    """Choose the rows to keep, those of the most informative parameters first; None if no row fits the budget.

    Of a parameter that does not fit as a whole, as many rows as fit are kept, evenly spaced.

    Args:
        found: the results of `informativeness`.
        budget: the most entries to keep.
    """
    chosen: dict[str, Tensor] = {}
    left = budget
    for name in sorted(found, key=lambda name: -found[name].explained):
        rows, width = found[name].rows, found[name].width
        room = min(left // width, len(rows))
        filled = left < budget * (1 - FILLED_SHARE)
        if not room or (filled and found[name].explained < LEAST_EXPLAINED):
            continue
        chosen[name] = rows[torch.linspace(0, len(rows) - 1, room, device=rows.device).long()]
        left -= room * width
    kept = {name: chosen[name] for name in found if name in chosen}
    return KeptRows(kept, {name: found[name].width for name in kept}) if kept else None


def _nonzero_rows(gradient: Tensor) -> Tensor:
    largest = gradient.reshape(*gradient.shape[:2], -1).abs().amax(dim=(0, 2))
    return torch.nonzero(largest).flatten()


def _hashed(name: str, gradient: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of a gradient, hashed to few enough features for a quick regression."""
    entries = gradient.index_select(1, rows).flatten(1)
    size = entries.shape[1]
    return HashedGradient({name: size}, min(1.0, PROBE_FEATURES / max(1, size)))({name: entries}) if size else entries


def _explained_variance(features: Tensor, truth: Tensor) -> float:
    """Fit on the first half of the examples, and return the share of the second half's variance that it explains."""
    half = len(features) // 2
    deviation, mean = torch.std_mean(features[:half].double(), dim=0)
    normalised = ((features - mean) / deviation.clamp(min=1e-6 * float(deviation.max()) + 1e-30)).clamp(-10, 10)
    centred = (truth - truth[:half].mean(dim=0)).double()
    gram = normalised[:half].T @ normalised[:half] / half
    gram.diagonal().add_(len(gram) / half + 1e-6)  # the variance that so many features explain by chance
    weights = torch.linalg.solve(gram, normalised[:half].T @ centred[:half] / half)
    residual = centred[half:] - normalised[half:] @ weights
    return float(1 - residual.square().sum() / centred[half:].square().sum().clamp(min=1e-30))
