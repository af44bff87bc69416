"""Dropout of a target: its sites, its rate, and masks in place of random ones.

All dropout of a target goes through `nn.Dropout` modules, attention included (see `attention.py`). A *site* is one call
of such a module in a forward pass; a module that is called several times (ALBERT's shared layers) has several sites.
GRAB optimises masks, the engine applies them, and studies set the rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gradleak.errors import GradleakError
from gradleak.targets.hooks import Hook, forward_hooks
from gradleak.targets.target import Target

Visit = Callable[[str, nn.Dropout, Tensor], Tensor]
"""Takes a site, its module and the module's output, and returns what replaces the output."""


@dataclass(frozen=True)
class DropoutSite:
    """One call of a dropout module.

    Attributes:
        rate: probability that an entry is dropped.
        shape: shape of the dropped tensor, per sequence.
        token_dims: dimensions of that shape whose size is the number of tokens.
    """

    rate: float
    shape: tuple[int, ...]
    token_dims: tuple[int, ...] = ()


def dropout_sites(target: Target, tokens: int) -> dict[str, DropoutSite]:
    """Return all sites of a forward pass over sequences of `tokens` tokens, in order."""
    sites = _sites(target, tokens)
    # A dimension counts tokens if its size changes with the number of tokens.
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
    with torch.no_grad(), _visited_sites(target.model, note):
        target.logits(target.embed(ids), torch.ones_like(ids, dtype=torch.bool))
    return sites


def own_dropouts(target: Target) -> list[nn.Dropout]:
    """Return the model's dropout modules whose rate is not zero; adapters, whose rate is their own, are left out."""
    adapted = tuple(f"{module.path}." for module in target.adapters)
    modules = [(path, module) for path, module in target.model.named_modules() if isinstance(module, nn.Dropout)]
    return [module for path, module in modules if module.p and not path.startswith(adapted)]


def set_dropout(target: Target, rate: float) -> None:
    """Set the rate of every dropout module of the model whose rate is not zero, in place; adapters keep theirs.

    Raises:
        GradleakError: if the model has no dropout.
    """
    modules = own_dropouts(target)
    if not modules:
        raise GradleakError(f"{target.name} has no dropout whose rate could be {rate:g}")
    for module in modules:
        module.p = rate


@contextmanager
def dropout_masks(target: Target, masks: Mapping[str, Tensor]) -> Iterator[None]:
    """Multiply every site in `masks` by its mask / (1 − rate) `[sequences, *shape]` within this context.

    Masks may be continuous and may require a gradient (GRAB, section 4.2); other sites drop nothing in evaluation mode.
    """

    def drop(site: str, module: nn.Dropout, value: Tensor) -> Tensor:
        return value * masks[site] / (1.0 - module.p) if site in masks else value

    with _visited_sites(target.model, drop):
        yield


@contextmanager
def _visited_sites(model: nn.Module, visit: Visit) -> Iterator[None]:
    """Call `visit` after every dropout module whose rate is not zero; its result replaces the module's output."""
    calls: Counter[str] = Counter()

    def hook_of(path: str) -> Hook:
        def hook(module: nn.Dropout, _: object, output: Tensor) -> Tensor:
            count = calls[path]
            calls[path] += 1
            return visit(f"{path}#{count}" if count else path, module, output)

        return hook

    dropouts = {name: module for name, module in model.named_modules() if isinstance(module, nn.Dropout) and module.p}
    with forward_hooks({module: hook_of(name) for name, module in dropouts.items()}):
        yield
