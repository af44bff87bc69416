from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from conftest import ALL_KINDS, FAMILY_NAMES, TARGET_KINDS, small_target
from gradleak.errors import GradleakError
from gradleak.exchange import Origin, Update
from gradleak.federation import Client, FedAvg
from gradleak.targets import Target, Task, family_of
from gradleak.targets.dropout import dropout_masks

TEXTS = ["the cat sat on a big red mat .", "dog ran", "a big cat", "red , red dog", "the mat"]
LABELS = [1, 0, 0, 1, 1]

every_kind = pytest.mark.parametrize(("family", "task"), TARGET_KINDS)


def twin_of(target: Target) -> Any:
    """Return a copy of the model that is trained the ordinary way, with Hugging Face's own attention and loss."""
    model = copy.deepcopy(target.model).requires_grad_()
    model.set_attn_implementation("eager")
    return model


def twins_precision(family: str) -> torch.dtype:
    """Return the precision in which a twin is exact: Hugging Face's rotary models compute softmax in float32."""
    return torch.float32 if family_of(family).rotary else torch.float64


def plain_loss(model: Any, target: Target, texts: Sequence[str], labels: Sequence[int]) -> Tensor:
    tokens = target.encode(texts)
    if target.task == "classification":
        return model(input_ids=tokens.ids, attention_mask=tokens.mask.long(), labels=torch.tensor(labels)).loss
    # Hugging Face weighs every token alike, a batch of gradleak every text: one text at a time they agree.
    rows = [target.encode([text]).ids for text in texts]
    return torch.stack([model(input_ids=ids, labels=ids).loss for ids in rows]).mean()


