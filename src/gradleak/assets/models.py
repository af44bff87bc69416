"""Build the embedded models from their compact files; used by `priors` and the training scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gradleak.assets import asset_path
from gradleak.assets.storage import load_compact
from gradleak.errors import GradleakError

if TYPE_CHECKING:
    from transformers import BertForMaskedLM, GPT2LMHeadModel, PreTrainedModel


def load_embedded_masked_lm(folder: Path | None = None) -> BertForMaskedLM:
    """Return `tiny` as a masked language model, in float32 and evaluation mode.

    Args:
        folder: Another folder of the same layout, such as a fresh result of the training script.
    """
    from transformers import BertConfig, BertForMaskedLM

    folder = folder or asset_path("tiny")
    # Building a model draws initial weights: keep the caller's random state.
    with torch.random.fork_rng(devices=[]):
        model = BertForMaskedLM(BertConfig(**_read_config(folder)))  # type: ignore[no-untyped-call]
    _restore(model, folder)
    return model


def load_embedded_prior(folder: Path | None = None) -> GPT2LMHeadModel:
    """Return `prior`, the causal language model, in float32 and evaluation mode.

    Args:
        folder: Another folder of the same layout, such as a fresh result of the training script.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = folder or asset_path("prior")
    with torch.random.fork_rng(devices=[]):
        model = GPT2LMHeadModel(GPT2Config(**_read_config(folder)))  # type: ignore[no-untyped-call]
    _restore(model, folder)
    return model


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise GradleakError(f"there is no embedded model in {folder}; reinstall gradleak")
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    # These are for readers of the file; the classes set them.
    for name in ("model_type", "architectures", "transformers_version"):
        config.pop(name, None)
    return config


def _restore(model: PreTrainedModel, folder: Path) -> None:
    """Load the stored weights into `model`; only tied tensors may be missing from the file."""
    state = load_compact(folder / "model.safetensors")
    missing, unexpected = model.load_state_dict(state, strict=False)
    filled = {tensor.data_ptr() for name, tensor in model.state_dict().items() if name in state}
    lost = [name for name in missing if model.state_dict()[name].data_ptr() not in filled]
    if lost or unexpected:
        wrong = ", ".join(sorted([*lost, *unexpected]))
        raise GradleakError(f"the weights in {folder} do not fit their config: {wrong}")
    model.eval()  # type: ignore[no-untyped-call]
