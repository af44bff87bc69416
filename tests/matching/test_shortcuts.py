"""What the engine leaves out changes nothing: observed gradients as outer products, tokens that the loss never sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import oracle
from test_matcher import close, draw, kinds_and_precisions, observe
from torch import Tensor, nn

from conftest import TARGET_KINDS, small_target
from gradleak.matching import L1, Candidates, Cosine, Distance, Matcher, SquaredL2
from gradleak.matching import factors as factors_module
from gradleak.matching import reductions as sums
from gradleak.matching.low_rank import outer_products
from gradleak.matching.matcher import vanishing_parameters
from gradleak.matching.rule_check import check_rules
from gradleak.targets import Target, Task


@pytest.fixture
def always_outer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take outer products even where, as in models this small, they save nothing."""
    monkeypatch.setattr(factors_module, "MIN_SAVING", 0)


def random_matrix(rank: int, shape: tuple[int, int], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(rank, size, generator=generator, dtype=dtype) for size in shape)
    return left.T @ right


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_outer_products_sum_to_the_gradients_of_victims_of_any_rank(dtype: torch.dtype) -> None:
    gradients = torch.stack([random_matrix(rank, (160, 200), rank, dtype) for rank in (1, 12, 16, 28)])
    gradients = torch.cat([gradients, torch.zeros_like(gradients[:1])])
    found = outer_products(gradients)
    assert found is not None
    assert found.terms <= 48
    error = torch.linalg.matrix_norm(found.dense()[:, 0] - gradients)
    assert (error <= 20 * torch.finfo(dtype).eps * torch.linalg.matrix_norm(gradients)).all()


@pytest.mark.parametrize("change", ["noise", "pruned", "many tokens"])
def test_gradients_of_full_rank_stay_matrices(change: str) -> None:
    gradient = random_matrix(100 if change == "many tokens" else 8, (160, 200), 0)
    if change == "noise":
        gradient = gradient + 1e-4 * random_matrix(160, (160, 200), 1)
    if change == "pruned":
        gradient = torch.where(gradient.abs() < gradient.abs().median(), 0.0, gradient)
    low_rank = random_matrix(8, (160, 200), 2)
    assert outer_products(low_rank[None]) is not None
    assert outer_products(torch.stack([low_rank, gradient])) is None


@kinds_and_precisions
@pytest.mark.usefixtures("always_outer")
def test_distances_to_outer_products_equal_autograd(family: str, task: Task, dtype: torch.dtype) -> None:
    target = small_target(family, task, num_labels=3, dtype=dtype)
    observed = observe(target, victims=2)
    names = [n for n in observed[0] if n not in vanishing_parameters(target)]
    candidates = draw(target, (2, 3, 2, 6), seed=0)
    wrong = []
    for distance in (Cosine(), SquaredL2(), SquaredL2(normalised=True)):
        matcher = Matcher(target, observed, distance)
        assert all(matcher._observed[layer.value.weight].outer is not None for layer in target.layers)
        expected = oracle(target, observed, distance, candidates, names)
        if not close(matcher(candidates), expected, dtype):
            wrong.append(distance)
    assert not wrong


@pytest.mark.parametrize(("family", "task"), TARGET_KINDS, ids=["-".join(kind) for kind in TARGET_KINDS])
@pytest.mark.usefixtures("always_outer")
def test_gradients_towards_outer_products_equal_autograd(family: str, task: Task) -> None:
    target = small_target(family, task, num_labels=3, dtype=torch.float64)
    observed = observe(target, embeddings="words-frozen")
    names = [n for n in observed[0] if n not in vanishing_parameters(target)]
    base = draw(target, (1, 2, 2, 5), seed=1, soft=True, embedded=True)
    candidates = Candidates(base.inputs.requires_grad_(), base.mask, base.labels.requires_grad_())
    expected = oracle(target, observed, Cosine(), candidates, names)
    gradients = torch.autograd.grad(expected.sum(), list(candidates.leaves.values()))
    _, found = Matcher(target, observed, Cosine()).gradients(candidates)
    assert all(close(found[name], gradient, torch.float64) for name, gradient in zip(found, gradients, strict=True))


