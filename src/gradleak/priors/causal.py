"""Causal language models as priors: the likelihood of a token sequence, by which LAMP and sieve rank candidates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from gradleak.assets import asset_path
from gradleak.assets.models import load_embedded_prior
from gradleak.errors import GradleakError
from gradleak.targets import Target, cross_entropy
from gradleak.targets.reading import explained, read_model, read_tokenizer
from gradleak.targets.tokens import pad_rows

MAX_LOGITS_AT_ONCE = 1 << 28  # entries in memory: a vocabulary is wide


class Prior(ABC):
    """Base of all priors: scores token sequences of a target by their likelihood."""

    @abstractmethod
    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the mean negative log-likelihood of each sequence's tokens; lower reads more like text.

        Args:
            ids: token ids of the target `[…, tokens]`, special tokens included, padded on the right.
            mask: True where there is a token `[…, tokens]`.

        Returns:
            One number for each sequence `[…]`: what LAMP (section 3.3) calls perplexity.
        """


class SharedVocabulary(Prior):
    """A prior over the target's own vocabulary, the embedded one, trained on texts between [CLS] and [SEP].

    Args:
        model: the language model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model.eval().requires_grad_(False)

    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Score the token ids directly."""
        return _mean_loss(self.model, ids.flatten(0, -2), mask.flatten(0, -2)).view(ids.shape[:-1])


class OtherVocabulary(Prior):
    """A prior with another vocabulary: sequences are decoded and tokenised again.

    Args:
        model: the language model.
        tokenizer: its tokenizer.
        target: the model whose sequences are scored.
    """

    def __init__(self, model: torch.nn.Module, tokenizer: Any, target: Target) -> None:  # noqa: ANN401
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.target = target

    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Decode, tokenise again and score, with a beginning-of-text token first if the model has one."""
        rows = ids.flatten(0, -2).tolist()
        kept = mask.flatten(0, -2).tolist()
        texts = [
            self.target.decode([i for i, k in zip(r, m, strict=True) if k]) for r, m in zip(rows, kept, strict=True)
        ]
        encoded = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        start = self.tokenizer.bos_token_id
        start = self.model.config.bos_token_id if start is None else start  # type: ignore[union-attr]
        encoded = [([start] if start is not None else []) + row for row in encoded]
        tokens = pad_rows(encoded, 0, ids.device, min_length=2)  # there must be a token to predict
        size = int(self.model.config.vocab_size)  # type: ignore[union-attr, arg-type]
        if int(tokens.ids.max()) >= size:
            raise GradleakError(f"the prior's tokenizer and model do not fit: token {tokens.ids.max()} of {size}")
        return _mean_loss(self.model, tokens.ids, tokens.mask).view(ids.shape[:-1])


def load_prior(name: str, target: Target) -> Prior:
    """Load a prior for a target.

    Args:
        name: `embedded`, or the directory or hub id of a Hugging Face causal language model.
        target: the model under attack; if its vocabulary is not the prior's, sequences are tokenised again.

    Raises:
        GradleakError: if there is no such model. Pickled weights and code that comes with a prior are always refused,
            because the name may come from somebody else's study file.
    """
    folder = Path(name).expanduser()
    if name.startswith((".", "/", "~")) and not folder.is_dir():
        raise GradleakError(f"prior '{name}' is not a folder")
    with explained(f"prior '{name}'"):
        if name == "embedded":
            model: Any = load_embedded_prior()
            tokenizer: Any = read_tokenizer(asset_path("tiny"))
        else:
            source = str(folder) if folder.is_dir() else name
            model = read_model(AutoModelForCausalLM, source, dtype=torch.float32)
            tokenizer = read_tokenizer(source)
    model = model.to(target.device)
    if name == "embedded" and tokenizer.get_vocab() == target.tokenizer.get_vocab() and any(target.special_tokens):
        return SharedVocabulary(model)
    return OtherVocabulary(model, tokenizer, target)


@torch.no_grad()
def _mean_loss(model: torch.nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the mean negative log-likelihood `[sequences]` of all tokens but the first.

    Sequences longer than the model's context are scored in consecutive windows, without the first token of each.
    """
    vocabulary = int(model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    window = min(ids.shape[1], getattr(model.config, "max_position_embeddings", None) or ids.shape[1])
    step = max(1, MAX_LOGITS_AT_ONCE // (vocabulary * window))
    means = []
    for first in range(0, len(ids), step):
        total = counted = torch.zeros(len(ids[first : first + step]), device=ids.device)
        for begin in range(0, ids.shape[1], window):
            part = slice(first, first + step), slice(begin, begin + window)
            rows, there = ids[part], mask[part]
            logits = model(input_ids=rows, attention_mask=there.long(), use_cache=False).logits
            losses = cross_entropy(logits[:, :-1], rows[:, 1:])
            total = total + torch.where(there[:, 1:], losses, 0.0).sum(dim=1)
            counted = counted + there[:, 1:].sum(dim=1)
        means.append(total / counted.clamp(min=1))
    return torch.cat(means)
