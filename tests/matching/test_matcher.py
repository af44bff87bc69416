"""The engine against autograd: every distance, every family, values and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import distances_of, oracle
from torch import Tensor, nn

from conftest import SMALL, TARGET_KINDS, PassesAfter, small_target
from gradleak.errors import GradleakError
from gradleak.exchange import Deadline
from gradleak.federation import Client
from gradleak.matching import (
    L1,
    L2,
    L2L1,
    Candidates,
    Cosine,
    Distance,
    Matcher,
    SquaredL2,
    WrongSign,
    autograd_gradients,
    select_parameters,
)
from gradleak.matching import matcher as engine_module
from gradleak.matching import memory as memory_module
from gradleak.matching import reductions as sums_module
from gradleak.matching.distances import Sums
from gradleak.matching.memory import candidates_at_once
from gradleak.targets import Target, Task
from gradleak.targets.dropout import dropout_sites

DISTANCES: list[Distance] = [
    SquaredL2(),
    L2(),
    L1(),
    L2L1(alpha=0.01),
    L2L1(alpha=0.5, squared=False),
    Cosine(),
    WrongSign(),
    WrongSign(alpha=0.1),
    SquaredL2(kept_only=True),
    Cosine(kept_only=True),
    L2L1(kept_only=True),
    SquaredL2(normalised=True),
    L2L1(normalised=True),
    L1(normalised=True, kept_only=True),
]
DIFFERENTIATED: list[Distance] = [
    SquaredL2(),
    L2L1(),
    Cosine(),
    WrongSign(alpha=0.1),
    SquaredL2(normalised=True),
    L2(kept_only=True),
]
WHOLE = ("bert", "llama")
"""An encoder and a decoder that are tested in both precisions, and with batches of one; the others in float64 alone."""

kinds_and_precisions = pytest.mark.parametrize(
    ("family", "task", "dtype"),
    [
        *((*kind, torch.float64) for kind in TARGET_KINDS),
        *((*kind, torch.float32) for kind in TARGET_KINDS if kind[0] in WHOLE),
    ],
    ids=str,
)
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
TEXTS = ["the cat sat on a mat", "a big red dog", "the dog ran", "b c d e f g h"]


def observe(
    target: Target, victims: int = 1, *, embeddings: str = "trained", prune: bool = False
) -> list[dict[str, Tensor]]:
    """Return gradients of different private batches."""
    client = Client(target, embeddings=embeddings, seed=7)  # type: ignore[arg-type]
    rows = [client.update(TEXTS[v : v + 2]).gradient() for v in range(victims)]
    if prune:
        rows = [{k: torch.where(g.abs() < g.abs().median(), 0.0, g) for k, g in row.items()} for row in rows]
    return rows


def draw(
    target: Target, shape: tuple[int, int, int, int], seed: int, *, soft: bool = False, embedded: bool = False
) -> Candidates:
    """Return random candidates, the second sequence of each shorter than the first."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, len(target.word_embeddings), shape, generator=generator)
    mask = torch.ones(shape, dtype=torch.bool)
    mask[:, :, 1:, -2:] = False
    language = target.task == "causal-lm"
    labels = ids if language else torch.randint(target.num_labels, shape[:3], generator=generator)
    if soft:
        wide = (*labels.shape, target.num_labels)
        labels = torch.rand(wide, generator=generator, dtype=target.dtype).softmax(dim=-1)
    inputs = ids
    if embedded:
        width = target.word_embeddings.shape[1]
        inputs = torch.randn(*shape, width, generator=generator, dtype=target.dtype)
    return Candidates(inputs, mask, labels)


def batch_sizes(family: str) -> tuple[int, ...]:
    return (1, 3) if family in WHOLE else (3,)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    scale = expected.abs().max().clamp(min=1e-12)
    return bool(((found - expected).abs() <= TOLERANCE[dtype] * scale).all())


