"""Adapters from a directory: read as PEFT reads them, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from conftest import ALL_KINDS, small_target
from gradleak.errors import GradleakError
from gradleak.targets import Target, Task, load_target
from gradleak.targets.adapters.folder import adapter_classes, read_adapter, with_adapter
from gradleak.targets.registry import MODELS, ModelEntry
from peft_twin import saved_adapter

WEIGHTS = "adapter_model.safetensors"


def adapted(folder: str, family: str = "bert", task: Task = "classification") -> Target:
    return with_adapter(small_target(family, task), read_adapter(folder))


@pytest.mark.parametrize(("family", "task"), ALL_KINDS)
@pytest.mark.parametrize("settings", [{}, {"use_rslora": True, "lora_alpha": 3}], ids=["plain", "rslora"])
def test_an_adapter_gives_the_logits_of_peft(family: str, task: Task, settings: dict[str, Any], tmp_path: Path) -> None:
    targets = {"distilbert": ["q_lin", "ffn.lin1"], "gpt2": ["c_attn", "c_proj"]}.get(family)
    folder = saved_adapter(tmp_path / "adapter", family, task, targets=targets, **settings)
    target = adapted(folder, family, task)
    expected_model = PeftModel.from_pretrained(small_target(family, task).model, folder).eval()
    tokens = target.encode(["the cat sat on a mat"])
    expected = expected_model(tokens.ids, attention_mask=tokens.mask.long()).logits
    torch.testing.assert_close(target.logits(target.embed(tokens.ids), tokens.mask), expected, rtol=1e-5, atol=1e-6)
    assert sorted(target.trained_parameters) == sorted(load_file(Path(folder) / WEIGHTS))


def test_ranks_and_alphas_may_differ_by_module(tmp_path: Path) -> None:
    folder = saved_adapter(tmp_path, rank_pattern={"value": 5}, alpha_pattern={"layer.1.attention.self.query": 7})
    target = adapted(folder)
    assert [len(module.a_in(target.parameters)) for module in target.adapters] == [2, 5, 2, 5]
    assert [module.scaling for module in target.adapters] == [4, 1.6, 3.5, 1.6]


def test_the_classifier_of_an_adapter_takes_the_place_of_the_models(tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "adapter"
    three = small_target(num_labels=3)
    three.model.save_pretrained(base)  # type: ignore[operator]
    three.tokenizer.save_pretrained(base)
    saved_adapter(folder)
    assert adapter_classes(folder) == 2
    target = load_target(str(base), adapter=folder)
    assert (target.num_labels, target.trained_head) == (2, True)
    stored = load_file(folder / WEIGHTS)
    assert torch.equal(target.parameters[target.classifier_weight], stored[target.classifier_weight])
    with pytest.raises(GradleakError, match="the adapter's classifier has 2 classes, not 3: leave out --num-labels"):
        load_target(str(base), 3, adapter=folder)
    with pytest.raises(GradleakError, match="leave out --new-head"):
        load_target(str(base), adapter=folder, new_head=True)


def test_fingerprints_tell_adapters_apart(tmp_path: Path) -> None:
    folder = saved_adapter(tmp_path)
    first, again = adapted(folder), adapted(folder)
    assert first.adapter_fingerprint == again.adapter_fingerprint
    change_weights(tmp_path, lambda tensors: {**tensors, next(iter(tensors)): tensors[next(iter(tensors))] + 1})
    assert adapted(folder).adapter_fingerprint != first.adapter_fingerprint


# --- mistakes ------------------------------------------------------------------------------------------------------


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"peft_type": "IA3"}, "is an adapter of kind IA3; only LORA is supported"),
        ({"use_dora": True}, r"uses DoRA \(use_dora\); only plain LoRA and rsLoRA are supported"),
        ({"bias": "all"}, "trains biases"),
        ({"lora_bias": True}, "uses a bias of its own"),
        ({"init_lora_weights": "pissa_niter_4"}, "began with pissa_niter_4, which changes the base weights"),
        ({"r": 0}, "has the rank r=0; it must be from 1 to 65536"),
        ({"r": None}, "has the rank r=None; it must be from 1 to 65536"),
        ({"rank_pattern": {"query": 0}}, "has the rank r=0"),
        ({"task_type": "CAUSAL_LM"}, "is for causal-lm: give --task causal-lm"),
        ({"r": 3}, r"does not fit small-bert: '.*lora_A.weight' has shape \(2, 16\), where \(3, 16\) is expected"),
    ],
)
def test_other_methods_and_misfits_are_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved_adapter(tmp_path)
    change_config(tmp_path, **values)
    with pytest.raises(GradleakError, match=message):
        adapted(str(tmp_path))


def test_an_adapter_of_a_larger_model_is_refused(tmp_path: Path) -> None:
    saved_adapter(tmp_path)
    with pytest.raises(GradleakError, match=r"does not fit small-bert: .* has shape \(2, 16\), where \(r, 32\)"):
        with_adapter(small_target(hidden_size=32), read_adapter(tmp_path))
    with pytest.raises(GradleakError, match=r"the model has no module 'bert.encoder.layer.1.attention.self.query'"):
        with_adapter(small_target(num_hidden_layers=1), read_adapter(tmp_path))


@pytest.mark.parametrize(
    ("base", "name", "fits"),
    [
        ("org/other-bert", "org/small-bert", False),
        ("other-bert", "small-bert", False),
        ("ORG/Small-BERT", "small-bert", True),
        ("org/named-bert", "entry", True),
        ("org/small-bert", "entry", False),
        ("/data/models/other", "small-bert", True),  # the same model may lie anywhere
        ("org/other-bert", "./here", True),
        (None, "small-bert", True),
    ],
)
def test_the_name_of_the_base_model_is_compared(
    base: str | None, name: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "entry", ModelEntry("one", hub_id="org/named-bert"))
    saved_adapter(tmp_path)
    change_config(tmp_path, base_model_name_or_path=base)
    target = small_target()
    target.name = name
    if fits:
        with_adapter(target, read_adapter(tmp_path))
    else:
        with pytest.raises(GradleakError, match=f"was trained on '{base}', not on '{name}'"):
            with_adapter(target, read_adapter(tmp_path))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match=r"holds no adapter: there is no adapter_config.json in it"):
        read_adapter(tmp_path)
    with pytest.raises(GradleakError, match=r"is no directory; give the one with adapter_config.json"):
        read_adapter(tmp_path / "nowhere")
    saved_adapter(tmp_path)
    with pytest.raises(GradleakError, match=r"is a file; give the directory that holds adapter_config.json"):
        read_adapter(tmp_path / WEIGHTS)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(GradleakError, match=r"there is no adapter_model.safetensors in it"):
        read_adapter(tmp_path)


def test_pickled_weights_are_read_only_if_allowed(tmp_path: Path) -> None:
    saved_adapter(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    (tmp_path / WEIGHTS).unlink()
    torch.save(tensors, tmp_path / "adapter_model.bin")
    with pytest.raises(GradleakError, match="is a pickle, which can run code: it is read only with --allow-pickle"):
        read_adapter(tmp_path)
    assert read_adapter(tmp_path, allow_pickle=True).tensors.keys() == tensors.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {n.removeprefix("base_model.model."): v for n, v in t.items()}, "which is no weight of plain LoRA"),
        (lambda t: {n: v for n, v in t.items() if "lora_" not in n}, "holds no LoRA weights"),
        (lambda t: {n: v for n, v in t.items() if "0.attention.self.query.lora_B" not in n}, "without '.*lora_B"),
        (lambda t: {**t, "base_model.model.pooler.weight": torch.ones(2)}, "which is none of the model"),
        (lambda t: {**t, "base_model.model.classifier.bias": torch.ones(3)}, r"has shape \(3,\), where \(2\)"),
    ],
)
def test_weights_that_are_not_peft_s_are_refused(
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], message: str, tmp_path: Path
) -> None:
    saved_adapter(tmp_path)
    change_weights(tmp_path, change)
    with pytest.raises(GradleakError, match=message):
        adapted(str(tmp_path))


def test_a_tied_output_layer_is_not_trained_apart(tmp_path: Path) -> None:
    saved_adapter(tmp_path, "gpt2", "causal-lm")
    weight = torch.ones(42, 16)
    change_weights(tmp_path, lambda tensors: {**tensors, "base_model.model.transformer.wte.weight": weight})
    with pytest.raises(GradleakError, match="which is tied to another: not supported"):
        adapted(str(tmp_path), "gpt2", "causal-lm")


@pytest.mark.parametrize("file", ["adapter_config.json", WEIGHTS])
def test_damaged_files_get_one_line(file: str, tmp_path: Path) -> None:
    saved_adapter(tmp_path)
    (tmp_path / file).write_bytes(b"\x00nonsense")
    with pytest.raises(GradleakError) as error:
        read_adapter(tmp_path)
    assert "\n" not in str(error.value)
    assert file in str(error.value)
