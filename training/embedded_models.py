"""The two embedded models: their sizes, training objectives and predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
)

from embedded_corpus import CLS, MASK, MAX_LENGTH, PAD, SEP, Batch
from embedded_loss import linear_cross_entropy, score_words

VOCABULARY = 30_522


@dataclass(frozen=True)
class Shape:
    """The size of a model and the dropout that it trains with."""

    hidden: int
    layers: int
    heads: int
    dropout: float


@dataclass(frozen=True)
class Prediction:
    """Hidden states and output table of a model at some positions, and the true words there."""

    hidden: Tensor  # [positions, hidden]
    weight: Tensor  # [words, hidden]
    bias: Tensor | None  # [words]
    targets: Tensor  # [positions]


class Objective(ABC):
    """A model, and which words it is trained to predict."""

    name: str
    quantised: tuple[str, ...]
    shape: Shape

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the shipped config."""

    @abstractmethod
    def build(self) -> PreTrainedModel:
        """Return a model to train, with fresh weights."""

    @abstractmethod
    def body(self, model: PreTrainedModel) -> torch.nn.Module:
        """Return the part of the model to compile."""

    @abstractmethod
    def predict(self, model: PreTrainedModel, batch: Batch, generator: torch.Generator) -> Prediction:
        """Run the model on a batch and return its predictions."""

    def loss(self, model: PreTrainedModel, batch: Batch, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Return the mean loss of a batch."""
        predicted = self.predict(model, batch, generator)
        return linear_cross_entropy(predicted.hidden, predicted.weight, predicted.bias, predicted.targets, dtype)

    def score(self, model: PreTrainedModel, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the negative log-likelihood and the top-1 hit at each predicted position."""
        predicted = self.predict(model, batch, generator)
        return score_words(predicted.hidden, predicted.weight, predicted.bias, predicted.targets)


class MaskedObjective(Objective):
    """`tiny`: BERT predicts masked words, drawn anew in each pass."""

    name = "tiny"
    quantised = ("bert.embeddings.word_embeddings.weight",)

    def __init__(self, shape: Shape | None = None) -> None:
        self.shape = shape or Shape(hidden=128, layers=4, heads=2, dropout=0.0)

    def config(self) -> dict[str, Any]:
        """Return the shipped config; its dropout is for the clients that fine-tune the model."""
        return {
            "model_type": "bert",
            "architectures": ["BertForMaskedLM"],
            "vocab_size": VOCABULARY,
            "hidden_size": self.shape.hidden,
            "num_hidden_layers": self.shape.layers,
            "num_attention_heads": self.shape.heads,
            "intermediate_size": 4 * self.shape.hidden,
            "max_position_embeddings": MAX_LENGTH,
            "type_vocab_size": 2,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "pad_token_id": PAD,
            "tie_word_embeddings": True,
        }

    def build(self) -> PreTrainedModel:
        """Return a model to train, without dropout by default: at this size it does not overfit."""
        dropout = self.shape.dropout
        trained = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        return BertForMaskedLM(BertConfig(**self.config() | trained))  # type: ignore[no-untyped-call]

    def body(self, model: PreTrainedModel) -> torch.nn.Module:
        """Return the encoder."""
        assert isinstance(model, BertForMaskedLM)
        return model.bert

    def predict(self, model: PreTrainedModel, batch: Batch, generator: torch.Generator) -> Prediction:
        """Mask words, run the encoder, and run the head on the masked positions only."""
        assert isinstance(model, BertForMaskedLM)
        rows, tokens = batch.ids.shape
        count = max(1, round(0.15 * (batch.total - 2 * rows)))
        inputs, positions, targets = mask_words(batch, count, generator)
        # A mask of four dimensions is used unchanged; for one of two, transformers checks on the
        # device whether it is all true, and each step would wait for the result.
        mask = batch.real[:, None, None, :].expand(rows, 1, tokens, tokens)
        hidden = model.bert(inputs, attention_mask=mask).last_hidden_state
        head = model.cls.predictions
        chosen = head.transform(hidden.flatten(0, 1)[positions])
        return Prediction(chosen, head.decoder.weight, head.decoder.bias, targets)


def mask_words(batch: Batch, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Choose `count` words of a batch for BERT to predict: 80 % [MASK], 10 % random, 10 % kept.

    Returns:
        The changed ids [rows, tokens], the flat positions [count] and the true words [count].
    """
    device, drawn_on = batch.ids.device, generator.device
    ids = batch.ids.flatten()
    chance = torch.rand(ids.shape, device=drawn_on, generator=generator).to(device)
    special = (ids == PAD) | (ids == CLS) | (ids == SEP)
    # By top-k of random numbers: a boolean index would wait for the device to count its hits.
    positions = chance.masked_fill(special, -1.0).topk(count).indices
    targets = ids[positions]
    random = torch.randint(VOCABULARY, (count,), device=drawn_on, generator=generator).to(device)
    kind = torch.rand((count,), device=drawn_on, generator=generator).to(device)
    shown = torch.where(kind < 0.8, MASK, torch.where(kind < 0.9, random, targets))
    inputs = ids.scatter(0, positions, shown)
    return inputs.view_as(batch.ids), positions, targets


class CausalObjective(Objective):
    """`prior`: GPT-2 predicts the next word of `[CLS] ... [SEP]`."""

    name = "prior"
    quantised = ("transformer.wte.weight",)

    def __init__(self, shape: Shape | None = None) -> None:
        self.shape = shape or Shape(hidden=256, layers=4, heads=4, dropout=0.1)

    def config(self) -> dict[str, Any]:
        """Return the shipped config, which is the trained one."""
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "vocab_size": VOCABULARY,
            "n_embd": self.shape.hidden,
            "n_layer": self.shape.layers,
            "n_head": self.shape.heads,
            "n_positions": MAX_LENGTH,
            "activation_function": "gelu_pytorch_tanh",  # gelu_new in one kernel
            "resid_pdrop": self.shape.dropout,
            "embd_pdrop": self.shape.dropout,
            "attn_pdrop": self.shape.dropout,
            "bos_token_id": CLS,
            "eos_token_id": SEP,
            "pad_token_id": PAD,
            "tie_word_embeddings": True,
        }

    def build(self) -> PreTrainedModel:
        """Return a model to train."""
        return GPT2LMHeadModel(GPT2Config(**self.config()))  # type: ignore[no-untyped-call]

    def body(self, model: PreTrainedModel) -> torch.nn.Module:
        """Return the decoder without its output table."""
        assert isinstance(model, GPT2LMHeadModel)
        return model.transformer

    def predict(self, model: PreTrainedModel, batch: Batch, generator: torch.Generator) -> Prediction:
        """Run the decoder and keep the positions that have a next word, in order."""
        assert isinstance(model, GPT2LMHeadModel)
        rows, tokens = batch.ids.shape
        causal = torch.ones(tokens, tokens, dtype=torch.bool, device=batch.ids.device).tril()
        # No real word attends to padding, which is on the right. Four dimensions as for BERT.
        mask = causal.expand(rows, 1, tokens, tokens)
        hidden = model.transformer(batch.ids, attention_mask=mask, use_cache=False)
        follows = batch.real.roll(-1, dims=1)
        follows[:, -1] = False
        order = follows.flatten().to(torch.uint8).argsort(descending=True, stable=True)
        positions = order[: batch.total - rows]
        targets = batch.ids.roll(-1, dims=1).flatten()[positions]
        chosen = hidden.last_hidden_state.flatten(0, 1)[positions]
        return Prediction(chosen, model.lm_head.weight, None, targets)


def unique_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return a copy of the model's state that holds each tied tensor once."""
    seen: set[int] = set()
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            state[name] = tensor.detach().clone()
    return state


def make_objective(name: str, shape: Shape | None = None) -> Objective:
    """Return the objective of `tiny` or `prior`."""
    return MaskedObjective(shape) if name == "tiny" else CausalObjective(shape)