@kinds_and_precisions
def test_distances_of_token_candidates_equal_autograd(family: str, task: Task, dtype: torch.dtype) -> None:
    target = small_target(family, task, num_labels=3, dtype=dtype)
    sent = {prune: observe(target, victims=2, prune=prune) for prune in (False, True)}
    names = [n for n in sent[False][0] if n not in engine_module.vanishing_parameters(target)]
    wrong = []
    for batch in batch_sizes(family):
        candidates = draw(target, (2, 3, batch, 6), seed=batch)
        gradients = autograd_gradients(target, candidates, names)
        for distance in DISTANCES:
            observed = sent[distance.kept_only]
            found = Matcher(target, observed, distance)(candidates)
            expected = distances_of(gradients, observed, distance)
            if not close(found, expected, dtype):
                wrong.append((distance, batch, (found - expected).abs().max()))
    assert not wrong


@kinds_and_precisions
def test_gradients_by_embeddings_labels_and_masks_equal_autograd(family: str, task: Task, dtype: torch.dtype) -> None:
    target = small_target(family, task, num_labels=3, dtype=dtype)
    observed = observe(target, embeddings="words-frozen")
    names = [n for n in observed[0] if n not in engine_module.vanishing_parameters(target)]
    generator = torch.Generator().manual_seed(0)
    wrong = []
    for batch in batch_sizes(family):
        base = draw(target, (1, 2, batch, 5), seed=1, soft=True, embedded=True)
        masks = {
            site: torch.rand(1, 2, batch, *s.shape, generator=generator, dtype=dtype).requires_grad_()
            for site, s in dropout_sites(target, 5).items()
        }
        candidates = Candidates(base.inputs.requires_grad_(), base.mask, base.labels.requires_grad_(), masks)
        leaves = list(candidates.leaves.values())
        by_autograd = autograd_gradients(target, candidates, names)
        for distance in DIFFERENTIATED:
            distances = distances_of(by_autograd, observed, distance)
            expected = torch.autograd.grad(distances.sum(), leaves, retain_graph=True)
            matcher = Matcher(target, observed, distance)
            found, gradients = matcher.gradients(candidates)
            direct = torch.autograd.grad(matcher(candidates).sum(), leaves)
            wrong += [
                (distance, batch, name)
                for name, gradient, other in zip(candidates.leaves, expected, direct, strict=True)
                if not close(gradients[name], gradient, dtype) or not close(other, gradient, dtype)
            ]
            if not close(found, distances, dtype):
                wrong.append((distance, batch, "value"))
    assert not wrong


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_shape_of_call_equals_autograd(data: st.DataObject) -> None:
    family, task = data.draw(st.sampled_from(TARGET_KINDS))
    distance = data.draw(st.sampled_from(DISTANCES))
    heads = data.draw(st.sampled_from([1, 2, 4]))
    size = (
        {"n_head": heads}
        if family == "gpt2"
        else {"n_heads" if family == "distilbert" else "num_attention_heads": heads}
    )
    if "num_key_value_heads" in SMALL[family]:
        size["num_key_value_heads"] = max(1, heads // 2)
    target = small_target(family, task, num_labels=data.draw(st.integers(2, 4)), dtype=torch.float64, **size)
    shape = tuple(data.draw(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(4, 8))))
    observed = observe(target, victims=shape[0], prune=distance.kept_only)
    names = [n for n in observed[0] if n not in engine_module.vanishing_parameters(target)]
    candidates = draw(target, shape, seed=data.draw(st.integers(0, 99)), soft=data.draw(st.booleans()))
    found = Matcher(target, observed, distance)(candidates)
    assert close(found, oracle(target, observed, distance, candidates, names), torch.float64)


