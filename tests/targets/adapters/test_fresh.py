"""Fresh adapters: PEFT's names and layers, the same weights in every process, B zero until it is trained."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from math import sqrt

import pytest
import torch
from peft import get_peft_model_state_dict, set_peft_model_state_dict

from conftest import ALL_KINDS, small_target
from gradleak.errors import GradleakError
from gradleak.targets import Lora, Target, Task, load_target
from gradleak.targets.adapters.fresh import with_lora
from gradleak.targets.dropout import set_dropout
from gradleak.targets.hooks import captured_inputs
from peft_twin import peft_twin

every_kind = pytest.mark.parametrize(("family", "task"), ALL_KINDS)


def adapted(family: str = "bert", task: Task = "classification", seed: int = 0, **settings: object) -> Target:
    return with_lora(small_target(family, task, seed=seed), Lora(**{"r": 2, "rounds": 0, **settings}))  # type: ignore[arg-type]


@every_kind
def test_names_of_trained_parameters_are_those_that_peft_saves(family: str, task: Task) -> None:
    # PEFT itself cannot put all-linear on DistilBERT, whose pre_classifier it trains as a whole.
    targets = "q_lin+lin1" if family == "distilbert" else "all-linear"
    target = adapted(family, task, targets=targets)
    twin = peft_twin(target, "all-linear" if targets == "all-linear" else targets.split("+"))
    assert sorted(target.trained_parameters) == sorted(get_peft_model_state_dict(twin))


@every_kind
def test_an_adapted_target_gives_the_logits_of_peft(family: str, task: Task) -> None:
    target = adapted(family, task, rounds=2, alpha=3.0)
    assert target.adapter is not None
    assert target.adapter.lora is not None
    twin = peft_twin(target, target.adapter.lora.target_list, lora_alpha=3)
    set_peft_model_state_dict(twin, {name: target.parameters[name] for name in target.trained_parameters})
    tokens = target.encode(["the cat sat on a mat", "dog ran"])
    expected = twin(tokens.ids, attention_mask=tokens.mask.long()).logits
    found = target.logits(target.embed(tokens.ids), tokens.mask)
    keep = tokens.mask if task == "causal-lm" else ...
    torch.testing.assert_close(found[keep], expected[keep], rtol=1e-5, atol=1e-6)


@every_kind
def test_base_weights_keep_names_and_values(family: str, task: Task) -> None:
    plain = small_target(family, task).parameters
    target = adapted(family, task)
    base = {name: value for name, value in target.parameters.items() if name not in target.trained_parameters}
    heads = {name.removeprefix("base_model.model.") for name in target.trained_parameters if "lora_" not in name}
    assert base.keys() == plain.keys() - heads
    assert all(torch.equal(value, plain[name]) for name, value in base.items())


def test_a_is_drawn_from_the_model_seed_and_b_is_zero() -> None:
    first, again, other = adapted(seed=3), adapted(seed=3), adapted(seed=4)
    assert first.fingerprint == again.fingerprint
    for module in first.adapters:
        a, b = module.a_in(first.parameters), module.b_in(first.parameters)
        assert not b.any()
        assert a.abs().max() <= 1 / sqrt(a.shape[1]) < 1.3 * a.abs().max()
        assert not torch.equal(a, module.a_in(other.parameters))


def test_the_state_of_the_callers_random_numbers_stays() -> None:
    base = small_target()
    before = torch.random.get_rng_state()
    with_lora(base, Lora(r=2, rounds=1))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_rounds_move_b_and_then_a() -> None:
    start, one, two = adapted(), adapted(rounds=1), adapted(rounds=2)
    for module in start.adapters:
        assert module.b_in(one.parameters).any()
        assert torch.equal(module.a_in(one.parameters), module.a_in(start.parameters))
        assert not torch.equal(module.a_in(two.parameters), module.a_in(start.parameters))
    assert one.dtype == torch.float32
    head = start.classifier_weight
    assert not torch.equal(one.parameters[head], start.parameters[head])


def _fingerprint(threads: int) -> str:
    torch.set_num_threads(threads)
    return adapted("bert", rounds=2, targets="all-linear").fingerprint


@pytest.mark.slow
def test_a_trained_adapter_is_the_same_in_another_process_with_other_threads() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(_fingerprint, 2).result() == _fingerprint(1)
    torch.set_num_threads(1)


@pytest.mark.parametrize("task", ["classification", "causal-lm"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"])
def test_queries_and_values_of_every_layer_are_adapted_by_default(family: str, task: Task) -> None:
    target = adapted(family, task, rounds=1)
    paths = [f"model.layers.{layer}.self_attn.{kind}_proj" for layer in (0, 1) for kind in "qv"]
    assert [module.path for module in target.adapters] == paths
    ids = target.encode(["the cat sat"]).ids
    inputs = captured_inputs(target, ids, paths)
    for layer in (0, 1):
        query, value = target.adapters[2 * layer : 2 * layer + 2]
        assert torch.equal(inputs[query.path], inputs[value.path])
        assert inputs[query.path].shape == (1, 3, 16)
        assert query.b_in(target.parameters).any()


def test_every_adapted_module_tells_layer_scaling_and_inputs() -> None:
    target = adapted("gpt2", "causal-lm", r=4, alpha=6.0, dropout=0.25)
    assert [module.layer for module in target.adapters] == [0, 1]
    assert [module.scaling for module in target.adapters] == [1.5, 1.5]
    assert [module.dropout for module in target.adapters] == [0.25, 0.25]
    assert target.adapter is not None
    assert target.adapter.by_layer == {0: (target.adapters[0],), 1: (target.adapters[1],)}
    ids = target.encode(["the cat sat"]).ids
    for module in target.adapters:
        inputs = captured_inputs(target, ids, [module.path])[module.path]
        assert inputs.shape == (1, ids.shape[1], module.a_in(target.parameters).shape[1])


@pytest.mark.parametrize(
    ("family", "task"), [("bert", "classification"), ("llama", "classification"), ("llama", "causal-lm")]
)
def test_gradients_of_a_and_b_are_what_the_structure_says(family: str, task: Task) -> None:
    target = adapted(family, task, rounds=1, r=3, alpha=5.0)
    module = target.adapters[1]
    ids, mask = target.encode(["the cat sat on a mat"])
    names = [module.a, module.b]
    leaves = {name: target.parameters[name].detach().clone().requires_grad_() for name in names}
    width = len(module.b_in(target.parameters))
    offset = torch.zeros(1, ids.shape[1], width, requires_grad=True)  # its gradient is that of the output
    hook = target.model.get_submodule(module.path).register_forward_hook(lambda _m, _i, output: output + offset)
    loss = target.loss_with(leaves, ids, mask, ids if task == "causal-lm" else torch.tensor([1]))
    hook.remove()
    a_slope, b_slope, delta = torch.autograd.grad(loss, [*leaves.values(), offset])
    x, a, b = captured_inputs(target, ids, [module.path])[module.path][0], *leaves.values()
    torch.testing.assert_close(a_slope, module.scaling * b.detach().T @ delta[0].T @ x)
    torch.testing.assert_close(b_slope, module.scaling * delta[0].T @ (x @ a.detach().T))


def test_dropout_of_adapters_is_a_setting_of_their_own() -> None:
    target = adapted(dropout=0.25)
    set_dropout(target, 0.4)
    assert set(target.dropouts.values()) == {0.25, 0.4}


@pytest.mark.parametrize(
    ("family", "targets", "message"),
    [
        ("bert", "query+q_proj", "small-bert has no module 'q_proj' to adapt; there are dense, key, query, value"),
        ("bert", "classifier", "small-bert has no module 'classifier' to adapt"),
        ("gpt2", "word", "small-gpt2 has no module 'word' to adapt; there are c_attn, c_fc, c_proj"),
        ("lstm", None, "small-lstm has no attention to adapt; give targets="),
    ],
)
def test_targets_that_match_nothing_name_those_there_are(family: str, targets: str | None, message: str) -> None:
    with pytest.raises(GradleakError) as error:
        adapted(family, targets=targets)
    assert str(error.value).startswith(message)


def test_an_adapter_on_an_adapter_is_refused() -> None:
    with pytest.raises(GradleakError, match="has adapters already"):
        with_lora(adapted(), Lora())


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(GradleakError, match=r"an adapter needs peft: pip install 'gradleak\[peft\]'"):
        adapted()


def test_load_target_takes_a_fresh_adapter() -> None:
    target = load_target("tiny", lora=Lora(r=2, targets="query"))
    assert len(target.adapters) == 4
    assert target.trained_parameters[-1] == "base_model.model.classifier.bias"
    with pytest.raises(GradleakError, match="exclude each other"):
        load_target("tiny", lora=Lora(), adapter="here")
