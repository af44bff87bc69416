"""How far each entry of an update may be from the gradient behind it: number formats, local steps, Adam's ε.

The size of the error is known entry by entry from the protocol. Rows and columns of a site are divided by their
root-mean-square errors; what is left of the error is close to a random matrix of unit variance, whose largest singular
value is √rows + √columns (Marchenko & Pastur 1967): directions below that are noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradleak.assets import sample_texts
from gradleak.attacks.forest.residual import FLOAT32, Residual, SiteNoise
from gradleak.attacks.forest.sites import InputSite, MapRows
from gradleak.exchange import FedAvg, Protocol
from gradleak.leakage.drift import takes_steps
from gradleak.leakage.noise_floor import ABOVE_EDGE, whiten
from gradleak.targets import Target
from gradleak.targets.hooks import captured_inputs

RELATIVE = {"fp32": 2.0**-25, "fp16": 2.0**-12, "bf16": 2.0**-9}
"""Largest relative error of a number in each format."""

CODES = 127
"""Sizes that an int8 code distinguishes."""

AUTOCAST = {"fp32": 0.0, "fp16": 2e-3, "bf16": 1e-2}
"""Relative error of gradients that were computed in mixed precision."""

TABLE_ROWS = 4e-7
"""Singular values of the first layer's rows below this fraction of the largest are rounding of float32."""

TABLE = 3e-7
"""Relative error of the vocabulary's vectors, which are rounded once; those of deeper layers have gone through many
operations."""

SIGNS = 0.6
"""Standard deviation of what signs of normal numbers have beside a multiple of these."""

PUBLIC = 8
"""Public texts from which the typical size of a layer's inputs is taken."""

EDGE = 1.1
"""Singular values below this many times the edge count as noise."""


