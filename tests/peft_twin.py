"""A small model with PEFT's own wrapper around it: what users of PEFT have, and the oracle of these tests."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from conftest import small_target
from gradleak.targets import Target, Task

TASK_TYPES = {"classification": "SEQ_CLS", "causal-lm": "CAUSAL_LM"}


def peft_twin(target: Target, targets: list[str] | str, base: Target | None = None, **settings: Any) -> PeftModel:
    """Return a PEFT model of the same base weights as `small_target` gives, with A and B drawn at random."""
    model = (base or small_target(target.family.name, target.task)).model
    config = LoraConfig(target_modules=targets, task_type=TASK_TYPES[target.task], **{"r": 2, **settings})
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        twin = get_peft_model(model, config)
        for name, parameter in twin.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
    return twin.eval()


def saved_adapter(
    folder: Path, family: str = "bert", task: Task = "classification", *, targets: Any = None, **settings: Any
) -> str:
    """Save a PEFT adapter of a small target as users have it, and return its directory."""
    target = small_target(family, task)
    names = targets or (["c_attn"] if family == "gpt2" else ["query", "value"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft_twin(target, names, **settings).save_pretrained(folder, save_embedding_layers=False)
    return str(folder)
