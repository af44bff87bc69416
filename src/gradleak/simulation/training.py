"""Local training of a client: mini-batches, torch's optimisers, mixed precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from gradleak.errors import GradleakError, unknown_name
from gradleak.exchange import FedAvg, Precision
from gradleak.targets import Target, Tokens

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FIRST_SCALE = 2.0**16  # of the loss in fp16, as torch.amp.GradScaler starts


@dataclass(frozen=True)
class Batch:
    """Token ids and labels of some texts."""

    tokens: Tokens
    labels: Tensor

    def select(self, rows: Tensor) -> Batch:
        """Return the texts at these rows."""
        return Batch(Tokens(self.tokens.ids[rows], self.tokens.mask[rows]), self.labels[rows])


def check_precision(precision: str, device: torch.device) -> None:
    """Raise a GradleakError unless the device can train in this precision."""
    if precision not in get_args(Precision):
        raise unknown_name("precision", precision, get_args(Precision))
    if precision == "fp32":
        return
    weight = torch.ones(2, 2, device=device, requires_grad=True)
    try:
        with mixed_precision(precision, device):
            product = weight @ weight
        torch.autograd.grad(product.sum(), weight)
    except RuntimeError:
        product = weight
    if product.dtype != DTYPES[precision]:
        raise GradleakError(
            f"the {device.type.upper()} here cannot train in {precision}; give precision fp32 or another device"
        )


def check_batch(fedavg: FedAvg, texts: int) -> None:
    """Raise a GradleakError if a mini-batch is larger than the client's data."""
    if fedavg.batch is not None and fedavg.batch > texts:
        size = f"{texts} text{'' if texts == 1 else 's'}"
        raise GradleakError(f"batch={fedavg.batch} of FedAvg is larger than the client's data: {size}")


def mixed_precision(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context of a precision; nothing changes for fp32."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, dtype=DTYPES[precision])


def gradient(target: Target, batch: Batch, names: Sequence[str], precision: str = "fp32") -> dict[str, Tensor]:
    """Return the gradient of a batch's mean loss by parameter name; zeros for parameters without influence.

    In fp16 the loss is scaled up, and the scale is halved until no gradient overflows.
    """
    leaves = _leaves(target, names)
    with mixed_precision(precision, target.device):
        loss = _loss(target, leaves, batch)
    if precision == "fp16":
        slopes = _scaled_gradient(loss, leaves)
    else:
        slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if slope is None else slope
        for (name, leaf), slope in zip(leaves.items(), slopes, strict=True)
    }


def local_difference(
    target: Target,
    batch: Batch,
    names: Sequence[str],
    fedavg: FedAvg,
    stream: torch.Generator,
    precision: str = "fp32",
    on_step: Callable[[Mapping[str, Tensor]], None] | None = None,
) -> dict[str, Tensor]:
    """Train as the protocol says, and return the weights after minus the weights before.

    Args:
        target: the global model, which stays as it is.
        batch: all texts of the client.
        names: the trained parameters; all others are frozen.
        fedavg: the protocol.
        stream: draws the order of the texts, if the protocol shuffles them.
        precision: of the forward and backward passes.
        on_step: called before each step with the weights, whose `grad` is what the optimiser will use.
    """
    leaves = _leaves(target, names)
    count = len(batch.labels)
    total = fedavg.num_steps(count)
    if fedavg.warmup >= total:
        raise GradleakError(f"warmup={fedavg.warmup} leaves none of {total} steps at the full rate; give fewer")
    optimizer = make_optimizer(fedavg, list(leaves.values()))
    schedule = LambdaLR(optimizer, lambda step: fedavg.rate_factor(step, total))
    scaler = torch.amp.GradScaler(target.device.type, init_scale=FIRST_SCALE, enabled=precision == "fp16")
    skipped = 0
    for micro_batches in step_batches(fedavg, count, stream):
        optimizer.zero_grad()
        for rows in micro_batches:
            with mixed_precision(precision, target.device):
                loss = _loss(target, leaves, batch.select(rows.to(target.device)))
            scaler.scale(loss / len(micro_batches)).backward()  # type: ignore[no-untyped-call]
        if fedavg.clip:
            scaler.unscale_(optimizer)
            clip_grad_norm_(leaves.values(), fedavg.clip)
        if on_step is not None:
            on_step(leaves)
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() < scale:  # the gradient overflowed: the step was skipped, and its rate is used again
            skipped += 1
        else:
            schedule.step()
    if skipped == total:
        raise GradleakError(f"all {total} steps overflowed in fp16 and were skipped; give more steps or precision bf16")
    return {name: leaf.detach() - target.parameters[name].detach() for name, leaf in leaves.items()}


def make_optimizer(fedavg: FedAvg, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """Return torch's optimiser with the protocol's settings."""
    if fedavg.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=fedavg.lr, momentum=fedavg.momentum, weight_decay=fedavg.weight_decay)
    kind = torch.optim.Adam if fedavg.optimizer == "adam" else torch.optim.AdamW
    return kind(
        parameters,
        lr=fedavg.lr,
        betas=(fedavg.beta1, fedavg.beta2),
        eps=fedavg.eps,
        weight_decay=fedavg.weight_decay,
    )


def step_batches(fedavg: FedAvg, count: int, stream: torch.Generator) -> Iterator[Sequence[Tensor]]:
    """Yield the mini-batches of each step, as row numbers of the client's texts."""
    size = fedavg.batch or count
    if fedavg.epochs is None:
        needed = fedavg.num_steps(count) * fedavg.accumulate * size
        passes = [_order(fedavg, count, stream) for _ in range(0, needed, count)]
        for step in torch.cat(passes)[:needed].view(-1, fedavg.accumulate, size):
            yield step.unbind()
        return
    for _ in range(fedavg.epochs):
        batches = torch.split(_order(fedavg, count, stream), size)
        for start in range(0, len(batches), fedavg.accumulate):
            yield batches[start : start + fedavg.accumulate]


def _order(fedavg: FedAvg, count: int, stream: torch.Generator) -> Tensor:
    return torch.randperm(count, generator=stream) if fedavg.shuffle else torch.arange(count)


def _leaves(target: Target, names: Sequence[str]) -> dict[str, Tensor]:
    return {name: target.parameters[name].detach().clone().requires_grad_() for name in names}


def _loss(target: Target, leaves: Mapping[str, Tensor], batch: Batch) -> Tensor:
    frozen = {name: parameter.detach() for name, parameter in target.parameters.items() if name not in leaves}
    return target.loss_with({**frozen, **leaves}, batch.tokens.ids, batch.tokens.mask, batch.labels)


def _scaled_gradient(loss: Tensor, leaves: Mapping[str, Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradient through a loss that is scaled up as far as fp16 allows."""
    scale = FIRST_SCALE
    while scale >= 1:
        slopes = torch.autograd.grad(loss * scale, list(leaves.values()), allow_unused=True, retain_graph=True)
        if all(bool(slope.isfinite().all()) for slope in slopes if slope is not None):
            return tuple(None if slope is None else slope / scale for slope in slopes)
        scale /= 2
    raise GradleakError("the gradient overflows in fp16 whatever the loss scale; give precision bf16 or fp32")