def test_the_private_batch_itself_is_nearest(any_target: Target) -> None:
    client = Client(any_target, embeddings="trained")
    tokens = any_target.encode(TEXTS[:2])
    labels = [0, 1] if any_target.task == "classification" else None
    observed = [client.update(TEXTS[:2], labels).gradient()]
    others = draw(any_target, (1, 20, 2, tokens.ids.shape[1]), seed=3)
    true_labels = tokens.ids if labels is None else torch.tensor(labels)
    truth = Candidates(tokens.ids[None, None], tokens.mask[None, None], true_labels[None, None])
    for distance in (SquaredL2(), Cosine(), L2L1()):
        matcher = Matcher(any_target, observed, distance)
        assert matcher(truth) < 1e-4 * matcher(others).min()


def test_parameters_are_selected_by_name(bert: Target) -> None:
    observed = observe(bert)[0]
    assert select_parameters(bert, observed, "all") == list(observed)
    assert select_parameters(bert, observed, "classifier") == ["classifier.weight", "classifier.bias"]
    with pytest.raises(GradleakError, match="use all or classifier"):
        select_parameters(bert, observed, "layers")


def names_of(target: Target, part: str) -> list[str]:
    """Return the parameters of a part of a model."""
    if part == "classifier":
        return select_parameters(target, target.parameters, "classifier")
    if part == "first layer":
        maps = [projection.module for projection in target.layers[0].projections]
        return [name for name in target.parameters if name.startswith(tuple(maps))]
    return [name for name in target.parameters if name not in target.embedding_parameters]


@pytest.mark.parametrize("part", ["classifier", "first layer", "all but embeddings"])
def test_a_selection_is_compared_alone(any_target: Target, part: str) -> None:
    target = any_target.to(dtype=torch.float64)
    observed = observe(target)
    names = names_of(target, part)
    if not names:  # GPT-2's output layer is tied to the word embedding, which has another name
        names = [f"{target.family.word_embedding}.weight"]
    candidates = draw(target, (1, 3, 2, 6), seed=0)
    compared = [n for n in names if n not in engine_module.vanishing_parameters(target)]
    found = Matcher(target, observed, Cosine(), names)(candidates)
    assert close(found, oracle(target, observed, Cosine(), candidates, compared), torch.float64)


def test_classifier_alone_needs_no_backward_pass_through_the_layers(bert: Target) -> None:
    observed = observe(bert)
    names = select_parameters(bert, observed[0], "classifier")
    matcher = Matcher(bert, observed, SquaredL2(), names)
    calls = []
    handle = bert.model.get_submodule("bert.encoder.layer.1.output.dense").register_forward_hook(
        lambda _module, _inputs, output: calls.append(output.requires_grad)
    )
    matcher(draw(bert, (1, 2, 1, 5), seed=0))
    handle.remove()
    assert calls
    assert not any(calls)


@pytest.mark.parametrize("distance", [Cosine(), L2L1(), SquaredL2(normalised=True)], ids=repr)
def test_replacing_one_sequence_equals_scoring_whole_batches(any_target: Target, distance: Distance) -> None:
    target = any_target.to(dtype=torch.float64)
    observed = observe(target, victims=2)
    matcher = Matcher(target, observed, distance)
    base = draw(target, (2, 1, 3, 6), seed=4)
    for sequence in range(3):
        new = draw(target, (2, 5, 1, 6), seed=5)

        def insert(old: Tensor, fresh: Tensor, at: int = sequence) -> Tensor:
            whole = old.expand(-1, 5, *old.shape[2:]).clone()
            whole[:, :, at] = fresh[:, :, 0]
            return whole

        whole = Candidates(
            insert(base.inputs, new.inputs), insert(base.mask, new.mask), insert(base.labels, new.labels)
        )
        held = matcher.with_fixed_sequences(base, sequence)
        assert close(held(new), matcher(whole), torch.float64)
    alone = draw(target, (2, 1, 1, 6), seed=6)
    assert close(matcher.with_fixed_sequences(alone, 0)(alone), matcher(alone), torch.float64)


