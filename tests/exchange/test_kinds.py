"""What a file of other software holds: gradient, difference of weights, or whole weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gradleak.defenses import defend, parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import Update, appearance, settle_kind, stated_kind
from gradleak.federation import Client, FedAvg
from gradleak.targets import Target, load_target

TEXTS = ["the patient was given ten milligrams", "my card was stolen on monday"]
LABELS = [1, 0]


@pytest.fixture(scope="module")
def tiny() -> Target:
    return load_target("tiny")


def difference(target: Target, steps: int = 4, lr: float = 5e-5) -> dict[str, Tensor]:
    client = Client(target, embeddings="trained", fedavg=FedAvg(steps=steps, lr=lr))
    return dict(client.update(TEXTS, LABELS).tensors)


def gradient(target: Target, *defenses: str) -> dict[str, Tensor]:
    update = Client(target, embeddings="trained").update(TEXTS, LABELS)
    return dict(defend(update, [parse_defense(d) for d in defenses], torch.Generator().manual_seed(0)).tensors)


def cast(tensors: dict[str, Tensor], dtype: torch.dtype, back: bool = False) -> dict[str, Tensor]:
    return {name: tensor.to(dtype).to(torch.float32 if back else dtype) for name, tensor in tensors.items()}


@pytest.mark.parametrize(("steps", "lr"), [(1, 5e-5), (4, 5e-5), (4, 1e-2), (1, 1.0)])
def test_a_difference_of_weights_is_seen(tiny: Target, steps: int, lr: float) -> None:
    assert appearance(Update(difference(tiny, steps, lr)), tiny).kind == "difference"


@pytest.mark.parametrize("defense", ["", "noise:1e-7", "noise:0.01", "clip:0.1", "prune:0.9", "sign"])
def test_a_gradient_is_not_taken_for_a_difference(tiny: Target, defense: str) -> None:
    assert appearance(Update(gradient(tiny, *filter(None, [defense]))), tiny).kind != "difference"


def test_a_plain_gradient_is_seen(tiny: Target) -> None:
    assert appearance(Update(gradient(tiny)), tiny).kind == "gradient"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("back", [False, True])
def test_numbers_of_few_bits_are_not_taken_for_a_difference(tiny: Target, dtype: torch.dtype, back: bool) -> None:
    small = {name: tensor * 1e-3 for name, tensor in gradient(tiny).items()}  # float16 makes these multiples of 2⁻²⁴
    for tensors in (gradient(tiny), small):
        assert appearance(Update(cast(tensors, dtype, back)), tiny).kind != "difference"


def test_a_difference_that_was_sent_as_bfloat16_is_still_seen(tiny: Target) -> None:
    assert appearance(Update(cast(difference(tiny), torch.bfloat16)), tiny).kind == "difference"


def test_weights_are_seen_even_after_training(tiny: Target) -> None:
    after = {name: tiny.parameters[name].detach() + change for name, change in difference(tiny, 4, 0.1).items()}
    assert appearance(Update(after), tiny).kind == "weights"


def test_an_update_of_zeros_tells_nothing(tiny: Target) -> None:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in gradient(tiny).items()}
    assert appearance(Update(zeros), tiny).kind is None


# --- from a file ---------------------------------------------------------------------------------------------------


def written(folder: Path, tensors: dict[str, Tensor]) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(folder / "update.safetensors"))
    return folder / "update.safetensors"


def test_files_of_other_software_state_no_kind_and_ours_do(tiny: Target, tmp_path: Path) -> None:
    path = written(tmp_path, difference(tiny))
    assert stated_kind(path) is None
    Update(difference(tiny), "difference", 5e-5, 4).save(path)
    assert stated_kind(path) == "difference"
    update, why = settle_kind(Update.load(path), tiny, path, training=FedAvg(steps=4, lr=5e-5))
    assert (update.steps, why) == (4, "the file says so")


def test_steps_and_rate_make_a_difference_of_it(tiny: Target, tmp_path: Path) -> None:
    path = written(tmp_path, difference(tiny))
    update, why = settle_kind(Update.load(path), tiny, path, training=FedAvg(steps=4, lr=5e-5))
    assert (update.kind, update.steps, update.learning_rate) == ("difference", 4, 5e-5)
    assert why == "--fedavg says so"
    expected = Client(tiny, embeddings="trained").update(TEXTS, LABELS).gradient()
    name = "bert.encoder.layer.0.attention.self.value.weight"
    similarity = torch.cosine_similarity(update.gradient()[name].flatten(), expected[name].flatten(), dim=0)
    assert float(similarity) > 0.99


def test_a_difference_without_steps_is_asked_for_them(tiny: Target, tmp_path: Path) -> None:
    path = written(tmp_path, difference(tiny))
    with pytest.raises(GradleakError, match=r"looks like a difference of weights \(100 %.*give --fedavg steps=…,lr=…"):
        settle_kind(Update.load(path), tiny, path)
    update, why = settle_kind(Update.load(path), tiny, path, kind="gradient")
    assert (update.kind, why) == ("gradient", "--kind says so")


def test_a_gradient_of_other_software_is_taken_as_one_and_says_why(tiny: Target, tmp_path: Path) -> None:
    path = written(tmp_path, gradient(tiny))
    update, why = settle_kind(Update.load(path), tiny, path)
    assert update.kind == "gradient"
    assert why.startswith("as its numbers look: 1 % of its entries are multiples")
    update, why = settle_kind(Update.load(path), tiny, path, training=FedAvg(steps=4, lr=5e-5))
    assert update.kind == "difference"
    assert why == "--fedavg says so; by its numbers it may be a gradient, or was scaled"
    zeros = written(tmp_path, {name: torch.zeros_like(tensor) for name, tensor in gradient(tiny).items()})
    assert settle_kind(Update.load(zeros), tiny, zeros)[1] == "assumed: its numbers do not tell"


def test_whole_weights_are_refused(tiny: Target, tmp_path: Path) -> None:
    path = written(tmp_path, {name: parameter.detach().clone() for name, parameter in tiny.parameters.items()})
    with pytest.raises(GradleakError, match="holds weights, not an update"):
        settle_kind(Update.load(path), tiny, path, training=FedAvg(steps=4, lr=5e-5))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"kind": "difference"}, "says of itself that it is a gradient; leave out --kind difference"),
        ({"training": FedAvg(steps=4, lr=1.0)}, "says of itself that it is a gradient; leave out --fedavg"),
        ({"kind": "gradient", "training": FedAvg(steps=4, lr=1.0)}, "exclude each other"),
    ],
)
def test_a_file_is_not_contradicted(tiny: Target, tmp_path: Path, said: dict[str, object], message: str) -> None:
    path = tmp_path / "update.safetensors"
    Update(gradient(tiny)).save(path)
    with pytest.raises(GradleakError, match=message):
        settle_kind(Update.load(path), tiny, path, **said)  # type: ignore[arg-type]


def test_a_difference_is_not_given_other_steps_than_its_own(tiny: Target, tmp_path: Path) -> None:
    path = tmp_path / "update.safetensors"
    Update(difference(tiny), "difference", 5e-5, 4).save(path)
    with pytest.raises(GradleakError, match=r"made with steps=4,lr=5e-05; leave out --fedavg"):
        settle_kind(Update.load(path), tiny, path, training=FedAvg(steps=2, lr=5e-5))
    with pytest.raises(GradleakError, match="says of itself that it is a difference; leave out --kind gradient"):
        settle_kind(Update.load(path), tiny, path, kind="gradient")


def test_the_kind_alone_does_not_describe_a_difference(tiny: Target, tmp_path: Path) -> None:
    path = written(tmp_path, difference(tiny))
    with pytest.raises(GradleakError, match="--kind difference needs --fedavg"):
        settle_kind(Update.load(path), tiny, path, kind="difference")
