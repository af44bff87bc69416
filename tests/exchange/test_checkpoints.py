from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.exchange import Origin, Protocol, Update
from gradleak.federation import Client, FedAvg
from gradleak.targets import Target

TRAINING = FedAvg(steps=3, lr=0.01, batch=2, optimizer="adamw")
TEXTS, LABELS = ["the cat sat", "a big red dog ran"], [1, 0]
Weights = dict[str, Tensor]


@pytest.fixture
def pair(bert: Target, tmp_path: Path) -> tuple[Weights, Weights]:
    before = {name: parameter.detach().clone() for name, parameter in bert.parameters.items()}
    change = Client(bert, fedavg=TRAINING).update(TEXTS, LABELS).tensors
    return before, before | {name: before[name] + tensor for name, tensor in change.items()}


def written(folder: Path, before: Weights, after: Weights) -> tuple[Path, Path]:
    save_file(before, folder / "a.safetensors")
    save_file(after, folder / "b.safetensors")
    return folder / "a.safetensors", folder / "b.safetensors"


def test_two_checkpoints_make_the_update_that_the_client_sent(
    bert: Target, tmp_path: Path, pair: tuple[Weights, Weights]
) -> None:
    sent = Client(bert, fedavg=TRAINING).update(TEXTS, LABELS)
    files = written(tmp_path, *({**weights, "position_ids": torch.arange(5)} for weights in pair))
    protocol = Protocol(TRAINING, precision="bf16", send="fp16", clients=3)
    update = Update.from_weights(*files, protocol=protocol, target=bert)
    assert (update.kind, update.steps, update.learning_rate) == ("difference", 3, 0.01)
    assert (update.training, update.origin) == (TRAINING, Origin.of(bert))
    assert (update.precision, update.send, update.clients) == ("bf16", "fp16", 3)
    trained = {name for name, tensor in sent.tensors.items() if tensor.any()}
    assert update.tensors.keys() == trained, "frozen weights and buffers are left out"
    for name, tensor in update.tensors.items():
        torch.testing.assert_close(tensor, sent.tensors[name], rtol=0, atol=1e-6)
    update.save(tmp_path / "update.safetensors")
    assert Update.load(tmp_path / "update.safetensors").training == TRAINING


def test_checkpoints_in_half_precision_are_subtracted_in_float32(bert: Target, tmp_path: Path) -> None:
    bert.to(dtype=torch.bfloat16)
    before = {name: parameter.detach().clone() for name, parameter in bert.parameters.items()}
    bert.to(dtype=torch.float32)
    after = {name: weight + torch.full_like(weight, 2**-6) for name, weight in before.items()}
    update = Update.from_weights(*written(tmp_path, before, after), protocol=TRAINING, target=bert)
    name = "classifier.weight"
    assert torch.equal(update.tensors[name], after[name].float() - before[name].float())


Change = Callable[[Weights, Weights], object]
WRONG: dict[str, tuple[Change, str]] = {
    "missing": (
        lambda a, b: b.pop("classifier.bias"),
        "'classifier.bias' is in .*a.safetensors, not in .*b.s",
    ),
    "more": (lambda a, b: b.update(extra=torch.ones(1)), "'extra' is in .*b.safetensors, not in .*a.safetensors"),
    "shape": (
        lambda a, b: b.update({"classifier.bias": torch.ones(3)}),
        r"do not fit each other: 'classifier.bias' has the shapes \(2,\) and \(3,\)",
    ),
    "the same": (lambda a, b: b.update(a), "hold the same weights: nothing was trained"),
    "other weights": (
        lambda a, b: a.update({"classifier.bias": torch.ones(2)}),
        r"a.safetensors holds other weights than .* \('classifier.bias' differs\): give --model the folder",
    ),
    "other model": (
        lambda a, b: [weights.update({"classifier.bias": torch.ones(5)}) for weights in (a, b)],
        r"does not fit the model: 'classifier.bias' has shape \(5,\); .* expects \(2,\)",
    ),
    "other names": (
        lambda a, b: (a.clear(), b.clear(), a.update(w=torch.ones(1)), b.update(w=torch.zeros(1))),
        "does not fit the model: none of its names is a parameter of",
    ),
    "nothing": (lambda a, b: (a.clear(), b.clear()), "a.safetensors holds no tensors"),
    "NaN": (lambda a, b: b.update({"classifier.bias": torch.full((2,), torch.nan)}), "holds NaN or Inf"),
    "more trained": (
        lambda a, b: (a.update(extra=torch.zeros(1)), b.update(extra=torch.ones(1))),
        "'extra' is not a parameter of .*; the nearest is '",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_files_that_do_not_fit_are_refused_in_one_line(
    bert: Target, tmp_path: Path, pair: tuple[Weights, Weights], name: str
) -> None:
    change, message = WRONG[name]
    change(*pair)
    with pytest.raises(GradleakError, match=message) as caught:
        Update.from_weights(*written(tmp_path, *pair), protocol=TRAINING, target=bert)
    assert "\n" not in str(caught.value)
