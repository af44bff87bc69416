"""LSTM: words are read one after the other, and the state after the last is classified. No positions, no attention."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from gradleak.targets.families.words import WordClassifier
from gradleak.targets.layout import register

FORGET_BIAS = 1.0  # so that an untrained network remembers (Jozefowicz et al. 2015)


class LstmConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Sizes of an LSTM classifier.

    Args:
        vocab_size: rows of the word embeddings.
        embedding_size: their width.
        hidden_size: width of the state.
        dropout: rate before the classifier.
        initializer_range: standard deviation of fresh weights.
        options: what every configuration takes, such as `num_labels`.
    """

    model_type = "lstm"

    def __init__(
        self,
        vocab_size: int = 30_522,
        embedding_size: int = 300,
        hidden_size: int = 512,
        dropout: float = 0.5,
        initializer_range: float = 0.1,
        **options: Any,  # noqa: ANN401
    ) -> None:
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.dropout = dropout
        self.initializer_range = initializer_range
        super().__init__(**options)


class LstmForSequenceClassification(PreTrainedModel):
    """One LSTM layer (Hochreiter and Schmidhuber 1997) and a classifier on its last state.

    It is unrolled by hand: gradients of gradients then exist on every device, examples may be mapped over, and the
    engine sees the linear layers.
    """

    config_class = LstmConfig
    base_model_prefix = "lstm"

    def __init__(self, config: LstmConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.embedding_size)
        self.from_words = nn.Linear(config.embedding_size, 4 * config.hidden_size)
        self.from_state = nn.Linear(config.hidden_size, 4 * config.hidden_size, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels or 2)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Return the logits of token ids or of word embeddings `[sequences, tokens, width]`; padding is passed over."""
        words = self.words(input_ids) if inputs_embeds is None else inputs_embeds
        mask = torch.ones(words.shape[:2], device=words.device) if attention_mask is None else attention_mask
        hidden = cell = words.new_zeros(len(words), self.config.hidden_size)
        for word, is_word in zip(self.from_words(words).unbind(dim=1), mask.bool().unbind(dim=1), strict=True):
            let_in, keep, new, let_out = (word + self.from_state(hidden)).chunk(4, dim=-1)
            kept = torch.sigmoid(keep + FORGET_BIAS) * cell + torch.sigmoid(let_in) * torch.tanh(new)
            shown = torch.sigmoid(let_out) * torch.tanh(kept)
            cell, hidden = (torch.where(is_word[:, None], a, b) for a, b in ((kept, cell), (shown, hidden)))
        return SequenceClassifierOutput(logits=self.classifier(self.dropout(hidden)))


@register
class Lstm(WordClassifier):
    """An LSTM, of which FET's paper attacks one."""

    name: ClassVar[str] = "lstm"
    model_types: ClassVar[tuple[str, ...]] = ("lstm",)


AutoConfig.register(LstmConfig.model_type, LstmConfig)
AutoModelForSequenceClassification.register(LstmConfig, LstmForSequenceClassification)
