"""What modules are fed when a sentence goes through the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from gradleak.targets import Target


class _Enough(Exception):  # noqa: N818 - no error, a way out
    """Raised to leave a forward pass."""


@torch.no_grad()
def captured_inputs(target: Target, ids: Tensor, modules: Sequence[str]) -> dict[str, Tensor]:
    """Return what modules are fed `[sentences, tokens, width]`; the forward pass stops at the last of them."""
    fed: dict[str, Tensor] = {}
    with _listening(target, modules, fed), suppress(_Enough):
        mask = torch.ones_like(ids, dtype=torch.bool)
        target.family.logits(target.model, target.embed(ids), mask, target.task)
    return fed


@contextmanager
def _listening(target: Target, modules: Sequence[str], fed: dict[str, Tensor]) -> Iterator[None]:
    def hook(path: str) -> Any:  # noqa: ANN401
        def listen(_: object, inputs: tuple[Tensor, ...]) -> None:
            fed.setdefault(path, inputs[0])
            if len(fed) == len(modules):
                raise _Enough

        return listen

    handles = [target.model.get_submodule(path).register_forward_pre_hook(hook(path)) for path in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