@pytest.mark.parametrize("distance", [Cosine(), SquaredL2(normalised=True), L1()], ids=repr)
@pytest.mark.usefixtures("always_outer")
def test_held_sequences_are_kept_as_outer_products(any_target: Target, distance: Distance) -> None:
    target = any_target.to(dtype=torch.float64)
    matcher = Matcher(target, observe(target, victims=2), distance)
    whole = draw(target, (2, 1, 3, 6), seed=4)
    last = whole.select_sequences(torch.tensor([2]))
    assert close(matcher.with_fixed_sequences(whole, 2)(last), matcher(whole), torch.float64)


def test_distances_over_entries_keep_matrices(bert: Target) -> None:
    matcher = Matcher(bert, observe(bert), L1())
    assert all(seen.outer is None for seen in matcher._observed.values())


def tokens_seen(target: Target, path: str, candidates: Candidates) -> int:
    """Return how many tokens of each sequence a layer gets while candidates are scored."""
    seen: list[int] = []
    module = target.model.get_submodule(path)
    handle = module.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0].shape[1]))
    matcher = Matcher(target, observe(target), Cosine())
    seen.clear()
    matcher(candidates)
    handle.remove()
    return max(seen)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_last_layer_computes_the_token_that_is_read(family: str) -> None:
    target = small_target(family)
    first, last = target.layers
    candidates = draw(target, (1, 3, 1, 6), seed=0)
    for projection in (last.attention_output, last.feed_forward_in, last.feed_forward_out):
        assert tokens_seen(target, projection.module, candidates) == 1
    for projection in (last.key, last.value, first.feed_forward_in):
        assert tokens_seen(target, projection.module, candidates) == 6


@pytest.mark.parametrize(
    ("family", "task"), [("albert", "classification"), ("gpt2", "classification"), ("gpt2", "causal-lm")]
)
def test_other_models_compute_all_tokens(family: str, task: Task) -> None:
    assert check_rules(small_target(family, task)).cls_token_only == ()


class MeanPooler(nn.Module):
    """Reads all tokens, in place of BERT's pooler."""

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(hidden.mean(dim=1))


class PairsOnly(nn.Module):
    """An activation that does not take a token alone."""

    def forward(self, hidden: Tensor) -> Tensor:
        if hidden.shape[1] < 2:
            raise RuntimeError("two tokens are needed")
        return torch.tanh(hidden)


@pytest.mark.parametrize("kind", [MeanPooler, PairsOnly])
def test_models_of_another_kind_compute_all_tokens(kind: type[nn.Module], bert: Target) -> None:
    model: Any = bert.to(dtype=torch.float64).model
    if kind is MeanPooler:
        model.bert.pooler = kind()
    else:
        model.bert.encoder.layer[-1].intermediate.intermediate_act_fn = kind()
    custom = Target(model, bert.tokenizer, bert.family, name="custom")
    assert check_rules(custom).cls_token_only == ()
    observed = observe(custom)
    matcher = Matcher(custom, observed, Cosine())
    candidates = draw(custom, (1, 3, 2, 6), seed=0)
    assert close(matcher(candidates), oracle(custom, observed, Cosine(), candidates, matcher.parameters), torch.float64)


@pytest.mark.parametrize("distance", [Cosine(), SquaredL2(normalised=True)], ids=repr)
def test_vectors_of_one_length_are_summed_together(
    any_target: Target, distance: Distance, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = any_target.to(dtype=torch.float64)
    matcher = Matcher(target, observe(target, victims=2), distance)
    base, tried = draw(target, (2, 1, 3, 6), seed=4), draw(target, (2, 5, 1, 6), seed=5)
    together: list[int] = []
    vector_sums = sums._vector_sums

    def counted(gradients: Any, seen: Any) -> list[dict[str, Tensor]]:
        together.append(len(seen))
        return vector_sums(gradients, seen)

    def held(matcher: Matcher) -> Tensor:
        return matcher.with_fixed_sequences(base, 1)(tried)

    monkeypatch.setattr(sums, "_vector_sums", counted)
    found = matcher(tried), held(matcher)
    vectors = [name for name in matcher.parameters if target.parameters[name].ndim == 1]
    lengths = {len(target.parameters[name]) for name in vectors}
    assert sum(together) > len(vectors) - len(lengths)
    monkeypatch.setattr(sums, "_summed_together", lambda whole, _distance: [[name] for name in whole])
    assert all(map(torch.equal, found, (matcher(tried), held(matcher))))
