"""Test the rest of an update against texts that its first layer shows, without the dropout masks of later layers.

Under dropout a reading is proven by the first layer's query, key and value gradients. An honest client computed the
rest from the same texts, and some of what follows from that needs no masks:

- no gradient of a weight matrix is empty or has holes;
- the gradient of a linear map has at most as many dimensions as the batch has tokens, and as many where all tokens
  count: in all layers but the last;
- x = γ ⊙ x̂ + β out of a LayerNorm has Σ (x − β) / γ = 0, so that dW (1/γ) = db Σ β/γ for every map that is fed so;
- the rows of the first maps give their outputs' gradients, whose sum is the gradient of the bias;
- the classes' errors p − y sum to zero, and so do the classifier's gradients over classes;
- later maps are fed what the model makes of the texts. Dropout changes that, but not so much that other texts would
  suit it as well.

What contradicts takes `verified` away. What agrees is no proof by itself: two tensors changed alike can pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from gradleak.attacks.sieve.forward import captured_inputs
from gradleak.attacks.sieve.subspace import ROUNDING
from gradleak.targets import Projection, Target

HOLES = 0.05
"""Share of zeros in a matrix from which on entries were taken out; an honest gradient has none outside empty rows."""

EXCESS = 1e-5
"""What lies beyond the tokens' dimensions, as a share of the largest singular value: honest gradients leave 4e-8."""

AGREES = 1e-4
"""Relative difference of two ways to the same number: rounding leaves 1e-6."""

ONE_LIKE_OTHERS, ALL_LIKE_OTHERS = 0.9, 0.62
"""What the texts leave outside a map's row space, as a share of what random words leave: of one map, and on average.
The right texts leave 0.05 to 0.65 of one map and less than 0.45 on average, other sentences 0.65 to 1.1."""

DRAWS = 4
"""How often random words are drawn in place of the texts."""


def contradictions(
    target: Target, gradient: Mapping[str, Tensor], rows: Tensor, sentences: Sequence[Sequence[int]], floor: float
) -> list[str]:
    """Return what in an update contradicts texts that its first layer shows, a phrase each; empty if nothing does.

    Args:
        target: the model, a classifier.
        gradient: gradients by name.
        rows: what the first maps were fed, all of it, but for a common factor `[tokens, width]`.
        sentences: the texts, one for each occurrence.
        floor: of the first maps' row space: what rounding leaves, as a share of the largest singular value.
    """
    tests = (
        _with_holes(target, gradient),
        _of_other_rank(target, gradient, len(rows), floor),
        _against_layer_norm(target, gradient, floor),
        _against_biases(target, gradient, rows, floor),
        _against_softmax(target, gradient, floor),
        _of_other_texts(target, gradient, sentences),
    )
    return list(dict.fromkeys(phrase for test in tests for phrase in test))


def _matrices(target: Target, gradient: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n: t for n, t in gradient.items() if t.ndim == 2 and n not in target.embedding_parameters}


def _token_maps(target: Target, gradient: Mapping[str, Tensor]) -> Iterator[Projection]:
    """Yield the maps after the first layer's queries, keys and values that every token of a batch leaves a trace in.

    Not those of the last layer, of which a classifier takes one token.
    """
    for number, layer in enumerate(target.layers[:-1]):
        attention = (layer.query, layer.value) if number else ()
        yield from (
            part
            for part in (*attention, layer.attention_output, layer.feed_forward_in)
            if part.weight in gradient and bool(part.weight_in(gradient).any())
        )


def _with_holes(target: Target, gradient: Mapping[str, Tensor]) -> Iterator[str]:
    for name, matrix in _matrices(target, gradient).items():
        zeros = matrix == 0
        lines = ~zeros.all(dim=1), ~zeros.all(dim=0)  # ReLU and unused rows leave whole lines empty
        inner = zeros[lines[0]][:, lines[1]]
        if not inner.numel():
            yield f"{name} is all zero"
        elif float(inner.double().mean()) > HOLES:
            yield f"entries of {name} were taken out"


def _of_other_rank(target: Target, gradient: Mapping[str, Tensor], tokens: int, floor: float) -> Iterator[str]:
    excess = max(EXCESS, 30 * floor)
    feed_forward = {layer.feed_forward_in.module for layer in target.layers}  # queries may be weak in single tokens
    for part in _token_maps(target, gradient):
        values = _sketched(part.weight_in(gradient), tokens)[1]
        if len(values) <= tokens:
            continue
        if float(values[tokens]) > excess:
            yield f"{part.weight} holds more than {tokens} tokens, or noise"
        elif part.module in feed_forward and float(values[tokens - 1]) < 0.1 * ROUNDING:
            yield f"{part.weight} holds fewer than {tokens} tokens"