def test_several_sequences_beside_fixed_ones_score_as_the_whole_batch(bert: Target) -> None:
    target = bert.to(dtype=torch.float64)
    matcher = Matcher(target, observe(target), Cosine())
    base, new = draw(target, (1, 1, 3, 6), seed=4), draw(target, (1, 5, 2, 6), seed=5)
    held = matcher.with_fixed_sequences(base, 0, 2)
    whole = [
        torch.stack([changed[:, :, 0], kept[:, :, 1].expand_as(changed[:, :, 0]), changed[:, :, 1]], dim=2)
        for changed, kept in ((new.inputs, base.inputs), (new.mask, base.mask), (new.labels, base.labels))
    ]
    assert close(held(new), matcher(Candidates(*whole)), torch.float64)


def test_splitting_into_parts_changes_nothing(bert: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    target = bert.to(dtype=torch.float64)
    observed = observe(target, victims=3)
    candidates = draw(target, (3, 7, 2, 6), seed=0)
    whole = Matcher(target, observed, Cosine())(candidates)
    soft = draw(target, (3, 7, 2, 6), seed=0, soft=True)
    soft = Candidates(soft.inputs, soft.mask, soft.labels.requires_grad_())
    direct = torch.autograd.grad(Matcher(target, observed, L2L1())(soft).sum(), soft.labels)
    for capacity in (1, 2, 5, 8, 100):
        monkeypatch.setattr(engine_module, "candidates_at_once", lambda *_, capacity=capacity: capacity)
        assert close(Matcher(target, observed, Cosine())(candidates), whole, torch.float64)
        _, gradients = Matcher(target, observed, L2L1()).gradients(soft)
        assert close(gradients["labels"], direct[0], torch.float64)


def test_scoring_keeps_no_graph(bert: Target) -> None:
    assert not Matcher(bert, observe(bert), Cosine())(draw(bert, (1, 2, 1, 5), seed=0)).requires_grad


def test_no_candidates_give_no_distances(bert: Target) -> None:
    assert Matcher(bert, observe(bert), Cosine())(draw(bert, (1, 0, 1, 5), seed=0)).shape == (1, 0)


def test_tensors_that_are_numerically_zero_are_left_out(bert: Target) -> None:
    observed = observe(bert)
    name = "bert.encoder.layer.0.output.dense.bias"
    silent = [dict(observed[0]) | {name: torch.full_like(observed[0][name], 1e-12)}]
    names = [n for n in observed[0] if n != name]
    candidates = draw(bert, (1, 3, 1, 5), seed=0)
    expected = Matcher(bert, observed, Cosine(), names)(candidates)
    assert close(Matcher(bert, silent, Cosine())(candidates), expected, torch.float32)


def test_key_biases_are_never_compared(bert: Target) -> None:
    matcher = Matcher(bert, observe(bert), Cosine())
    assert not [name for name in matcher.parameters if "key.bias" in name]


def test_words_need_token_candidates(bert: Target) -> None:
    with pytest.raises(GradleakError, match="token ids"):
        Matcher(bert, observe(bert), Cosine())(draw(bert, (1, 2, 1, 5), seed=0, embedded=True))


def test_an_update_without_the_parameter_says_so(bert: Target) -> None:
    observed = observe(bert, embeddings="frozen")
    with pytest.raises(GradleakError, match="word_embeddings"):
        Matcher(bert, observed, Cosine(), ["bert.embeddings.word_embeddings.weight"])


class Scale(nn.Module):
    """A layer type that no rule knows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.5, 1.5, width, dtype=torch.float64))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.factor


class Borrower(nn.Module):
    """A layer that also uses another layer's weight behind the rules' back."""

    def __init__(self, lender: nn.Linear, width: int) -> None:
        super().__init__()
        self.lender = [lender]
        self.scale = Scale(width)

    def forward(self, values: Tensor) -> Tensor:
        return self.scale(values) + torch.tanh(values @ self.lender[0].weight)


def test_layers_without_a_rule_fall_back_to_autograd(bert: Target) -> None:
    target = bert.to(dtype=torch.float64)
    model: Any = target.model
    model.dropout = Borrower(model.bert.pooler.dense, 16)
    custom = Target(model, target.tokenizer, target.family, name="custom")
    observed = observe(custom, victims=2)
    matcher = Matcher(custom, observed, Cosine())
    assert matcher.slow_parameters == ["bert.pooler.dense.weight", "dropout.scale.factor"]
    candidates = draw(custom, (2, 3, 2, 5), seed=0)
    assert close(
        matcher(candidates), oracle(custom, observed, Cosine(), candidates, list(matcher.parameters)), torch.float64
    )
    base = draw(custom, (2, 2, 2, 5), seed=1, embedded=True)
    names = [n for n in matcher.parameters if n not in custom.word_parameters]
    soft = Candidates(base.inputs.requires_grad_(), base.mask, base.labels)
    _, gradients = Matcher(custom, observed, Cosine(), names).gradients(soft)
    expected = torch.autograd.grad(oracle(custom, observed, Cosine(), soft, names).sum(), soft.inputs)
    assert close(gradients["inputs"], expected[0], torch.float64)


def test_entries_that_are_built_part_by_part_give_the_same_gradients(
    bert: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = bert.to(dtype=torch.float64)
    observed = observe(target, embeddings="frozen")
    base = draw(target, (1, 3, 2, 5), seed=1, embedded=True)
    candidates = Candidates(base.inputs.requires_grad_(), base.mask, base.labels)
    whole = Matcher(target, observed, L2L1()).gradients(candidates)
    monkeypatch.setitem(sums_module.MAX_ENTRIES_AT_ONCE, "cpu", 1)
    parts = Matcher(target, observed, L2L1()).gradients(candidates)
    assert close(parts[0], whole[0], torch.float64)
    assert close(parts[1]["inputs"], whole[1]["inputs"], torch.float64)


def test_memory_counts_what_grows_with_candidates_alone(bert: Target) -> None:
    one = Matcher(bert, observe(bert), Cosine())
    many = Matcher(bert, observe(bert, victims=3), Cosine())
    one(draw(bert, (1, 2, 1, 5), seed=0))
    many(draw(bert, (3, 2, 1, 5), seed=0))
    assert one._capacity.keys() == many._capacity.keys()
    small, large = (candidates_at_once(torch.device("cpu"), size, 1) for size in (1e12, 1e6))
    assert small == 1
    assert large > 100


def test_room_does_not_depend_on_how_many_there_are(bert: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    needed: list[float] = []
    monkeypatch.setattr(engine_module, "candidates_at_once", lambda _, bytes_each, __: needed.append(bytes_each) or 1)
    for victims, count in ((2, 8), (3, 5)):
        candidates = draw(bert, (victims, count, 2, 5), 0, soft=True, embedded=True)
        candidates.inputs.requires_grad_()
        candidates.labels.requires_grad_()
        Matcher(bert, observe(bert, victims), L1(), names_of(bert, "all but embeddings"))(candidates)
    assert needed[0] == needed[1]


def test_running_out_of_memory_halves_what_is_taken_at_once(bert: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    observed = observe(bert)
    candidates = draw(bert, (1, 9, 1, 5), seed=0)
    expected = Matcher(bert, observed, Cosine())(candidates)
    matcher = Matcher(bert, observed, Cosine())
    honest = matcher._distances

    def cramped(part: Candidates, victims: slice) -> Tensor:
        if part.shape[1] > 2:
            raise torch.OutOfMemoryError
        return honest(part, victims)

    monkeypatch.setattr(matcher, "_distances", cramped)
    assert close(matcher(candidates), expected, torch.float32)

    def never(part: Candidates, victims: slice) -> Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(matcher, "_distances", never)
    with pytest.raises(GradleakError, match="does not fit"):
        matcher(candidates)


def test_some_victims_have_the_distances_they_have_among_others(bert: Target) -> None:
    matcher = Matcher(bert, observe(bert, victims=3), Cosine())
    candidates = draw(bert, (3, 4, 2, 5), seed=0)
    together = matcher(candidates)
    for chosen in ([0], [2], [2, 0], [0, 1, 2]):
        part = Candidates(*(tensor[chosen] for tensor in (candidates.inputs, candidates.mask, candidates.labels)))
        assert close(matcher.select(chosen)(part), together[chosen], torch.float32)


def test_another_distance_to_the_same_gradients_has_recordings_of_its_own(
    bert: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replay(cache: Any, kind: Any, function: Any, candidates: Candidates) -> Any:
        return vars(cache).setdefault("functions", {}).setdefault(kind, function)(candidates)  # the first of a kind

    monkeypatch.setattr(engine_module.GraphCache, "__call__", replay)
    observed, candidates = observe(bert), draw(bert, (1, 3, 1, 5), seed=0)
    matcher = Matcher(bert, observed, Cosine())
    other = matcher.with_distance(SquaredL2())
    for one, distance in ((matcher, Cosine()), (other, SquaredL2()), (matcher, Cosine())):
        assert close(one(candidates), Matcher(bert, observed, distance)(candidates), torch.float32)


def test_a_distance_that_needs_entries_needs_a_matcher_of_its_own(bert: Target) -> None:
    with pytest.raises(GradleakError, match="make another one for this distance"):
        Matcher(bert, observe(bert), Cosine()).with_distance(L1())


# --- deadlines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asks", [0, 1, 2])
def test_what_there_was_no_time_for_is_infinitely_far(bert: Target, asks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(memory_module.QUICK_PASS, "cpu", 1.0)  # one candidate after the other
    matcher = Matcher(bert, observe(bert, victims=2), Cosine())
    candidates = draw(bert, (2, 5, 2, 6), seed=1)
    expected = matcher(candidates)
    found = matcher.until(PassesAfter(asks))(candidates)
    compared = found.isfinite()
    assert compared[:, 0].all(), "the first of each victim is always compared"
    assert compared.sum() == {0: 2, 1: 2, 2: 3}[asks]
    assert torch.allclose(found[compared], expected[compared])
    assert torch.allclose(matcher.until(Deadline(1e6))(candidates), expected)
    assert torch.allclose(matcher.until(PassesAfter(0))(candidates.select(slice(None), slice(0, 1))), expected[:, :1])


def test_what_there_was_no_time_for_has_gradient_zero(bert: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(memory_module.QUICK_PASS, "cpu", 1.0)
    matcher = Matcher(bert, observe(bert, victims=2, embeddings="frozen"), SquaredL2())
    candidates = draw(bert, (2, 2, 1, 6), seed=1, embedded=True)
    candidates.inputs.requires_grad_()
    expected, gradients = matcher.gradients(candidates)
    found, some = matcher.until(PassesAfter(1)).gradients(candidates)
    assert found.isfinite().tolist() == [[True, True], [False, False]]
    assert torch.allclose(found[0], expected[0])
    assert close(some["inputs"][0], gradients["inputs"][0], bert.dtype)
    assert not some["inputs"][1].any()


# --- a distance of one's own ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Angle(Distance):
    """The mean angle between tensors: the example of the README."""

    def __call__(self, sums: Sums) -> Tensor:
        cosine = sums.inner / (sums.candidate * sums.observed).sqrt()
        return (cosine.clamp(-1, 1).acos() * sums.included).sum(dim=0) / sums.included.sum(dim=0)


def test_a_distance_is_a_formula_over_sums(bert: Target) -> None:
    target = bert.to(dtype=torch.float64)
    observed, candidates = observe(target, victims=2), draw(target, (2, 3, 2, 5), seed=0)
    matcher = Matcher(target, observed, Angle())
    gradients = autograd_gradients(target, candidates, matcher.parameters)
    cosines = [
        torch.cosine_similarity(
            gradients[name].flatten(2), torch.stack([g[name] for g in observed]).flatten(1)[:, None], 2
        )
        for name in matcher.parameters
    ]
    assert close(matcher(candidates), torch.stack(cosines).clamp(-1, 1).acos().mean(dim=0), torch.float64)
