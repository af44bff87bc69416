"""One forward and backward pass over all candidates at once, and every parameter's gradient as factors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.matching.candidates import Candidates
from gradleak.matching.factors import Factor, Rows, combine
from gradleak.matching.rules import RULES, Rule, Use
from gradleak.targets import Target
from gradleak.targets.dropout import dropout_masks


@dataclass(frozen=True)
class _Visit:
    module: nn.Module
    inputs: Tensor
    outputs: Tensor


def trace(
    target: Target,
    candidates: Candidates,
    names: Collection[str],
    *,
    weight: float,
    cls_token_only: Collection[str] = (),
) -> dict[str, list[Factor]]:
    """Return the candidates' gradients of the named parameters, as far as rules cover them.

    Sequences do not see each other, so the gradient of the summed loss with respect to a layer's outputs holds every
    sequence's own; the rules turn those, with the layer's inputs, into parameter gradients.

    Args:
        target: the model.
        candidates: the guesses; where their tensors require a gradient, so do the factors.
        names: the parameters that are wanted.
        weight: what each sequence's loss counts for.
        cls_token_only: paths of layers that see the first token of each sequence alone. Their output is added to all
            tokens; this is right for the first, and the loss must not depend on the others.
    """
    watched = _layers_with_rules(target, names)
    words = target.word_parameters & set(names) if candidates.are_tokens else frozenset()
    flat = candidates.flat()
    visits: list[_Visit] = []
    with torch.enable_grad():
        embeddings = flat.embeddings(target)
        if words:
            embeddings.requires_grad_()
        handles = [module.register_forward_hook(_recorder(visits, len(embeddings))) for module in watched]
        handles += [target.model.get_submodule(path).register_forward_pre_hook(_first_token) for path in cls_token_only]
        try:
            with dropout_masks(target, flat.dropout):
                losses = target.sequence_losses(embeddings, flat.mask, flat.labels)
        finally:
            for handle in handles:
                handle.remove()
        wanted = [visit.outputs for visit in visits] + ([embeddings] if words else [])
        gradients = torch.autograd.grad(
            losses.sum() * weight,
            wanted,
            create_graph=bool(candidates.leaves),
            allow_unused=True,
            materialize_grads=True,
        )
    with torch.set_grad_enabled(bool(candidates.leaves)):
        factors = _apply_rules(target, watched, visits, gradients, candidates.shape, names)
        for name in words:
            by_token = gradients[-1].reshape(*candidates.shape[:2], -1, embeddings.shape[-1])
            looked_up = Rows(candidates.inputs.flatten(2), by_token, len(target.word_embeddings))
            factors.setdefault(name, []).append(looked_up)
        return {name: combine(parts) for name, parts in factors.items()}


def _layers_with_rules(target: Target, names: Collection[str]) -> dict[nn.Module, Rule]:
    """Return the layers that own a wanted parameter and have a rule, each once."""
    wanted = set(names)
    return {
        module: rule
        for module, own in target.parameter_owners.items()
        if not wanted.isdisjoint(own.values())
        for rule in [next((RULES[kind] for kind in type(module).__mro__ if kind in RULES), None)]
        if rule is not None
    }


def _recorder(visits: list[_Visit], sequences: int) -> Any:  # noqa: ANN401
    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if len(output) == 1 and sequences > 1:  # position tables are looked up once for all sequences
            output = output.expand(sequences, *output.shape[1:])
        if not output.requires_grad:  # the first watched layer: backpropagation ends here
            output = output.detach().requires_grad_()
        visits.append(_Visit(module, inputs[0], output))
        return output

    return record


def _first_token(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0][:, :1].contiguous(), *inputs[1:])


def _apply_rules(
    target: Target,
    watched: dict[nn.Module, Rule],
    visits: list[_Visit],
    gradients: tuple[Tensor, ...],
    shape: tuple[int, int, int],
    names: Collection[str],
) -> dict[str, list[Factor]]:
    factors: dict[str, list[Factor]] = {}
    for visit, gradient in zip(visits, gradients, strict=False):
        inputs = visit.inputs if torch.is_grad_enabled() else visit.inputs.detach()
        use = Use(inputs, visit.outputs, gradient, shape)
        for own_name, factor in watched[visit.module](visit.module, use).items():
            name = target.parameter_owners[visit.module][own_name]
            if name in names:
                factors.setdefault(name, []).append(factor)
    return factors
