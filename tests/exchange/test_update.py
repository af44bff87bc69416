from __future__ import annotations

import dataclasses
import math
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from conftest import small_target
from gradleak.errors import GradleakError
from gradleak.exchange import Origin, Update
from gradleak.federation import Client, FedAvg
from gradleak.targets import Target

TARGET = small_target("bert")
GRADIENT = Client(TARGET, embeddings="trained").update(["the cat sat"], [1])

one_file_for_all_examples = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60).filter(
    lambda name: name != "__metadata__"
)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])
kinds = st.one_of(
    st.just({"kind": "gradient"}),
    st.fixed_dictionaries(
        {
            "kind": st.just("difference"),
            "learning_rate": st.floats(1e-12, 1e3),
            "steps": st.integers(1, 10**6),
        }
    ),
)
origins = st.none() | st.builds(
    Origin,
    name=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
    task=st.sampled_from(["classification", "causal-lm"]),
    num_labels=st.integers(1, 10**5),
    seed=st.integers(0, 2**63),
    fingerprint=st.text("0123456789abcdef", min_size=64, max_size=64),
)


def metadata_of(path: Path) -> dict[str, str]:
    with safe_open(str(path), framework="pt") as file:
        return file.metadata()


def assert_same(found: Update, expected: Update) -> None:
    assert dataclasses.replace(found, tensors={}) == dataclasses.replace(expected, tensors={})
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)


# --- files ---------------------------------------------------------------------------------------------------------


