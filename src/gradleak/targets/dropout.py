"""Every dropout of a model, watched or replaced in one way.

All dropout of a target goes through `nn.Dropout` modules, attention included (see `attention.py`). A *site* is one use
of such a module in a forward pass; a module that is used several times (ALBERT's shared layers) has several sites.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.errors import GradleakError
from gradleak.targets.target import Target


@dataclass(frozen=True)
class DropoutSite:
    """One use of a dropout module.

    Attributes:
        rate: how much it drops.
        shape: the shape of what it drops, per sequence.
        token_dims: which dimensions of that shape count tokens.
    """

    rate: float
    shape: tuple[int, ...]
    token_dims: tuple[int, ...] = ()


def dropout_sites(target: Target, tokens: int) -> dict[str, DropoutSite]:
    """Return all sites of a forward pass over sequences of `tokens` tokens, in order."""
    sites = _sites(target, tokens)
    # A dimension counts tokens if it is another where there are more or fewer of them.
    others = _sites(target, tokens - 1 if tokens > 1 else tokens + 1)
    return {
        name: replace(
            site,
            token_dims=tuple(
                dim
                for dim, (size, other) in enumerate(zip(site.shape, others[name].shape, strict=True))
                if size != other
            ),
        )
        for name, site in sites.items()
    }


def _sites(target: Target, tokens: int) -> dict[str, DropoutSite]:
    sites: dict[str, DropoutSite] = {}

    def note(site: str, module: nn.Dropout, value: Tensor) -> Tensor:
        sites[site] = DropoutSite(module.p, tuple(value.shape[1:]))
        return value

    ids = torch.zeros(1, tokens, dtype=torch.long, device=target.device)
    with torch.no_grad(), _watched(target.model, note):
        target.family.logits(target.model, target.embed(ids), torch.ones_like(ids, dtype=torch.bool), target.task)
    return sites


def set_dropout(target: Target, rate: float) -> None:
    """Give every dropout of a model that drops anything another rate, the same for all.

    Raises:
        GradleakError: if the model has no dropout.
    """
    modules = [module for module in target.model.modules() if isinstance(module, nn.Dropout) and module.p]
    if not modules:
        raise GradleakError(f"{target.name} has no dropout whose rate could be {rate:g}")
    for module in modules:
        module.p = rate


@contextmanager
def dropout_masks(target: Target, masks: Mapping[str, Tensor]) -> Iterator[None]:
    """Within this context every site in `masks` multiplies by its mask / (1 − rate) `[sequences, *shape]`.

    Masks may be continuous and may require a gradient (GRAB, section 4.2); sites that are not in `masks` pass
    everything.
    """

    def drop(site: str, module: nn.Dropout, value: Tensor) -> Tensor:
        return value * masks[site] / (1.0 - module.p) if site in masks else value

    with _watched(target.model, drop):
        yield


@contextmanager
def _watched(model: nn.Module, visit: Any) -> Iterator[None]:  # noqa: ANN401
    calls: Counter[str] = Counter()

    def hook(path: str) -> Any:  # noqa: ANN401
        def visited(module: nn.Dropout, _: Any, output: Tensor) -> Tensor:  # noqa: ANN401
            count = calls[path]
            calls[path] += 1
            return visit(f"{path}#{count}" if count else path, module, output)

        return visited

    dropouts = {name: module for name, module in model.named_modules() if isinstance(module, nn.Dropout) and module.p}
    handles = [module.register_forward_hook(hook(name)) for name, module in dropouts.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
