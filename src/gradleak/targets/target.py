"""`Target`: the model under audit, its tokenizer, and where its layers are; every other room takes one.

Nothing here trains or attacks: a Target answers questions and computes losses.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradleak.errors import GradleakError
from gradleak.targets.adapters.adapter import AdaptedModule, Adapter
from gradleak.targets.layout import Family, Layer, Task
from gradleak.targets.losses import BatchLoss, cross_entropy
from gradleak.targets.tokens import Tokens, pad_rows


class Target:
    """A model with its tokenizer, seen through its family's layout.

    Its parameters never require a gradient and using a Target never changes them: to differentiate by parameters, pass
    copies of them to `loss_with`.

    Args:
        model: a Hugging Face model, or any module that `family` can drive.
        tokenizer: the model's tokenizer.
        family: the layout of the model's architecture.
        name: the name the user gave.
        task: what the model does.
        seed: seed of weights that are not from a checkpoint (usually the head).
        trained_head: whether the classifier's weights are from a checkpoint.

    Attributes:
        adapter: the adapters in the model, which clients then train in place of its own weights; None without them.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,  # noqa: ANN401 - Hugging Face tokenizers have no common typed base
        family: Family,
        *,
        name: str = "custom",
        task: Task = "classification",
        seed: int = 0,
        trained_head: bool = False,
    ) -> None:
        family.check_task(task)
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.family = family
        self.name = name
        self.task: Task = task
        self.seed = seed
        self.trained_head = trained_head
        self.adapter: Adapter | None = None
        self._loss = BatchLoss(self)
        self._fingerprint: tuple[Any, str] | None = None
        self._directions: tuple[Any, Tensor] | None = None

    def __repr__(self) -> str:
        return f"Target({self.name!r}, family={self.family.name!r}, task={self.task!r}, num_labels={self.num_labels})"

    # --- facts -------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.word_embeddings.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        return self.word_embeddings.dtype

    @property
    def config(self) -> Any:  # noqa: ANN401
        """The Hugging Face configuration."""
        return self.model.config

    @property
    def num_labels(self) -> int:
        """Number of classes; for a language model, the size of the vocabulary."""
        return int(self.config.num_labels if self.task == "classification" else self.config.vocab_size)

    @property
    def class_names(self) -> dict[str, int]:
        """Class numbers by the names in the model's configuration."""
        if self.task != "classification":
            return {}
        numbers = dict(getattr(self.config, "label2id", None) or {})
        names = dict(getattr(self.config, "id2label", None) or {})
        return {str(n): int(i) for n, i in numbers.items()} | {str(n): int(i) for i, n in names.items()}

    @property
    def min_length(self) -> int:
        """Fewest tokens of a text, special tokens included; a language model needs one token to predict."""
        return max(sum(map(len, self.special_tokens)) + 1, 2 if self.task == "causal-lm" else 1)

    @property
    def max_length(self) -> int:
        """Most tokens of a sequence, special tokens included."""
        if self.family.position_embedding is None:
            limit = self.family.max_positions(self.config)
            return min(int(self.tokenizer.model_max_length), sys.maxsize if limit is None else limit)
        rows = self._weight(self.family.position_embedding).shape[0]
        return rows - self.family.position_offset(self.config)

    @cached_property
    def special_tokens(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids that the tokenizer adds before and after every text."""
        bare = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        full = self.tokenizer("a")["input_ids"]
        start = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)
        return tuple(full[:start]), tuple(full[start + len(bare) :])

    @cached_property
    def impossible_ids(self) -> tuple[int, ...]:
        """Ids that tokenising a text never gives: special tokens, unused entries, rows beyond the vocabulary."""
        vocabulary = self.tokenizer.get_vocab()
        special = {int(i) for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        unused = {index for word, index in vocabulary.items() if word.startswith("[unused") and word.endswith("]")}
        beyond = set(range(len(self.word_embeddings))) - set(vocabulary.values())
        return tuple(sorted(unused | beyond | special | set(self.tokenizer.all_special_ids)))

    @cached_property
    def pad_id(self) -> int:
        """Id that fills the positions of a batch that hold no token; masks hide it from the model.

        It is the tokenizer's padding token, unless there is none or every text is framed by it: then the end of text or
        another id that no text is tokenised into, so that a filled position can be told from a token.
        """
        own, end = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        free = [
            index for index in self.impossible_ids if index not in {*self.special_tokens[0], *self.special_tokens[1]}
        ]
        choices = [index for index in (own, end) if index in free] or free or [0 if own is None else own]
        return int(choices[0])

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the names, shapes and values of all weights."""
        state = tuple((n, p.data_ptr(), p._version, p.dtype) for n, p in self.parameters.items())
        if self._fingerprint is None or self._fingerprint[0] != state:
            self._fingerprint = state, self._hash()
        return self._fingerprint[1]

    @property
    def adapter_fingerprint(self) -> str:
        """SHA-256 over the names, shapes and values of what clients train: the adapters and their classifier."""
        return self._hash(self.trained_parameters)

    def _hash(self, names: Iterable[str] | None = None) -> str:
        digest = hashlib.sha256()
        for name in sorted(self.parameters if names is None else names):
            parameter = self.parameters[name]
            digest.update(f"{name}{tuple(parameter.shape)}".encode())
            digest.update(parameter.detach().to("cpu", torch.float32).contiguous().numpy().data)
        return digest.hexdigest()

    # --- parts -------------------------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """All parameters by name; tied ones appear once. Those of adapters have the names that PEFT saves them by."""
        return {self._public_name(name): parameter for name, parameter in self.model.named_parameters()}

    @cached_property
    def _own_names(self) -> dict[str, str]:
        """Names of the parameters in the model, by their public names."""
        return {self._public_name(name): name for name, _ in self.model.named_parameters()}

    def _public_name(self, name: str) -> str:
        return name if self.adapter is None else self.adapter.public_name(name)

    @cached_property
    def trained_parameters(self) -> list[str]:
        """Names of the parameters that clients may train: all, or those of the adapters and their classifier."""
        adapter = self.adapter
        return [name for name in self.parameters if adapter is None or adapter.trains(name)]

    @property
    def adapters(self) -> tuple[AdaptedModule, ...]:
        """The adapted modules, first layer first; empty without adapters."""
        return () if self.adapter is None else self.adapter.modules

    @cached_property
    def parameter_owners(self) -> dict[nn.Module, dict[str, str]]:
        """Modules that own parameters, each with the full names of its parameters by their local names."""
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        owners = {
            module: {own: names[id(parameter)] for own, parameter in module.named_parameters(recurse=False)}
            for module in self.model.modules()
        }
        return {module: own for module, own in owners.items() if own}

    @property
    def word_embeddings(self) -> Tensor:
        """The word-embedding table `[vocabulary, width]`."""
        return self._weight(self.family.word_embedding)

    @property
    def word_directions(self) -> Tensor:
        """The word embeddings scaled to norm 1 `[vocabulary, width]`, cached until the table changes."""
        table = self.word_embeddings
        state = table.data_ptr(), table._version, table.dtype
        if self._directions is None or self._directions[0] != state:
            self._directions = state, functional.normalize(table.detach(), dim=-1)
        return self._directions[1]

    @property
    def classifier(self) -> str:
        """Path of the last linear layer."""
        return self.family.classifier(self.model, self.task)

    @property
    def classifier_weight(self) -> str:
        """Name of the last linear layer's weight."""
        return self._public_name(f"{self.classifier}.weight")

    @property
    def classifier_bias(self) -> str:
        """Name of the last linear layer's bias, whether it has one or not."""
        return self._public_name(f"{self.classifier}.bias")

    @property
    def layers(self) -> list[Layer]:
        """The transformer layers, first one first."""
        return self.family.layers(self.model)

    @property
    def dropouts(self) -> dict[str, float]:
        """Dropout rates by path of the dropout module."""
        return {n: m.p for n, m in self.model.named_modules() if isinstance(m, nn.Dropout)}

    @cached_property
    def word_parameters(self) -> frozenset[str]:
        """Name of the word-embedding table's parameter."""
        return frozenset({self._public_name(f"{self.family.word_embedding}.weight")})

    @cached_property
    def embedding_parameters(self) -> frozenset[str]:
        """Names of the word, position and type embeddings and of their LayerNorm's parameters."""
        return frozenset(map(self._public_name, self.family.embedding_parameters(self.model)))

    def _weight(self, path: str) -> Tensor:
        weight: Tensor = self.model.get_submodule(path).weight  # type: ignore[assignment]
        return weight

    def with_model(self, model: nn.Module, adapter: Adapter | None = None) -> Target:
        """Return a target with the same tokenizer, name and task around another model, which holds these adapters."""
        other = Target(model, self.tokenizer, self.family, name=self.name, task=self.task, seed=self.seed)
        other.trained_head, other.adapter = self.trained_head, adapter
        return other

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Target:
        """Move the weights, and return the target."""
        self.model.to(device=device, dtype=dtype)
        return self

    # --- text and tokens ---------------------------------------------------------------------------------------

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Tokenise texts into one padded batch; raise a GradleakError for an empty or over-long text."""
        if isinstance(texts, str):
            raise GradleakError("texts must be a list of strings, not one string")
        if not texts:
            raise GradleakError("there is no text")
        rows = self.tokenizer(list(texts))["input_ids"]
        specials = sum(map(len, self.special_tokens))
        for number, (text, row) in enumerate(zip(texts, rows, strict=True), start=1):
            if len(row) <= specials:
                raise GradleakError(f"text {number} is empty")
            if len(row) < self.min_length:
                raise GradleakError(f"text {number} is one token; a language model has nothing to predict in it")
            if len(row) > self.max_length:
                raise GradleakError(
                    f"text {number} has {len(row)} tokens; {self.name} takes at most {self.max_length} ({text[:40]!r}…)"
                )
        return self.pad(rows)

    def pad(self, rows: Sequence[Sequence[int]]) -> Tokens:
        """Return `ids, mask` of token ids of several lengths, padded on the right, on the target's device.

        Args:
            rows: the token ids of each sequence, special tokens included; at least one sequence.
        """
        return pad_rows(rows, self.pad_id, self.device)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens left out.

        The unknown token is kept, because it replaces something that was in the text, except where it is also the
        end-of-text token, as in GPT-2.
        """
        unknown = self.tokenizer.unk_token_id
        frame = {*self.special_tokens[0], *self.special_tokens[1], self.pad_id}
        left_out = set(self.tokenizer.all_special_ids) - ({unknown} - frame - {self.tokenizer.eos_token_id})
        text: str = self.tokenizer.decode([token for token in ids if token not in left_out])
        return text.strip()

    # --- losses ------------------------------------------------------------------------------------------------

    def embed(self, ids: Tensor) -> Tensor:
        """Return word embeddings `[…, width]` of token ids `[…]`."""
        return functional.embedding(ids, self.word_embeddings)

    def logits(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        """Return logits `[sequences, classes]`; for a language model `[sequences, tokens, vocabulary]`.

        Args:
            embeddings: word embeddings `[sequences, tokens, width]`.
            mask: True where there is a token `[sequences, tokens]`.
        """
        return self.family.logits(self.model, embeddings, mask, self.task)

    def sequence_losses(self, embeddings: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """Return each sequence's loss `[sequences]`; the loss of a batch is their mean.

        Args:
            embeddings: word embeddings `[sequences, tokens, width]`.
            mask: True where there is a token `[sequences, tokens]`.
            labels: classes `[sequences]`, or a distribution over them `[sequences, classes]`; for a language model
                token ids `[sequences, tokens]`, or distributions `[sequences, tokens, vocabulary]`.
        """
        logits = self.logits(embeddings, mask)
        if self.task == "classification":
            return cross_entropy(logits, labels)
        predicted = mask[:, 1:].to(logits.dtype)
        losses = cross_entropy(logits[:, :-1], labels[:, 1:])
        return (losses * predicted).sum(dim=1) / predicted.sum(dim=1)

    def loss_with(self, parameters: Mapping[str, Tensor], inputs: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch with some parameters replaced.

        Args:
            parameters: replacements by name; all other parameters are the target's own.
            inputs: token ids `[sequences, tokens]`, or word embeddings `[sequences, tokens, width]`.
            mask: see `sequence_losses`, like `labels`.
            labels: see `sequence_losses`.
        """
        renamed = {f"model.{self._own_names[name]}": value for name, value in parameters.items()}
        return torch.func.functional_call(self._loss, renamed, (inputs, mask, labels))