@one_file_for_all_examples
@given(
    entries=st.dictionaries(names, st.tuples(shapes, dtypes), max_size=4),
    kind=kinds,
    origin=origins,
    seed=st.integers(0, 999),
)
def test_an_update_comes_back_from_its_file(
    tmp_path: Path, entries: dict[str, Any], kind: dict[str, Any], origin: Origin | None, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = {n: torch.randn(shape, generator=generator).to(dtype) for n, (shape, dtype) in entries.items()}
    update = Update(tensors, **kind, origin=origin)
    update.save(tmp_path / "update.safetensors")
    assert_same(Update.load(tmp_path / "update.safetensors"), update)


@pytest.mark.parametrize("size", range(0, 512, 8))
def test_no_length_of_name_makes_a_file_look_like_something_else(tmp_path: Path, size: int) -> None:
    """A safetensors file begins with its header's size, which may be any multiple of 8."""
    update = Update({"w" * (size + 1): torch.ones(2)})
    update.save(tmp_path / "update.safetensors")
    assert_same(Update.load(str(tmp_path / "update.safetensors")), update)


def test_tensors_that_are_parts_of_one_vector_can_be_saved(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    update = Update({"a": whole[:2], "b": whole[2:], "c": whole.view(2, 3).T, "d": whole})
    update.save(tmp_path / "update.safetensors")
    assert_same(Update.load(tmp_path / "update.safetensors"), update)


def test_a_learning_rate_from_numpy_can_be_saved(tmp_path: Path) -> None:
    update = Update({"a": torch.ones(1)}, "difference", np.float64(5e-5), 2)
    update.save(tmp_path / "update.safetensors")
    assert Update.load(tmp_path / "update.safetensors").learning_rate == 5e-5


def test_metadata_say_nothing_about_the_private_batch(tmp_path: Path) -> None:
    batches = [(["the cat sat"], [1], 0), (["dog", "a big red dog ran on the mat .", "cat cat"], [0, 0, 1], 7)]
    for number, fedavg in enumerate((None, FedAvg(steps=2, lr=0.1), FedAvg(epochs=3, lr=0.1, shuffle=True))):
        seen = []
        for texts, labels, seed in batches:
            path = tmp_path / f"{number}-{seed}.safetensors"
            update = Client(TARGET, embeddings="trained", fedavg=fedavg, seed=seed).update(texts, labels)
            update.save(path)
            with safe_open(str(path), framework="pt") as file:
                seen.append((file.metadata(), sorted(file.keys())))
            public = {"kind", "learning_rate", "steps", "origin", "training", "precision", "send", "clients"}
            assert vars(update).keys() == {"tensors", *public}
        assert seen[0] == seen[1]


PROTOCOLS = [
    FedAvg(steps=4, lr=5e-5),
    FedAvg(steps=4, lr=5e-5, batch=1),
    FedAvg(
        epochs=2, lr=1 / 3, batch=4, optimizer="adamw", beta1=0.8, beta2=0.7, eps=1e-7, weight_decay=0.1, shuffle=True
    ),
    FedAvg(steps=9, lr=0.1, momentum=0.9, schedule="linear", warmup=2, clip=0.3, accumulate=2),
]


@pytest.mark.parametrize("training", PROTOCOLS, ids=str)
def test_the_protocol_comes_back_from_its_file(tmp_path: Path, training: FedAvg) -> None:
    update = Update(
        {"a": torch.ones(2)}, "difference", training=training, precision="bf16", send="int8-tensor", clients=4
    )
    update.save(tmp_path / "update.safetensors")
    assert_same(Update.load(tmp_path / "update.safetensors"), update)
    assert (update.learning_rate, update.steps) == (training.lr, training.steps)


def test_what_was_public_before_is_written_as_before(tmp_path: Path) -> None:
    Client(TARGET, fedavg=FedAvg(steps=2, lr=0.1)).update(["the cat"], [1]).save(tmp_path / "update.safetensors")
    stated = metadata_of(tmp_path / "update.safetensors")
    assert {name: value for name, value in stated.items() if not name.startswith("target.")} == {
        "format": "gradleak-update",
        "schema": "1",
        "kind": "difference",
        "learning_rate": "0.1",
        "steps": "2",
    }


@pytest.mark.parametrize("training", PROTOCOLS, ids=str)
def test_every_difference_is_divided_by_rate_and_length(training: FedAvg) -> None:
    update = Update({"a": torch.ones(1)}, "difference", training=training, clients=2)
    length = training.steps or training.epochs or 0
    assert update.gradient()["a"].item() == pytest.approx(-1 / (training.lr * length * 2))


@pytest.mark.parametrize(
    "change",
    [
        {"training.optimizer": "adamx"},
        {"training.optimiser": "adam"},
        {"training.clip": "-1"},
        {"training.epochs": "2"},
        {"precision": "fp8"},
        {"send": "int4"},
        {"clients": "0"},
        {"clients": "many"},
    ],
    ids=str,
)
def test_a_protocol_that_makes_no_sense_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    stated = {"kind": "difference", "learning_rate": "0.1", "steps": "2", **change}
    save_file({"a": torch.ones(1)}, tmp_path / "update.safetensors", metadata=stated)
    with pytest.raises(GradleakError, match="has metadata that make no sense"):
        Update.load(tmp_path / "update.safetensors")


def test_metadata_name_the_model_so_that_it_can_be_loaded_again(tmp_path: Path) -> None:
    GRADIENT.save(tmp_path / "update.safetensors")
    assert metadata_of(tmp_path / "update.safetensors") == {
        "format": "gradleak-update",
        "schema": "1",
        "kind": "gradient",
        "target.name": "small-bert",
        "target.task": "classification",
        "target.num_labels": "2",
        "target.seed": "0",
        "target.fingerprint": TARGET.fingerprint,
        "target.trained_head": "False",
    }


def test_a_file_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match="cannot be written"):
        GRADIENT.save(tmp_path / "no-such-folder" / "update.safetensors")


def test_an_update_does_not_take_the_place_of_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GradleakError, match="pipe is no ordinary file"):
        GRADIENT.save(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("where", [0, 1, 7, 8, 9, 20, 0.01, 0.1, 0.5, 0.9, -100, -1], ids=lambda where: f"at-{where}")
def test_a_truncated_file_is_refused(tmp_path: Path, where: float) -> None:
    path = tmp_path / "update.safetensors"
    GRADIENT.save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(where * len(content)) if isinstance(where, float) else where])
    with pytest.raises(GradleakError, match="corrupt or truncated") as caught:
        Update.load(path)
    assert "\n" not in str(caught.value)


@one_file_for_all_examples
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "update.safetensors"
    path.write_bytes(content)
    with pytest.raises(GradleakError, match=r"corrupt or truncated|looks like a pickle"):
        Update.load(path)