def _sketched(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return a basis `[width, rank]` of a matrix's strongest rows, and its first few singular values, by a sketch."""
    generator = torch.Generator().manual_seed(0)
    count = min(rank + 8, *matrix.shape)
    picture = torch.randn(len(matrix), count, generator=generator, dtype=torch.float64).to(matrix.device)
    left, values, _ = torch.linalg.svd(matrix.double().T @ picture, full_matrices=False)
    return left[:, :rank], values / values[0].clamp(min=1e-300)


def _against_layer_norm(target: Target, gradient: Mapping[str, Tensor], floor: float) -> Iterator[str]:
    norms = _norms_before(target)
    parts = [part for layer in target.layers for part in vars(layer).values() if part.module in norms]
    for part in parts:
        if part.weight not in gradient or part.bias not in gradient:
            continue
        norm = norms[part.module]
        inverse = 1.0 / norm.weight.detach().double()
        weight, bias = part.weight_in(gradient).double(), part.bias_in(gradient).double()
        left, right = weight @ inverse, bias * (norm.bias.detach().double() @ inverse)
        size = (weight * inverse).norm() + right.norm()
        if size > 0 and float((left - right).norm() / size) > max(AGREES, 30 * floor):
            yield f"{part.weight} does not fit its bias"


def _norms_before(target: Target) -> dict[str, nn.LayerNorm]:
    """Return the LayerNorm whose output a linear map is fed, with no dropout between them, by the map's path."""
    made: dict[int, nn.LayerNorm] = {}
    kept: list[Tensor] = []  # a tensor that is gone may leave its address to another
    found: dict[str, nn.LayerNorm] = {}
    paths = {part.module for layer in target.layers for part in vars(layer).values()}

    def note(module: nn.Module, _: object, output: Tensor) -> None:
        assert isinstance(module, nn.LayerNorm)
        kept.append(output)
        made[output.data_ptr()] = module

    handles = [
        module.register_forward_hook(note) for module in target.model.modules() if isinstance(module, nn.LayerNorm)
    ]
    for path in paths:

        def look(_: nn.Module, inputs: tuple[Tensor, ...], path: str = path) -> None:
            kept.append(inputs[0])
            if inputs[0].data_ptr() in made:
                found[path] = made[inputs[0].data_ptr()]

        handles.append(target.model.get_submodule(path).register_forward_pre_hook(look))
    devices = [target.device] if target.device.type == "cuda" else []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            target.model.train()
            ids = torch.zeros(1, 4, dtype=torch.long, device=target.device)
            target.family.logits(target.model, target.embed(ids), torch.ones_like(ids, dtype=torch.bool), target.task)
    finally:
        target.model.eval()
        for handle in handles:
            handle.remove()
    return found


def _against_biases(target: Target, gradient: Mapping[str, Tensor], rows: Tensor, floor: float) -> Iterator[str]:
    """Compare the first maps' biases with the sums of their outputs' gradients over tokens, up to a common factor."""
    layer = target.layers[0]
    parts = [part for part in (layer.query, layer.value) if {part.weight, part.bias} <= gradient.keys()]
    if not parts or rows.shape[1] != layer.query.weight_in(gradient).shape[1]:
        return
    inverse = torch.linalg.pinv(rows)
    sums = torch.cat([(part.weight_in(gradient).double() @ inverse).sum(dim=1) for part in parts])
    biases = torch.cat([part.bias_in(gradient).double() for part in parts])
    factor = (sums @ biases) / (sums @ sums).clamp(min=1e-300)  # 1 − rate, by which rows were scaled
    if float((biases - factor * sums).norm() / biases.norm().clamp(min=1e-300)) > max(AGREES, 300 * floor):
        yield "the first layer's biases do not fit its weights"


def _against_softmax(target: Target, gradient: Mapping[str, Tensor], floor: float) -> Iterator[str]:
    for name in (f"{target.classifier}.weight", f"{target.classifier}.bias"):
        part = gradient.get(name)
        if part is not None and target.num_labels > 1 and part.any():
            share = float(part.double().sum(dim=0).norm() / part.double().norm())
            if share > max(AGREES, 30 * floor):
                yield f"{name} is not the gradient of a softmax over {target.num_labels} classes"


def _of_other_texts(
    target: Target, gradient: Mapping[str, Tensor], sentences: Sequence[Sequence[int]]
) -> Iterator[str]:
    """Compare what the texts leave outside the later maps' row spaces with what random words leave."""
    tokens = sum(map(len, sentences))
    parts = [part for part in _token_maps(target, gradient) if tokens < part.weight_in(gradient).shape[1]]
    if not parts:
        return
    spaces = {part.module: _sketched(part.weight_in(gradient), tokens)[0] for part in parts}
    own = _outside(target, sentences, spaces)
    generator = torch.Generator().manual_seed(0)
    others = [_outside(target, _random_words(target, sentences, generator), spaces) for _ in range(DRAWS)]
    ratios = {path: share / max(sum(draw[path] for draw in others) / DRAWS, 1e-12) for path, share in own.items()}
    worst = max(ratios, key=lambda path: ratios[path])
    if ratios[worst] > ONE_LIKE_OTHERS:
        yield f"{worst} was fed other texts"
    elif sum(ratios.values()) / len(ratios) > ALL_LIKE_OTHERS:
        yield "the later layers were fed other texts"


def _outside(target: Target, sentences: Sequence[Sequence[int]], spaces: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the mean share of what maps are fed, without dropout, that lies outside given spaces."""
    totals = dict.fromkeys(spaces, 0.0)
    for sentence in sentences:
        ids = torch.tensor([list(sentence)], device=target.device)
        for path, fed in captured_inputs(target, ids, list(spaces)).items():
            vectors = torch.nn.functional.normalize(fed[0].double(), dim=1)
            totals[path] += float(len(vectors) - (vectors @ spaces[path]).square().sum())
    return totals


def _random_words(
    target: Target, sentences: Sequence[Sequence[int]], generator: torch.Generator
) -> list[tuple[int, ...]]:
    """Return texts of the same lengths made of random words."""
    before, after = target.special_tokens
    possible = sorted(set(range(len(target.word_embeddings))) - set(target.impossible_ids))
    drawn = []
    for sentence in sentences:
        places = len(sentence) - len(before) - len(after)
        words = torch.randint(len(possible), (places,), generator=generator).tolist()
        drawn.append((*before, *(possible[word] for word in words), *after))
    return drawn