class RowNoise:
    """The errors of an update's rows.

    Args:
        target: the model before local training.
        gradient: gradients by name.
        protocol: what is public of how the update was made.
        dropout: the rate at which the adapters' inputs were dropped; 0 for none.
    """

    def __init__(
        self, target: Target, gradient: Mapping[str, Tensor], protocol: Protocol, dropout: float = 0.0
    ) -> None:
        self.target, self.gradient, self.protocol, self.dropout = target, gradient, protocol, dropout
        self._known: dict[str, Residual] = {}
        self._sizes: dict[str, Tensor] = {}

    @property
    def exact(self) -> bool:
        """Whether the update is one float32 gradient without dropout."""
        stated = self.protocol
        return stated.training is None and stated.send == "fp32" and stated.precision == "fp32" and not self.dropout

    @property
    def signs(self) -> bool:
        """Whether little more than signs is left of the gradients: Adam took more than one step."""
        training = self.protocol.training
        return training is not None and training.optimizer != "sgd" and training.steps != 1

    @property
    def strong(self) -> bool:
        """Whether no prefix's input lies in the rows, not even nearly."""
        return self.signs or self.dropout > 0

    @property
    def drift(self) -> bool:
        """Whether the weights moved between the gradients of which the update is the sum."""
        return takes_steps(self.protocol.training)

    def residual(self, site: InputSite) -> Residual:
        """Return a site's rows, of which nothing is explained yet."""
        if site.path not in self._known:
            rows, noise = self.of(site)
            if site.tokenwise and not self.strong:
                noise = replace(noise, vectors=TABLE, rows=TABLE_ROWS if self.exact else noise.rows)
            self._known[site.path] = Residual(rows, noise)
        return self._known[site.path].fresh()

    def of(self, site: InputSite) -> tuple[Tensor, SiteNoise]:
        """Return a site's rows, scaled to even noise, and that noise.

        Rows of a float32 gradient keep their scale.
        """
        if self.exact:
            return site.rows, SiteNoise()
        if self.strong and site.reduction is None:
            return self._of_masked(site) if self.dropout else self._of_signs(site)
        if self.target.adapter is None:
            return _whitened(site)
        errors = torch.cat([self._errors(part) / part.rows.double().norm().clamp(min=1e-300) for part in site.maps])
        heights = errors.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-300)
        widths = (errors / heights).square().mean(dim=0).sqrt().clamp(min=1e-3)
        rows = site.rows / heights / widths
        return rows, SiteNoise(_noise_edge(rows), 1e-4, 1 / widths)

    def _of_masked(self, site: InputSite) -> tuple[Tensor, SiteNoise]:
        """Return a site's rows after dropout: the rows are exact, but what they combine are masked inputs."""
        typical = self._typical(site)
        return site.rows / typical, SiteNoise(FLOAT32, (self.dropout / (1 - self.dropout)) ** 0.5, 1 / typical)

    def _of_signs(self, site: InputSite) -> tuple[Tensor, SiteNoise]:
        """Return a site's rows after steps of Adam, which have made all columns equally large.

        The floor is the usual singular value of the noise, not its largest: what noise adds to the basis is no vector
        of the dictionary, and weak tokens are not cut off.
        """
        rows = site.rows / site.rows.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-300)
        floor = SIGNS * rows.shape[1] ** 0.5 / float(torch.linalg.matrix_norm(rows, 2))
        return rows, SiteNoise(floor, 1e-4, 1 / self._typical(site))

    def _typical(self, site: InputSite) -> Tensor:
        """Return the root mean square of each entry of a site's input over public text, 1 in the mean `[width]`."""
        if not self._sizes:
            maps = [part.module for layer in self.target.layers for part in layer.projections]
            self._sizes = _usual_sizes(self.target, [module.path for module in self.target.adapters] or maps)
        size = self._sizes.get(site.path)
        return torch.ones_like(site.rows[0]) if size is None else (size / size.square().mean().sqrt()).clamp(min=1e-3)

    def _errors(self, part: MapRows) -> Tensor:
        """Return the standard deviation of each entry's error `[rows, width]`, in the units of the gradient."""
        size = part.rows.double().abs()
        error = size * AUTOCAST[self.protocol.precision]
        send, training = self.protocol.send, self.protocol.training
        error += size * RELATIVE[send] / 3**0.5 if send in RELATIVE else size.max() / CODES / 12**0.5
        if training is not None:
            error = error + self._step_errors(part, training, size)
        return error

    def _step_errors(self, part: MapRows, training: FedAvg, size: Tensor) -> Tensor:
        """Return what float32 weights lose of a step."""
        weight = self._weight(part).double().abs()
        spacing = torch.finfo(torch.float32).eps * torch.exp2(weight.clamp(min=1e-30).log2().floor())
        steps = training.steps or training.epochs or 1
        if training.optimizer == "sgd":
            return spacing / 12**0.5 / (training.lr * steps**0.5)
        if not self.signs:  # |g| = ε u / (1 − u), with u known to the spacing of the weights
            unsure = spacing / training.lr + 5e-7
            return unsure * (size + training.eps).square() / training.eps + 1e-4 * size
        return SIGNS * size

    def _weight(self, part: MapRows) -> Tensor:
        for name, tensor in self.gradient.items():
            if tensor.data_ptr() == part.rows.data_ptr() and tensor.shape == part.rows.shape:
                return self.target.parameters[name].detach()
        return torch.full_like(part.rows, 0.05)


def _whitened(site: InputSite) -> tuple[Tensor, SiteNoise]:
    """Return the rows of a full update, so many more than the tokens that their own spectrum shows the noise.

    That is right for rounding which is not quite random, too: epochs repeat their errors, and entries of half
    precision have errors of their own sizes, not of their rows' and columns'.
    """
    spectrum = whiten(site.rows, rough=True)
    beyond = spectrum.values[spectrum.rank :]
    floor = max(ABOVE_EDGE, 1.01 * float(beyond[0]) if len(beyond) else 0.0) / max(float(spectrum.values[0]), 1e-300)
    return spectrum.floor.white(site.rows), SiteNoise(max(FLOAT32, floor), 1e-4, 1 / spectrum.floor.columns)


def _noise_edge(rows: Tensor) -> float:
    """Return the largest singular value of noise of unit variance, as a fraction of the rows' largest."""
    edge = EDGE * (rows.shape[0] ** 0.5 + rows.shape[1] ** 0.5)
    return max(FLOAT32, edge / max(float(torch.linalg.svdvals(rows)[0]), 1e-300))


def _usual_sizes(target: Target, paths: Sequence[str]) -> dict[str, Tensor]:
    """Return the root mean square of the entries of modules' inputs over public text, by path `[width]`."""
    rows = [
        row for row in target.tokenizer(list(sample_texts())[:PUBLIC])["input_ids"] if len(row) <= target.max_length
    ]
    found = [captured_inputs(target, torch.tensor([row], device=target.device), paths) for row in rows]
    return {
        path: torch.cat([own[path].flatten(0, -2) for own in found]).double().square().mean(dim=0).sqrt()
        for path in set.intersection(*(set(own) for own in found))
    }