@one_file_for_all_examples
@given(position=st.integers(0, 10**6), value=st.integers(0, 255))
def test_one_wrong_byte_gives_an_update_or_a_clear_error(tmp_path: Path, position: int, value: int) -> None:
    path = tmp_path / "update.safetensors"
    Update({"a": torch.ones(3), "b": torch.zeros(2, 2)}, "difference", 0.1, 2, GRADIENT.origin).save(path)
    content = bytearray(path.read_bytes())
    content[position % len(content)] = value
    path.write_bytes(content)
    try:
        assert isinstance(Update.load(path), Update)
    except GradleakError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right


class _Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.touch, (Path("this-must-not-run"),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    Path("update.safetensors").write_bytes(pickle.dumps(_Bomb(), protocol=protocol))
    with pytest.raises(GradleakError, match="looks like a pickle" if protocol >= 2 else "corrupt"):
        Update.load("update.safetensors")
    assert not Path("this-must-not-run").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_torch_save_is_refused_as_a_pickle(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "update.pt"
    torch.save(dict(GRADIENT.tensors), path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(GradleakError, match="looks like a pickle, which can run code; save the update as safetensors"):
        Update.load(path)


@pytest.mark.parametrize("name", ["missing.safetensors", "."])
def test_what_is_no_file_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(GradleakError, match="cannot be read"):
        Update.load(tmp_path / name)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_file_of_other_software_is_taken_as_a_gradient(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file({"classifier.bias": torch.ones(2)}, tmp_path / "other.safetensors", metadata=metadata)
    update = Update.load(tmp_path / "other.safetensors")
    assert_same(update, Update({"classifier.bias": torch.ones(2)}))
    update.check(TARGET)


GOOD = {"kind": "difference", "learning_rate": "0.1", "steps": "2"}
ORIGIN = {f"target.{k}": v for k, v in GRADIENT.origin.metadata.items()}


@pytest.mark.parametrize(
    "metadata",
    [
        {"kind": "weights"},
        GOOD | {"learning_rate": "fast"},
        GOOD | {"learning_rate": "None"},
        GOOD | {"steps": "2.5"},
        {key: GOOD[key] for key in ("kind", "steps")},
        {key: GOOD[key] for key in ("kind", "learning_rate")},
        ORIGIN | {"target.seed": "one"},
        ORIGIN | {"target.num_labels": ""},
        {key: value for key, value in ORIGIN.items() if key != "target.fingerprint"},
    ],
    ids=str,
)
def test_metadata_that_make_no_sense_are_refused(tmp_path: Path, metadata: dict[str, str]) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "update.safetensors", metadata=metadata)
    with pytest.raises(GradleakError, match="metadata that make no sense"):
        Update.load(tmp_path / "update.safetensors")


# --- what it holds -------------------------------------------------------------------------------------------------


@one_file_for_all_examples
@given(rate=st.floats(1e-6, 10), steps=st.integers(1, 50))
def test_the_gradient_of_a_difference_is_its_mean_over_the_steps(rate: float, steps: int) -> None:
    slope = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    update = Update({"a": -rate * steps * slope}, "difference", rate, steps)
    torch.testing.assert_close(update.gradient()["a"], slope)
    assert update.tensors["a"][0] == -rate * steps


def test_the_gradient_of_a_gradient_is_itself() -> None:
    found = GRADIENT.gradient()
    assert found.keys() == GRADIENT.tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in GRADIENT.tensors.items())
    found.clear()
    assert GRADIENT.tensors


@pytest.mark.parametrize(("rate", "steps"), [(None, 2), (0.1, None), (0.0, 2), (0.1, 0)])
def test_a_difference_without_rate_or_steps_has_no_gradient(rate: float | None, steps: int | None) -> None:
    with pytest.raises(GradleakError, match="needs the learning rate and the number of local steps"):
        Update({"a": torch.ones(1)}, "difference", rate, steps).gradient()


def test_copies_leave_the_original_as_it_is() -> None:
    tensors = {"a": torch.ones(2), "b": torch.zeros(3)}
    update = Update(tensors, "difference", 0.1, 2, GRADIENT.origin)
    moved = update.to("cpu", torch.float64)
    other = update.with_tensors({"a": torch.full((2,), 5.0)})
    assert {tensor.dtype for tensor in moved.tensors.values()} == {torch.float64}
    assert dataclasses.replace(moved, tensors=tensors) == update
    assert dataclasses.replace(other, tensors=tensors) == update
    assert list(other.tensors) == ["a"]
    assert update.tensors is tensors
    assert torch.equal(tensors["a"], torch.ones(2))
    assert tensors["a"].dtype == torch.float32
    with pytest.raises(dataclasses.FrozenInstanceError):
        update.kind = "gradient"  # type: ignore[misc]


def test_a_copy_does_not_follow_the_mapping_it_was_made_of() -> None:
    tensors = {"a": torch.ones(2)}
    update = GRADIENT.with_tensors(tensors)
    tensors["b"] = torch.ones(1)
    assert list(update.tensors) == ["a"]


def test_num_values_counts_all_numbers() -> None:
    assert Update({"a": torch.ones(2, 3), "b": torch.ones(()), "c": torch.ones(0)}).num_values == 7


# --- whether it fits -----------------------------------------------------------------------------------------------


def test_an_update_fits_the_target_it_was_computed_on() -> None:
    GRADIENT.check(TARGET)
    GRADIENT.check(small_target("bert"))
    GRADIENT.check(small_target("bert").to(dtype=torch.float64))


def _with(name: str, tensor: torch.Tensor) -> Update:
    return GRADIENT.with_tensors({**GRADIENT.tensors, name: tensor})


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (Update({}), "holds no tensors"),
        (_with("bert.pooler.gain", torch.ones(2)), "'bert.pooler.gain' is not a parameter of small-bert"),
        (
            _with("classifier.weight", torch.ones(16, 2)),
            r"'classifier.weight' has shape \(16, 2\); small-bert expects \(2, 16\)",
        ),
        (_with("classifier.bias", torch.ones(2, 1)), r"shape \(2, 1\); small-bert expects \(2,\)"),
        (_with("classifier.bias", torch.tensor([1.0, math.nan])), "'classifier.bias' holds NaN or Inf"),
        (_with("classifier.bias", torch.tensor([math.inf, 1.0])), "'classifier.bias' holds NaN or Inf"),
        (_with("classifier.bias", torch.tensor([1.0, -math.inf])), "'classifier.bias' holds NaN or Inf"),
    ],
    ids=["empty", "unknown", "transposed", "dimensions", "nan", "inf", "minus-inf"],
)
def test_an_update_that_does_not_fit_says_what_is_wrong(update: Update, message: str) -> None:
    with pytest.raises(GradleakError, match=message) as caught:
        update.check(TARGET)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("other", [small_target("bert", seed=1), small_target("bert", num_labels=3)], ids=repr)
def test_an_update_of_other_weights_is_refused(other: Target) -> None:
    with pytest.raises(GradleakError, match=r"other weights|expects"):
        GRADIENT.check(other)


def test_the_error_about_other_weights_names_both_models() -> None:
    other = small_target("bert", seed=1)
    found = f"small-bert, seed 0, {TARGET.fingerprint[:12]}.*small-bert, seed 1.*{other.fingerprint[:12]}"
    with pytest.raises(GradleakError, match=found):
        GRADIENT.check(other)


def test_an_update_without_origin_is_taken_for_any_target_it_fits() -> None:
    dataclasses.replace(GRADIENT, origin=None).check(small_target("bert", seed=1))


@one_file_for_all_examples
@given(data=st.data(), value=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_one_number_that_is_none_is_found_wherever_it_is(data: st.DataObject, value: float) -> None:
    name = data.draw(st.sampled_from(sorted(GRADIENT.tensors)))
    spoiled = GRADIENT.tensors[name].clone()
    spoiled.view(-1)[data.draw(st.integers(0, spoiled.numel() - 1))] = value
    with pytest.raises(GradleakError, match=f"'{name}' holds NaN or Inf"):
        _with(name, spoiled).check(TARGET)
