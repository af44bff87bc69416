"""Updates of any other training loop: the wrappers, number formats and mistakes that people have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from peft import get_peft_model_state_dict
from torch import Tensor, nn

from conftest import small_target
from gradleak.errors import GradleakError
from gradleak.exchange import FedAvg, Protocol, Update
from gradleak.exchange.names import plain_names
from gradleak.targets import Target
from gradleak.targets.adapters.folder import read_adapter, with_adapter
from peft_twin import peft_twin

PROTOCOL = "optimizer=adamw,lr=1e-3,steps=2,batch=4"
Weights = dict[str, Tensor]


def snapshot(model: nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def moved(weights: Weights) -> Weights:
    """Return weights after some training; whole numbers are buffers, and stay."""
    return {name: t + 0.25 if t.is_floating_point() else t for name, t in weights.items()}


def prefixed(weights: Weights, prefix: str) -> Weights:
    return {prefix + name: tensor for name, tensor in weights.items()}


@pytest.mark.parametrize("prefix", ["", "_module.", "module.", "_orig_mod.", "_module.module.", "base_model.model."])
def test_wrappers_before_every_name_are_understood(bert: Target, prefix: str) -> None:
    before = snapshot(bert.model)
    pair = (prefixed(before, prefix), prefixed(moved(before), prefix))
    checked = Update.from_weights(*pair, protocol=PROTOCOL, target=bert)
    alone = Update.from_weights(*pair, protocol=PROTOCOL)
    assert checked.tensors.keys() == alone.tensors.keys() == bert.parameters.keys()
    assert all(torch.equal(checked.tensors[name], alone.tensors[name]) for name in alone.tensors)
    alone.check(bert)
    assert checked.origin is not None
    assert alone.origin is None


def test_opacus_and_ddp_have_these_names(bert: Target) -> None:
    class GradSampleModule(nn.Module):  # as Opacus names its inner module
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self._module = inner

    assert plain_names(GradSampleModule(bert.model).state_dict()).keys() == bert.model.state_dict().keys()
    assert plain_names(nn.DataParallel(bert.model).state_dict()).keys() == bert.model.state_dict().keys()


@pytest.mark.parametrize("whole", [True, False], ids=["state_dict", "get_peft_model_state_dict"])
def test_an_adapter_is_understood_from_both_of_its_state_dicts(whole: bool, tmp_path: Any) -> None:
    twin = peft_twin(small_target(), ["query", "value"])
    twin.save_pretrained(tmp_path)
    target = with_adapter(small_target(), read_adapter(tmp_path))
    before = snapshot(twin) if whole else {n: t.clone() for n, t in get_peft_model_state_dict(twin).items()}
    trained = {n: t + 0.5 if "lora" in n or "modules_to_save" in n or not whole else t for n, t in before.items()}
    update = Update.from_weights(before, trained, protocol=PROTOCOL, target=target)
    assert sorted(update.tensors) == sorted(target.trained_parameters)
    alone = Update.from_weights(before, trained, protocol=PROTOCOL)
    assert sorted(alone.tensors) == sorted(target.trained_parameters)


def test_tied_weights_and_buffers_of_a_state_dict_are_no_mistake() -> None:
    target = small_target("gpt2", "causal-lm")
    before = snapshot(target.model)
    assert "lm_head.weight" in before
    assert "lm_head.weight" not in target.parameters
    before["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    update = Update.from_weights(before, moved(before), protocol=PROTOCOL, target=target)
    assert update.tensors.keys() == target.parameters.keys()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_number_formats_may_differ_before_and_after(bert: Target, dtype: torch.dtype) -> None:
    before = snapshot(bert.model)
    after = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in moved(before).items()}
    update = Update.from_weights(before, after, protocol=PROTOCOL, target=bert)
    name = "classifier.weight"
    assert torch.equal(update.tensors[name], after[name].to(torch.promote_types(dtype, torch.float32)) - before[name])


def test_arrays_are_taken_like_tensors(bert: Target) -> None:
    before = snapshot(bert.model)
    arrays: list[dict[str, Any]] = [{n: t.numpy() for n, t in w.items()} for w in (before, moved(before))]
    from_arrays = Update.from_weights(*arrays, protocol=PROTOCOL, target=bert)
    from_tensors = Update.from_weights(before, moved(before), protocol=PROTOCOL, target=bert)
    assert all(torch.equal(from_arrays.tensors[name], tensor) for name, tensor in from_tensors.tensors.items())
    assert np.isclose(float(from_arrays.tensors["classifier.bias"][0]), 0.25)


def test_the_protocol_may_be_text_or_settings(bert: Target) -> None:
    before = snapshot(bert.model)
    texts = Update.from_weights(before, moved(before), protocol=f"{PROTOCOL},precision=bf16,send=fp16,clients=2")
    training = FedAvg(optimizer="adamw", lr=1e-3, steps=2, batch=4)
    settings = Update.from_weights(before, moved(before), protocol=Protocol(training, "bf16", "fp16", 2))
    assert texts.protocol == settings.protocol
    assert Protocol.parse(str(texts.protocol)) == texts.protocol
    assert Update.from_weights(before, moved(before), protocol=training).training == training


def test_gradients_are_taken_with_the_same_names(bert: Target) -> None:
    gradients = prefixed({name: p.detach().half() for name, p in bert.parameters.items()}, "module.")
    update = Update.from_gradients(gradients, protocol="send=fp16", target=bert)
    assert (update.kind, update.send, update.training) == ("gradient", "fp16", None)
    assert update.tensors.keys() == bert.parameters.keys()
    assert {tensor.dtype for tensor in update.tensors.values()} == {torch.float32}


WRONG: dict[str, tuple[str, str]] = {
    "unknown key": (
        "optimiser=adamw,lr=1,steps=1",
        "unknown setting of protocol 'optimiser'; did you mean 'optimizer'",
    ),
    "transport key": (
        "steps=1,lr=1,presicion=bf16",
        "unknown setting of protocol 'presicion'; did you mean 'precision'",
    ),
    "value": ("steps=1,lr=high", "protocol lr takes a number, not 'high'"),
    "precision": ("steps=1,lr=1,precision=fp8", "unknown precision 'fp8'; did you mean 'fp"),
    "clients": ("steps=1,lr=1,clients=0", "clients must be at least 1"),
    "no rate": ("steps=1", "protocol lacks lr"),
    "nothing": ("", "need steps=…,lr=… in the protocol"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_protocol_that_makes_no_sense_is_refused_in_one_line(bert: Target, case: str) -> None:
    text, message = WRONG[case]
    before = snapshot(bert.model)
    with pytest.raises(GradleakError, match=message) as caught:
        Update.from_weights(before, moved(before), protocol=text)
    assert "\n" not in str(caught.value)


def test_a_name_that_fits_nothing_gets_the_nearest_parameter(bert: Target) -> None:
    before = snapshot(bert.model)
    before["bert.encoder.layer.0.attention.self.querry.weight"] = torch.zeros(16, 16)
    near = r"the nearest is 'bert.encoder.layer.0.attention.self.query.weight' \(16, 16\)"
    with pytest.raises(GradleakError, match=near):
        Update.from_weights(before, moved(before), protocol=PROTOCOL, target=bert)
    with pytest.raises(GradleakError, match=near):
        Update.from_weights(before, moved(before), protocol=PROTOCOL).check(bert)


def test_what_is_no_tensor_is_refused(bert: Target) -> None:
    with pytest.raises(GradleakError, match=r"'classifier.bias' in before is str, no tensor or array"):
        Update.from_weights({"classifier.bias": "weights"}, {"classifier.bias": "more"}, protocol=PROTOCOL)
    with pytest.raises(GradleakError, match=r"leave steps and lr out, or call Update.from_weights"):
        Update.from_gradients(snapshot(bert.model), protocol=PROTOCOL)
