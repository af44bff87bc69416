"""A language model's last tokens: they enter no layer that the loss sees, but they are predicted.

The prefix before a text's last token is a leaf of the forest. Its coefficients are the gradients of the maps' outputs
there, and they depend on nothing but the gradient of the last hidden state, w · (p W − W_y): a linear
function of row y of the output layer, which is compared for the whole vocabulary at once. Other texts do not interfere,
and neither the weight w nor the number of texts need be known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks.forest.prefix_inputs import Prefix
from gradleak.attacks.forest.selection import SolvedForest
from gradleak.attacks.forest.sites import InputSite
from gradleak.targets import Target
from gradleak.targets.hooks import forward_hooks

EQUATIONS = 128
"""Sites are taken from the last one backwards until they give at least so many equations for a token. Where they give
more, the vocabulary is searched by the strongest of them."""

FEW, CLEAR = 48, 2e-3
"""So many equations are tried first; their token is taken if its coefficients are so near to those observed."""

SHORTLIST = 64
"""How many of the most likely tokens are compared again, in float64 and by all equations."""


def trailing_sites(sites: Sequence[InputSite], equations: int = EQUATIONS) -> list[int]:
    """Return the indices of the last sites that give enough equations, in order."""
    chosen: list[int] = []
    for number in reversed(range(len(sites))):
        if sites[number].reduction is None and not sites[number].tokenwise:
            chosen.insert(0, number)
        if sum(sites[index].height for index in chosen) >= equations:
            break
    return chosen


def with_last_tokens(target: Target, sites: Sequence[InputSite], forest: SolvedForest) -> list[Prefix]:
    """Return the forest's texts, each with the last token that the coefficients of its last prefix tell."""
    numbers = trailing_sites(sites)
    if not numbers or not forest.coefficients:
        return [forest.prefixes[leaf] for leaf in forest.leaves]
    own, at = [sites[number] for number in numbers], [forest.sites.index(number) for number in numbers]
    texts = []
    for leaf in forest.leaves:
        prefix = forest.prefixes[leaf]
        token, _ = last_token(target, own, prefix, [forest.coefficients[place][leaf] for place in at])
        texts.append((*prefix, token))
    return texts


def last_token(
    target: Target, sites: Sequence[InputSite], prefix: Prefix, observed: Sequence[Tensor]
) -> tuple[int, float]:
    """Return the token that follows a text's last prefix, and the distance of its coefficients from those observed.

    Args:
        target: a causal language model.
        sites: the sites whose coefficients are compared, from the last one backwards as far as needed.
        prefix: the text without its last token.
        observed: by site, the prefix's coefficients `[rows]`.
    """
    few = len(trailing_sites(sites, FEW))
    found = _nearest(target, sites[-few:], prefix, torch.cat(list(observed[-few:])))
    if found[1] > CLEAR and few < len(sites):
        found = _nearest(target, sites, prefix, torch.cat(list(observed)))
    return found


def _nearest(target: Target, sites: Sequence[InputSite], prefix: Prefix, observed: Tensor) -> tuple[int, float]:
    """Return the token whose coefficients `[equations]` at these sites are nearest to those observed."""
    hidden, leaves = traced(target, sites, prefix)
    width = hidden.shape[0]
    slopes = torch.autograd.grad(
        hidden, leaves, torch.eye(width, device=hidden.device, dtype=hidden.dtype), is_grads_batched=True
    )
    maps = [part for site in sites for part in site.maps]
    columns = []
    for part, slope in zip(maps, slopes, strict=True):
        columns.append(part.coefficients_of(slope.reshape(width, -1)))
    effect = torch.cat(columns, dim=1)  # [width, equations]
    head: Any = target.model.get_submodule(target.classifier)
    table = head.weight.detach()
    with torch.no_grad():
        expected = torch.softmax(head(hidden.detach()).double(), dim=-1).to(table) @ table

    def likeness(rows: Tensor, among: Tensor) -> Tensor:
        predicted = (expected.to(rows) - rows) @ effect[:, among].to(rows)  # [rows, equations]
        return torch.nn.functional.cosine_similarity(predicted, observed[among].to(rows)[None], dim=1)

    strongest = observed.abs().topk(min(EQUATIONS, len(observed))).indices
    near = likeness(table, strongest).topk(min(SHORTLIST, len(table))).indices  # then by all equations, in float64
    exact = likeness(table[near].double(), torch.arange(len(observed), device=near.device))
    best = int(exact.argmax())
    return int(near[best]), float((1 - exact[best].square()).clamp(min=0).sqrt())


def traced(target: Target, sites: Sequence[InputSite], prefix: Prefix) -> tuple[Tensor, list[Tensor]]:
    """Return the last hidden state of a prefix `[width]`, differentiable by zeros added to the maps' outputs."""
    from transformers import DynamicCache

    body: Any = target.model.get_submodule(target.family.body)  # type: ignore[attr-defined]
    scale = target.family.embedding_scale(target.config)
    embeddings = target.embed(torch.tensor([prefix], device=target.device)) * scale
    cache = DynamicCache(config=target.config)
    if len(prefix) > 1:
        with torch.no_grad():
            body(inputs_embeds=embeddings[:, :-1], past_key_values=cache, use_cache=True)
    added: dict[str, Tensor] = {}

    def hook_of(path: str) -> Any:  # noqa: ANN401 - a hook
        def hook(module: torch.nn.Module, inputs: Any, output: Tensor) -> Tensor:  # noqa: ANN401
            added[path] = torch.zeros_like(output).requires_grad_()
            return output + added[path]

        return hook

    paths = dict.fromkeys(part.path for site in sites for part in site.maps)
    hooks = {target.model.get_submodule(path): hook_of(path) for path in paths}
    with torch.enable_grad(), forward_hooks(after=hooks):
        options = {"past_key_values": cache, "use_cache": True} if len(prefix) > 1 else {"use_cache": False}
        states = body(inputs_embeds=embeddings[:, -1:], **options).last_hidden_state
    return states[0, -1], [added[part.path] for site in sites for part in site.maps]
