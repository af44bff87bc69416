"""Test the rest of an update against texts that its first layer reveals, without the dropout masks of later layers.

Under dropout a reading is proven by the first layer's query, key and value gradients. An honest client computed the
rest from the same texts, and some consequences of that can be tested without the masks:

- no gradient of a weight matrix is empty or has single entries removed;
- the gradient of a linear map has at most as many dimensions as the batch has tokens, and exactly as many if all tokens
  contribute: in all layers but the last;
- x = γ ⊙ x̂ + β out of a LayerNorm has Σ (x − β) / γ = 0, hence dW (1/γ) = db Σ β/γ for every map with such inputs;
- the rows of the first maps determine their output gradients, whose sum is the gradient of the bias;
- the classes' errors p − y sum to zero, and so do the classifier's gradients over classes;
- the inputs of later maps are activations of the texts. Dropout changes them, but not so much that other texts would
  fit as well.

A contradiction revokes `verified`. Agreement alone is no proof: two tensors changed alike can pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from gradleak.leakage.perturbation import MAPS_PRUNED, weight_matrices
from gradleak.leakage.row_space import ROUNDING
from gradleak.targets import Projection, Target
from gradleak.targets.hooks import captured_calls, captured_inputs

EXCESS = 1e-5
"""Largest singular value beyond the tokens' dimensions, as a fraction of the largest: honest gradients leave 4e-8."""

AGREES = 1e-4
"""Relative difference of two ways to compute a number: rounding leaves 1e-6."""

UNDERFLOWED = 16.0
"""Rounding leaves half as many zeros as entries of the smallest size where their density is even, and up to ten times
as many in the queries of a short text, whose density has a peak at zero; pruning leaves hundreds of times as many."""

ONE_LIKE_OTHERS, ALL_LIKE_OTHERS = 0.9, 0.62
"""What the texts leave outside a map's row space, relative to random words: of one map, and on average. The correct
texts leave 0.05 to 0.65 of one map and less than 0.45 on average, other sentences 0.65 to 1.1."""

DRAWS = 4
"""How often random words are drawn in place of the texts."""


def contradictions(
    target: Target, gradient: Mapping[str, Tensor], rows: Tensor, sentences: Sequence[Sequence[int]], floor: float
) -> list[str]:
    """Return what in an update contradicts texts that its first layer reveals, a phrase each; empty if nothing does.

    Args:
        target: the model, a classifier.
        gradient: gradients by name.
        rows: all inputs of the first maps, up to a common factor `[tokens, width]`.
        sentences: the texts, one for each occurrence.
        floor: the noise floor of the first maps' row space, as a fraction of the largest singular value.
    """
    tests = (
        _removed_entries(target, gradient),
        _wrong_rank(target, gradient, len(rows), floor),
        _against_layer_norm(target, gradient, floor),
        _against_biases(target, gradient, rows, floor),
        _against_softmax(target, gradient, floor),
        _other_texts(target, gradient, sentences),
    )
    return list(dict.fromkeys(phrase for test in tests for phrase in test))


def _token_maps(target: Target, gradient: Mapping[str, Tensor]) -> Iterator[Projection]:
    """Yield the maps after the first layer's queries, keys and values to whose gradient every token contributes.

    Those of the last layer are left out: a classifier uses one token of it.
    """
    for number, layer in enumerate(target.layers[:-1]):
        attention = (layer.query, layer.value) if number else ()
        yield from (
            part
            for part in (*attention, layer.attention_output, layer.feed_forward_in)
            if part.weight in gradient and bool(part.weight_in(gradient).any())
        )


def _removed_entries(target: Target, gradient: Mapping[str, Tensor]) -> Iterator[str]:
    for name, matrix in weight_matrices(target, gradient).items():
        zeros = matrix == 0
        lines = ~zeros.all(dim=1), ~zeros.all(dim=0)  # inactive ReLU units and unused rows leave whole lines empty
        inner = zeros[lines[0]][:, lines[1]]
        if not inner.numel():
            yield f"{name} is all zero"
        elif float(inner.double().mean()) > MAPS_PRUNED and not _underflowed(matrix):
            yield f"entries of {name} were taken out"


def _underflowed(matrix: Tensor) -> bool:
    """Return whether rounding to a grid explains the zeros of a matrix: many entries have its smallest size as well.

    Entries within half a step of zero become zero, those within a step and a half a step. Without a grid hardly two
    entries share the smallest size.
    """
    sizes = matrix[matrix != 0].abs()
    return int((matrix == 0).sum()) <= UNDERFLOWED * int((sizes == sizes.min()).sum())


def _wrong_rank(target: Target, gradient: Mapping[str, Tensor], tokens: int, floor: float) -> Iterator[str]:
    excess = max(EXCESS, 30 * floor)
    # some tokens hardly contribute to queries, so only these maps may be said to lack tokens
    feed_forward = {layer.feed_forward_in.module for layer in target.layers}
    for part in _token_maps(target, gradient):
        values = _sketched(part.weight_in(gradient), tokens)[1]
        if len(values) <= tokens:
            continue
        if float(values[tokens]) > excess:
            yield f"{part.weight} holds more than {tokens} tokens, or noise"
        elif part.module in feed_forward and float(values[tokens - 1]) < 0.1 * ROUNDING:
            yield f"{part.weight} holds fewer than {tokens} tokens"


