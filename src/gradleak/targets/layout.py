"""Where an architecture keeps the parts that attacks look at: `Family`, described by module paths.

Nothing else in gradleak knows a layer by name. To support another family, subclass `Family` in a file of `families/`,
fill in the paths and add `@register`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gradleak.errors import GradleakError

Task = Literal["classification", "causal-lm"]
TASKS: tuple[Task, ...] = ("classification", "causal-lm")


@dataclass(frozen=True)
class Projection:
    """One linear map inside a parameter, seen as `[outputs, inputs]` however the parameter is stored.

    Attributes:
        module: path of the module that holds the map.
        rows: the output rows of this map (GPT-2 and GPT-NeoX store query, key and value in one matrix).
        transposed: whether the parameter is stored `[inputs, outputs]`.
    """

    module: str
    rows: slice | list[int] = field(default_factory=lambda: slice(None))
    transposed: bool = False

    @property
    def weight(self) -> str:
        """Name of the weight parameter."""
        return f"{self.module}.weight"

    @property
    def bias(self) -> str:
        """Name of the bias parameter."""
        return f"{self.module}.bias"

    def weight_in(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return this map's part of the weight (or of its gradient) in `tensors`."""
        weight = tensors[self.weight]
        return (weight.T if self.transposed else weight)[self.rows]

    def bias_in(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return this map's part of the bias (or of its gradient) in `tensors`."""
        return tensors[self.bias][self.rows]


@dataclass(frozen=True)
class Layer:
    """The linear maps of one transformer layer.

    With a gated feed-forward network (Llama), `feed_forward_gate` takes the same input as `feed_forward_in`, and the
    product of their outputs, the gate's after its activation function, enters `feed_forward_out`.
    """

    query: Projection
    key: Projection
    value: Projection
    attention_output: Projection
    feed_forward_in: Projection
    feed_forward_out: Projection
    feed_forward_gate: Projection | None = None

    @property
    def projections(self) -> tuple[Projection, ...]:
        """The maps that this layer has."""
        return tuple(part for part in vars(self).values() if part is not None)


class Family(ABC):
    """One architecture family: where its parts are, and how to compute logits from embeddings.

    Paths are relative to the classification model; `None` means that the family has no such part. `rotary` says that
    attention rotates queries and keys by their position (RoPE); such a model needs no table of positions. `gguf` is the
    architecture's name in GGUF files.
    """

    name: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]
    tasks: ClassVar[tuple[Task, ...]] = ("classification",)
    word_embedding: ClassVar[str]
    position_embedding: ClassVar[str | None] = None
    type_embedding: ClassVar[str | None] = None
    embedding_norm: ClassVar[str | None] = None
    rotary: ClassVar[bool] = False
    gguf: ClassVar[str | None] = None

    def check_task(self, task: Task) -> None:
        """Raise a GradleakError unless this family supports the task."""
        if task not in self.tasks:
            raise GradleakError(f"{self.name} models are not supported for {task}; try {self.tasks[0]}")

    @abstractmethod
    def classifier(self, model: nn.Module, task: Task) -> str:
        """Return the path of the last linear layer, whose output are the logits."""

    @abstractmethod
    def layers(self, model: nn.Module) -> list[Layer]:
        """Return the transformer layers in order; layers that share weights are listed once."""

    def position_offset(self, config: Any) -> int:  # noqa: ANN401 - configurations have no common type
        """Return the row of the position table that belongs to the first token."""
        return 0

    def max_positions(self, config: Any) -> int | None:  # noqa: ANN401
        """Return the most tokens that a model without a table of positions was made for; None for any number."""
        return int(config.max_position_embeddings) if self.rotary else None

    def relative_scores(self, model: nn.Module, tokens: int) -> Tensor | None:
        """Return what relative positions add to attention scores `[heads, tokens, tokens]`; None if nothing."""
        return None

    def embedding_scale(self, config: Any) -> float:  # noqa: ANN401
        """Return the factor that the model applies to word embeddings before anything else."""
        return 1.0

    def logits_capped(self, config: Any) -> bool:  # noqa: ANN401
        """Return whether logits pass through a soft cap after the output layer (Gemma 2)."""
        return getattr(config, "final_logit_softcapping", None) is not None

    def logit_slopes(self, config: Any, logits: Tensor) -> Tensor:  # noqa: ANN401
        """Return the derivatives of a language model's logits by what its output layer returns, of the same shape."""
        if not self.logits_capped(config):
            return torch.ones_like(logits)
        return 1 - (logits / float(config.final_logit_softcapping)).square()

    def adapt(self, model: nn.Module) -> None:  # noqa: B027 - most families need no change
        """Replace modules that attacks cannot work with, in place; weights keep their names and values."""

    def logits(self, model: nn.Module, embeddings: Tensor, mask: Tensor, task: Task) -> Tensor:
        """Return the logits of sequences given as word embeddings.

        Args:
            model: the Hugging Face model.
            embeddings: word embeddings `[sequences, tokens, width]`.
            mask: True where there is a token `[sequences, tokens]`.
            task: what the model does.
        """
        return model(inputs_embeds=embeddings, attention_mask=additive_mask(mask, embeddings)).logits

    def embedding_parameters(self, model: nn.Module) -> frozenset[str]:
        """Return the parameters that a client with frozen embeddings does not send."""
        paths = (
            self.word_embedding,
            self.position_embedding,
            self.type_embedding,
            self.embedding_norm,
        )
        return frozenset(
            f"{path}.{name}"
            for path in paths
            if path is not None
            for name, _ in model.get_submodule(path).named_parameters()
        )


def additive_mask(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask to add to attention scores `[sequences, 1, 1, tokens]`: 0 for tokens, very negative for padding.

    With four dimensions models use it unchanged. They would inspect the values of a two-dimensional one to see whether
    it can be dropped, which synchronises a GPU at every call.
    """
    lowest = torch.finfo(like.dtype).min
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(~mask, lowest)[:, None, None, :]


FAMILIES: dict[str, Family] = {}


def register(family: type[Family]) -> type[Family]:
    """Register the decorated family under its model types."""
    for model_type in family.model_types:
        FAMILIES[model_type] = family()
    return family


def family_of(model_type: str) -> Family:
    """Return the family of a Hugging Face `model_type`; raise a GradleakError that lists the supported ones."""
    try:
        return FAMILIES[model_type]
    except KeyError:
        raise GradleakError(
            f"architecture '{model_type}' is not supported; supported: {', '.join(sorted(FAMILIES))}"
        ) from None