def plain_gradients(target: Target, texts: Sequence[str] = TEXTS, labels: Sequence[int] = LABELS) -> dict[str, Tensor]:
    model = twin_of(target)
    plain_loss(model, target, texts, labels).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_tensors_close(found: Update, expected: dict[str, Tensor], rtol: float, atol: float = 1e-10) -> None:
    assert found.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_close(found.tensors[name], tensor, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def snapshot(target: Target) -> dict[str, Any]:
    return {
        "weights": {name: parameter.clone() for name, parameter in target.parameters.items()},
        "modes": {name: module.training for name, module in target.model.named_modules()},
        "requires": {name: parameter.requires_grad for name, parameter in target.parameters.items()},
        "grads": {name: parameter.grad for name, parameter in target.parameters.items()},
        "same": {name: id(parameter) for name, parameter in target.parameters.items()},
    }


def assert_unchanged(target: Target, before: dict[str, Any]) -> None:
    after = snapshot(target)
    weights = before.pop("weights")
    assert all(torch.equal(weights[name], weight) for name, weight in after.pop("weights").items())
    assert after == before


# --- FedSGD --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "task"), ALL_KINDS)
def test_fedsgd_sends_the_gradient_that_plain_autograd_gives(family: str, task: Task) -> None:
    target = small_target(family, task, dtype=twins_precision(family))
    update = Client(target, embeddings="trained").update(TEXTS, LABELS)
    assert update.kind == "gradient"
    assert update.origin == Origin.of(target)
    rounding = 1e-5 if task == "causal-lm" else 1e-9  # Hugging Face computes that loss in float32
    rounding = 1e-4 if target.dtype == torch.float32 else rounding
    assert_tensors_close(update, plain_gradients(target), rtol=rounding, atol=rounding / 10)


@every_kind
@pytest.mark.parametrize("fedavg", [None, FedAvg(steps=1, lr=0.1)], ids=["fedsgd", "fedavg"])
def test_frozen_embeddings_are_left_out_and_nothing_else_changes(
    family: str, task: Task, fedavg: FedAvg | None
) -> None:
    target = small_target(family, task, dtype=torch.float64)
    whole = Client(target, embeddings="trained", fedavg=fedavg).update(TEXTS, LABELS)
    assert list(whole.tensors) == list(target.parameters)
    for setting, hidden in (("frozen", target.embedding_parameters), ("words-frozen", target.word_parameters)):
        client = Client(target, embeddings=setting, fedavg=fedavg)
        expected = {name: tensor for name, tensor in whole.tensors.items() if name not in hidden}
        assert client.sent_parameters == list(expected)
        assert_tensors_close(client.update(TEXTS, LABELS), expected, rtol=1e-12)


def test_embeddings_are_frozen_and_dropout_is_off_unless_asked_for(bert: Target) -> None:
    client = Client(bert)
    assert (client.embeddings, client.dropout, client.fedavg) == ("frozen", False, None)
    assert not client.update(TEXTS, LABELS).tensors.keys() & bert.embedding_parameters


def test_a_batchs_gradient_is_the_mean_of_its_texts_gradients(any_target: Target) -> None:
    any_target.to(dtype=torch.float64)
    client = Client(any_target, embeddings="trained")
    alone = [client.update([text], [label]).tensors for text, label in zip(TEXTS, LABELS, strict=True)]
    expected = {name: torch.stack([one[name] for one in alone]).mean(dim=0) for name in alone[0]}
    assert_tensors_close(client.update(TEXTS, LABELS), expected, rtol=1e-9)


def test_an_update_lets_nobody_reach_back_into_the_graph(any_target: Target) -> None:
    for fedavg in (None, FedAvg(steps=2, lr=0.1)):
        update = Client(any_target, embeddings="trained", fedavg=fedavg).update(TEXTS, LABELS)
        assert all(t.grad_fn is None and not t.requires_grad for t in update.tensors.values())


# --- FedAvg --------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_step_of_fedavg_is_minus_the_rate_times_the_gradient(family: str, task: Task, dtype: torch.dtype) -> None:
    target = small_target(family, task, dtype=dtype)
    rate = 0.05
    gradient = Client(target, embeddings="trained").update(TEXTS, LABELS)
    update = Client(target, embeddings="trained", fedavg=FedAvg(steps=1, lr=rate)).update(TEXTS, LABELS)
    assert (update.kind, update.learning_rate, update.steps) == ("difference", rate, 1)
    for name, slope in gradient.tensors.items():
        rounding = torch.finfo(dtype).eps * target.parameters[name].abs().max().item()
        assert_close(update.tensors[name], -rate * slope, rtol=0, atol=2 * rounding)
        assert_close(update.gradient()[name], slope, rtol=0, atol=2 * rounding / rate)


@pytest.mark.parametrize(("family", "embeddings"), [*zip(FAMILY_NAMES, cycle(["trained", "frozen"]))])
def test_several_steps_equal_a_loop_of_sgd_whose_batches_wrap_around(family: str, embeddings: Any) -> None:
    target = small_target(family, dtype=twins_precision(family))
    fedavg = FedAvg(steps=4, lr=0.1, batch=2)
    client = Client(target, embeddings=embeddings, fedavg=fedavg)
    model = twin_of(target)
    trained = {name: p for name, p in model.named_parameters() if name in client.sent_parameters}
    before = {name: parameter.detach().clone() for name, parameter in trained.items()}
    optimizer = torch.optim.SGD(trained.values(), lr=fedavg.lr)
    for rows in ([0, 1], [2, 3], [4, 0], [1, 2]):
        optimizer.zero_grad()
        plain_loss(model, target, [TEXTS[row] for row in rows], [LABELS[row] for row in rows]).backward()
        optimizer.step()
    expected = {name: parameter.detach() - before[name] for name, parameter in trained.items()}
    rtol, atol = (1e-4, 1e-6) if target.dtype == torch.float32 else (1e-8, 1e-10)
    assert_tensors_close(client.update(TEXTS, LABELS), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("batch", [None, len(TEXTS)])
def test_all_texts_are_in_every_step_unless_a_batch_is_given(batch: int | None) -> None:
    target = small_target("bert", dtype=torch.float64)
    update = Client(target, fedavg=FedAvg(steps=3, lr=0.1, batch=batch)).update(TEXTS, LABELS)
    reordered = [3, 1, 4, 0, 2]
    again = Client(target, fedavg=FedAvg(steps=3, lr=0.1)).update(
        [TEXTS[row] for row in reordered], [LABELS[row] for row in reordered]
    )
    assert_tensors_close(update, dict(again.tensors), rtol=1e-8)


@every_kind
def test_the_gradient_read_from_fedavg_nears_the_true_one_as_the_rate_falls(family: str, task: Task) -> None:
    target = small_target(family, task, dtype=torch.float64)
    truth = Client(target).update(TEXTS, LABELS).tensors
    errors = []
    for rate in (1e-2, 1e-3, 1e-4):
        estimate = Client(target, fedavg=FedAvg(steps=4, lr=rate)).update(TEXTS, LABELS).gradient()
        errors.append(max((estimate[name] - slope).abs().max().item() for name, slope in truth.items()))
    assert errors[0] > 5 * errors[1] > 25 * errors[2]


@pytest.mark.parametrize(
    "arguments",
    [
        {"steps": 0, "lr": 0.1},
        {"steps": 1, "lr": 0.0},
        {"steps": 1, "lr": -1.0},
        {"steps": 1, "lr": float("nan")},
        {"steps": 1, "lr": 0.1, "batch": 0},
    ],
    ids=str,
)
def test_local_training_that_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(GradleakError, match="FedAvg needs steps of at least 1, lr above 0 and batch of at least 1"):
        FedAvg(**arguments)


def test_an_unknown_embeddings_setting_says_what_is_near(bert: Target) -> None:
    with pytest.raises(GradleakError, match="unknown embeddings setting 'word-frozen'; did you mean 'words-frozen'"):
        Client(bert, embeddings="word-frozen")  # type: ignore[arg-type]


# --- the target stays as it is -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("fedavg", [None, FedAvg(steps=2, lr=0.1)], ids=["fedsgd", "fedavg"])
def test_a_target_is_not_changed_by_its_clients(any_target: Target, dropout: bool, fedavg: FedAvg | None) -> None:
    before = snapshot(any_target)
    Client(any_target, dropout=dropout, embeddings="trained", fedavg=fedavg).update(TEXTS, LABELS)
    assert_unchanged(any_target, before)


def test_a_target_is_not_changed_by_a_client_that_fails(bert: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    before, state = snapshot(bert), torch.get_rng_state()
    calls = []
    plain = bert.loss_with

    def fail_later(*arguments: Any) -> Tensor:
        calls.append(bert.model.training)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return plain(*arguments)

    monkeypatch.setattr(bert, "loss_with", fail_later)
    with pytest.raises(RuntimeError, match="out of memory"):
        Client(bert, dropout=True, fedavg=FedAvg(steps=3, lr=0.1)).update(TEXTS, LABELS)
    assert calls == [True, True], "dropout was on when it failed"
    assert_unchanged(bert, before)
    assert torch.equal(torch.get_rng_state(), state)


# --- dropout -------------------------------------------------------------------------------------------------------


def differ(left: Update, right: Update) -> bool:
    return max((left.tensors[name] - right.tensors[name]).abs().max().item() for name in left.tensors) > 1e-4


@every_kind
@pytest.mark.parametrize("fedavg", [None, FedAvg(steps=2, lr=0.1)], ids=["fedsgd", "fedavg"])
def test_dropout_comes_from_the_clients_seed_and_never_twice_the_same(
    family: str, task: Task, fedavg: FedAvg | None
) -> None:
    target = small_target(family, task)
    quiet = Client(target, fedavg=fedavg).update(TEXTS, LABELS)
    client = Client(target, dropout=True, fedavg=fedavg, seed=3)
    first, second = client.update(TEXTS, LABELS), client.update(TEXTS, LABELS)
    torch.rand(7)  # the global stream moves on; the client's does not care
    again = Client(target, dropout=True, fedavg=fedavg, seed=3).update(TEXTS, LABELS)
    other = Client(target, dropout=True, fedavg=fedavg, seed=4).update(TEXTS, LABELS)
    assert all(torch.equal(first.tensors[name], again.tensors[name]) for name in first.tensors)
    assert differ(first, quiet)
    assert differ(first, second)
    assert differ(first, other)


def test_every_local_step_has_dropout_masks_of_its_own() -> None:
    target = small_target("bert", dtype=torch.float64)
    one = Client(target, dropout=True, fedavg=FedAvg(steps=1, lr=1e-6)).update(TEXTS, LABELS)
    two = Client(target, dropout=True, fedavg=FedAvg(steps=2, lr=1e-6)).update(TEXTS, LABELS)
    first = one.tensors["classifier.weight"]
    assert ((two.tensors["classifier.weight"] - 2 * first).abs() / first.abs()).max() > 0.01


def test_dropout_at_rates_of_zero_changes_nothing() -> None:
    target = small_target("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, dtype=torch.float64)
    on = Client(target, dropout=True).update(TEXTS, LABELS)
    off = Client(target).update(TEXTS, LABELS)
    assert all(torch.equal(on.tensors[name], off.tensors[name]) for name in off.tensors)


@pytest.mark.parametrize(
    "family", sorted(set(FAMILY_NAMES) - {"albert", "mpnet", "roberta"})
)  # they use a module twice
def test_an_update_with_dropout_is_the_gradient_under_the_masks_that_were_drawn(family: str) -> None:
    target = small_target(family, dtype=torch.float64)
    masks: dict[str, Tensor] = {}
    handles = [
        target.model.get_submodule(path).register_forward_hook(
            lambda module, inputs, output, path=path: masks.__setitem__(path, (output != 0).double())
        )
        for path in target.dropouts
    ]
    update = Client(target, dropout=True, embeddings="trained").update(TEXTS, LABELS)
    for handle in handles:
        handle.remove()
    leaves = {name: parameter.detach().clone().requires_grad_() for name, parameter in target.parameters.items()}
    tokens = target.encode(TEXTS)
    with dropout_masks(target, masks):
        loss = target.loss_with(leaves, tokens.ids, tokens.mask, torch.tensor(LABELS))
    slopes = torch.autograd.grad(loss, list(leaves.values()))
    assert_tensors_close(update, dict(zip(leaves, slopes, strict=True)), rtol=1e-9)


@pytest.mark.parametrize("dropout", [False, True])
def test_the_global_random_state_is_left_alone(any_target: Target, dropout: bool) -> None:
    before = torch.get_rng_state()
    Client(any_target, dropout=dropout).update(TEXTS)
    assert torch.equal(torch.get_rng_state(), before)


# --- labels --------------------------------------------------------------------------------------------------------


def test_labels_that_are_not_given_are_drawn_from_the_seed() -> None:
    target = small_target("bert", num_labels=3)
    for seed in range(3):
        drawn = Client(target, seed=seed).draw_labels(len(TEXTS))
        expected = Client(target, seed=seed).update(TEXTS, drawn)
        assert_tensors_close(Client(target, seed=seed).update(TEXTS), dict(expected.tensors), rtol=0, atol=0)
    many = Client(target, seed=0).draw_labels(300)
    assert {many.count(label) > 60 for label in range(3)} == {True}
    assert set(many) == {0, 1, 2}
    assert many != Client(target, seed=1).draw_labels(300)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0], "there are 2 texts and 1 labels"),
        ([], "there are 2 texts and 0 labels"),
        ([0, 1, 0], "there are 2 texts and 3 labels"),
        ([0, 2], "label 2 is not one of 2"),
        ([-1, 0], "label -1 is not one of 2"),
    ],
)
def test_labels_that_do_not_fit_are_refused(bert: Target, labels: list[int], message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        Client(bert).update(["the cat", "dog"], labels)


def test_a_language_model_needs_no_labels() -> None:
    target = small_target("gpt2", "causal-lm")
    update = Client(target, embeddings="trained").update(TEXTS)
    assert "transformer.wte.weight" in update.tensors
    update.check(target)


def test_a_text_from_which_a_language_model_learns_nothing_is_refused() -> None:
    client = Client(small_target("gpt2", "causal-lm"))
    for texts in (["dog"], ["the cat", "dog"], ["dog", "the cat"]):
        with pytest.raises(GradleakError, match=f"text {texts.index('dog') + 1} .*token"):
            client.update(texts)


@pytest.mark.parametrize("texts", [[], "the cat", [""], ["cat " * 50]], ids=["none", "str", "empty", "long"])
def test_texts_that_cannot_be_encoded_are_refused(bert: Target, texts: Any) -> None:
    with pytest.raises(GradleakError, match="text"):
        Client(bert).update(texts)