def _sketched(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return a basis `[width, rank]` of a matrix's dominant row space and its first singular values, by a sketch."""
    generator = torch.Generator().manual_seed(0)
    count = min(rank + 8, *matrix.shape)
    sketch = torch.randn(len(matrix), count, generator=generator, dtype=torch.float64).to(matrix.device)
    left, values, _ = torch.linalg.svd(matrix.double().T @ sketch, full_matrices=False)
    return left[:, :rank], values / values[0].clamp(min=1e-300)


def _against_layer_norm(target: Target, gradient: Mapping[str, Tensor], floor: float) -> Iterator[str]:
    norms = _norms_before(target)
    parts = [part for layer in target.layers for part in layer.projections if part.module in norms]
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
    """Return the LayerNorm whose output is the input of a linear map, without dropout between, by the map's path."""
    outputs: dict[int, nn.LayerNorm] = {}  # by address, which is not reused while the calls keep the tensors alive
    found: dict[str, nn.LayerNorm] = {}
    maps = {part.module for layer in target.layers for part in layer.projections}
    norms = [path for path, module in target.model.named_modules() if isinstance(module, nn.LayerNorm)]
    devices = [target.device] if target.device.type == "cuda" else []
    capture = captured_calls(target, [*norms, *maps], outputs=True)
    with capture as calls, torch.no_grad(), torch.random.fork_rng(devices=devices):
        target.model.train()
        try:
            ids = torch.zeros(1, 4, dtype=torch.long, device=target.device)
            target.logits(target.embed(ids), torch.ones_like(ids, dtype=torch.bool))
        finally:
            target.model.eval()
    for call in calls:
        if isinstance(call.module, nn.LayerNorm) and call.output is not None:
            outputs[call.output.data_ptr()] = call.module
        elif call.inputs.data_ptr() in outputs:
            found[call.path] = outputs[call.inputs.data_ptr()]
    return found


def _against_biases(target: Target, gradient: Mapping[str, Tensor], rows: Tensor, floor: float) -> Iterator[str]:
    """Compare the first maps' bias gradients with the sums of their output gradients over tokens, up to a factor."""
    layer = target.layers[0]
    parts = [part for part in (layer.query, layer.value) if {part.weight, part.bias} <= gradient.keys()]
    if not parts or rows.shape[1] != layer.query.weight_in(gradient).shape[1]:
        return
    inverse = torch.linalg.pinv(rows)
    sums = torch.cat([(part.weight_in(gradient).double() @ inverse).sum(dim=1) for part in parts])
    biases = torch.cat([part.bias_in(gradient).double() for part in parts])
    factor = (sums @ biases) / (sums @ sums).clamp(min=1e-300)  # 1 − rate: dropout scales rows by its inverse
    if float((biases - factor * sums).norm() / biases.norm().clamp(min=1e-300)) > max(AGREES, 300 * floor):
        yield "the first layer's biases do not fit its weights"


def _against_softmax(target: Target, gradient: Mapping[str, Tensor], floor: float) -> Iterator[str]:
    for name in (target.classifier_weight, target.classifier_bias):
        part = gradient.get(name)
        if part is not None and target.num_labels > 1 and part.any():
            share = float(part.double().sum(dim=0).norm() / part.double().norm())
            if share > max(AGREES, 30 * floor):
                yield f"{name} is not the gradient of a softmax over {target.num_labels} classes"


def _other_texts(target: Target, gradient: Mapping[str, Tensor], sentences: Sequence[Sequence[int]]) -> Iterator[str]:
    """Compare what the texts' activations leave outside the later maps' row spaces with what random words leave."""
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
    """Return the total energy of maps' inputs, computed without dropout and normalised, outside given spaces."""
    totals = dict.fromkeys(spaces, 0.0)
    for sentence in sentences:
        ids = torch.tensor([list(sentence)], device=target.device)
        for path, activations in captured_inputs(target, ids, list(spaces)).items():
            vectors = torch.nn.functional.normalize(activations[0].double(), dim=1)
            totals[path] += float(len(vectors) - (vectors @ spaces[path]).square().sum())
    return totals


def _random_words(
    target: Target, sentences: Sequence[Sequence[int]], generator: torch.Generator
) -> list[tuple[int, ...]]:
    """Return texts of random words with the same lengths."""
    before, after = target.special_tokens
    possible = sorted(set(range(len(target.word_embeddings))) - set(target.impossible_ids))
    drawn = []
    for sentence in sentences:
        places = len(sentence) - len(before) - len(after)
        words = torch.randint(len(possible), (places,), generator=generator).tolist()
        drawn.append((*before, *(possible[word] for word in words), *after))
    return drawn
