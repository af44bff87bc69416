"""One forward and backward pass over all candidates, giving every parameter's gradient as factors.

`Matcher`, `per_candidate.py` and `rule_check.py` call `trace`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradleak.matching.candidates import Candidates
from gradleak.matching.factors import Factor, LookupRows, combine
from gradleak.matching.rules import RULES, GradRule, LayerCall
from gradleak.targets import Target
from gradleak.targets.dropout import dropout_masks
from gradleak.targets.hooks import Hook, forward_hooks


@dataclass(frozen=True)
class _ForwardRecord:
    """A layer's input and output in the forward pass, before backprops are known."""

    module: nn.Module
    activations: Tensor
    outputs: Tensor


def trace(
    target: Target,
    candidates: Candidates,
    names: Collection[str],
    *,
    weight: float,
    cls_token_only: Collection[str] = (),
) -> dict[str, list[Factor]]:
    """Return the candidates' gradients of those named parameters that rules cover.

    Sequences do not interact, so the gradient of the summed loss with respect to a layer's outputs holds each
    sequence's own backprops; the rules turn these and the layer's activations into parameter gradients.

    Args:
        target: the model.
        candidates: the guesses; the factors are differentiable where their tensors require a gradient.
        names: the parameters to compute.
        weight: weight of each sequence's loss.
        cls_token_only: paths of layers that are given the first token of each sequence only. Their output is broadcast
            to all tokens, which is right for the first; the loss must not depend on the others.
    """
    rules = _layers_with_rules(target, names)
    words = target.word_parameters & set(names) if candidates.are_tokens else frozenset()
    flat = candidates.flat()
    records: list[_ForwardRecord] = []
    with torch.enable_grad():
        embeddings = flat.embeddings(target)
        if words:
            embeddings.requires_grad_()
        first_token_layers = {target.model.get_submodule(path): _first_token for path in cls_token_only}
        recorders = dict.fromkeys(rules, _recorder(records, len(embeddings)))
        with forward_hooks(recorders, first_token_layers), dropout_masks(target, flat.dropout):
            losses = target.sequence_losses(embeddings, flat.mask, flat.labels)
        wanted = [record.outputs for record in records] + ([embeddings] if words else [])
        backprops = torch.autograd.grad(
            losses.sum() * weight,
            wanted,
            create_graph=bool(candidates.leaves),
            allow_unused=True,
            materialize_grads=True,
        )
    with torch.set_grad_enabled(bool(candidates.leaves)):
        factors = _apply_rules(target, rules, _calls(records, backprops, candidates.shape), names)
        for name in words:
            by_token = backprops[-1].reshape(*candidates.shape[:2], -1, embeddings.shape[-1])
            looked_up = LookupRows(candidates.inputs.flatten(2), by_token, len(target.word_embeddings))
            factors.setdefault(name, []).append(looked_up)
        return {name: combine(parts) for name, parts in factors.items()}


def _layers_with_rules(target: Target, names: Collection[str]) -> dict[nn.Module, GradRule]:
    """Return the rules of the layers that own a named parameter and have a rule."""
    wanted = set(names)
    return {
        module: rule
        for module, own in target.parameter_owners.items()
        if not wanted.isdisjoint(own.values())
        for rule in [next((RULES[kind] for kind in type(module).__mro__ if kind in RULES), None)]
        if rule is not None
    }


def _recorder(records: list[_ForwardRecord], sequences: int) -> Hook:
    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if len(output) == 1 and sequences > 1:  # position tables are looked up once for all sequences
            output = output.expand(sequences, *output.shape[1:])
        if not output.requires_grad:  # the first recorded layer: backpropagation ends here
            output = output.detach().requires_grad_()
        records.append(_ForwardRecord(module, inputs[0], output))
        return output

    return record


def _first_token(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0][:, :1].contiguous(), *inputs[1:])


def _calls(
    records: Sequence[_ForwardRecord], backprops: Sequence[Tensor], shape: tuple[int, int, int]
) -> Iterator[tuple[nn.Module, LayerCall]]:
    for record, backprop in zip(records, backprops, strict=False):
        activations = record.activations if torch.is_grad_enabled() else record.activations.detach()
        yield record.module, LayerCall(activations, record.outputs, backprop, shape)


def _apply_rules(
    target: Target,
    rules: Mapping[nn.Module, GradRule],
    calls: Iterable[tuple[nn.Module, LayerCall]],
    names: Collection[str],
) -> dict[str, list[Factor]]:
    factors: dict[str, list[Factor]] = {}
    for module, call in calls:
        for own_name, factor in rules[module](module, call).items():
            name = target.parameter_owners[module][own_name]
            if name in names:
                factors.setdefault(name, []).append(factor)
    return factors
