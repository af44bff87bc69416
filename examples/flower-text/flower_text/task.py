"""What server and clients share: two models that ship with gradleak, three clients' texts, and local training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor, nn

import gradleak as gl
from gradleak.assets import asset_path
from gradleak.assets.models import load_embedded_prior
from gradleak.data import load_dataset
from gradleak.targets.reading import read_tokenizer

LORA = {"r": 16, "lora_alpha": 16, "target_modules": ["c_attn"]}
LORA_TEXT = "r=16,alpha=16,targets=c_attn"  # the same for the audit
RATES = {"classifier": 5e-5, "lora": 2e-4}
LEAST_WORDS, MOST_WORDS = 5, 9


def tokenizer() -> Any:  # noqa: ANN401 - Hugging Face tokenizers have no common typed base
    """Return the tokenizer of both models."""
    return read_tokenizer(asset_path("tiny"))


def build_model(kind: str) -> nn.Module:
    """Return the model before training: a BERT with two classes, or a GPT-2 with fresh LoRA adapters."""
    if kind == "classifier":
        return gl.load_target("tiny", num_labels=2).model.requires_grad_(True)
    torch.manual_seed(0)
    return get_peft_model(load_embedded_prior(), LoraConfig(**LORA, task_type="CAUSAL_LM"))


def weights_of(model: nn.Module, kind: str) -> dict[str, Tensor]:
    """Return what is exchanged: all weights, or those of the adapters."""
    state = model.state_dict() if kind == "classifier" else get_peft_model_state_dict(model)
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def set_weights(model: nn.Module, kind: str, weights: Mapping[str, Tensor]) -> None:
    """Load what was exchanged."""
    if kind == "classifier":
        model.load_state_dict(dict(weights))
    else:
        set_peft_model_state_dict(model, dict(weights))


def save_decoder(folder: Path) -> Path:
    """Write the language model without adapters, as the audit's `target`."""
    load_embedded_prior().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def protocol(kind: str, batch: int, steps: int) -> str:
    """Return what the server knows of the clients' training."""
    return f"optimizer=adamw,lr={RATES[kind]},steps={steps},batch={batch}"


def client_texts(partition: int, count: int) -> tuple[list[str], list[int]]:
    """Return texts and labels of one client: its share of the shipped CoLA sample."""
    data = load_dataset("cola")
    short = [i for i, text in enumerate(data.texts) if LEAST_WORDS <= len(text.split()) <= MOST_WORDS]
    mine = short[partition * count : (partition + 1) * count]
    return [data.texts[i] for i in mine], [(data.labels or ())[i] for i in mine]


def round_texts(partition: int, number: int, count: int) -> tuple[list[str], list[int]]:
    """Return the texts that a client trains on in one round: other ones in each."""
    texts, labels = client_texts(partition, 8)
    rows = [((number - 1) * count + i) % len(texts) for i in range(count)]
    return [texts[row] for row in rows], [labels[row] for row in rows]


def train(model: nn.Module, kind: str, texts: list[str], labels: list[int], batch: int) -> float:
    """Train one pass over the texts with AdamW, and return the last loss."""
    words = tokenizer()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATES[kind], weight_decay=0.0)
    model.eval()  # no dropout
    loss = torch.zeros(())
    for start in range(0, len(texts), batch):
        tokens = words(texts[start : start + batch], padding=True, return_tensors="pt")
        inputs = {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"]}
        hidden = tokens["attention_mask"] == 0
        answers = tokens["input_ids"].masked_fill(hidden, -100)
        goal = torch.tensor(labels[start : start + batch]) if kind == "classifier" else answers
        optimizer.zero_grad()
        loss = model(**inputs, labels=goal).loss
        loss.backward()
        optimizer.step()
    return float(loss.detach())
