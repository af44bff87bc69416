"""Recompute activations, logits and gradients of candidate sequences, to compare them with an update.

Used by the closed forms of this room and by sieve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from gradleak.targets import Target


class _AllCaptured(Exception):  # noqa: N818 - not an error: it ends a forward pass early
    """Raised by a hook once every requested input has been recorded."""


@contextmanager
def temporary_hooks(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks when the block ends, whatever happens in it."""
    registered = list(handles)
    try:
        yield
    finally:
        for handle in registered:
            handle.remove()


@torch.no_grad()
def captured_inputs(target: Target, ids: Tensor, modules: Sequence[str]) -> dict[str, Tensor]:
    """Return the inputs of modules `[sequences, tokens, width]` by path; the forward pass stops at the last of them.

    Args:
        target: the model.
        ids: unpadded token ids `[sequences, tokens]`.
        modules: paths of the modules. A module that runs several times is recorded the first time.
    """
    captured: dict[str, Tensor] = {}

    def recorder(path: str) -> Callable[[object, tuple[Tensor, ...]], None]:
        def record(_: object, inputs: tuple[Tensor, ...]) -> None:
            captured.setdefault(path, inputs[0])
            if len(captured) == len(modules):
                raise _AllCaptured

        return record

    handles = [target.model.get_submodule(path).register_forward_pre_hook(recorder(path)) for path in modules]
    with temporary_hooks(handles), suppress(_AllCaptured):
        mask = torch.ones_like(ids, dtype=torch.bool)
        target.family.logits(target.model, target.embed(ids), mask, target.task)
    return captured


@torch.no_grad()
def classifier_pass(target: Target, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the logits of sequences and the inputs of the output layer, both as the model computes them."""
    inputs: list[Tensor] = []
    output_layer = target.model.get_submodule(target.classifier)
    batch = target.pad(sequences)
    with temporary_hooks([output_layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))]):
        logits: Tensor = target.family.logits(target.model, target.embed(batch.ids), batch.mask, target.task)
    return logits, inputs[-1]


def batch_gradient(
    target: Target, sequences: Sequence[Sequence[int]], labels: Sequence[int] | None, names: Sequence[str]
) -> dict[str, Tensor]:
    """Return the gradient that a client without dropout computes on a batch, by parameter name."""
    batch = target.pad(sequences)
    classes = batch.ids if target.task == "causal-lm" else torch.tensor(labels, device=target.device)
    leaves = {name: target.parameters[name].detach().clone().requires_grad_() for name in names}
    with torch.enable_grad():
        loss = target.loss_with(leaves, batch.ids, batch.mask, classes)
        values = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, values, strict=True))
