"""Causal language models as priors: how likely is a token sequence as text?"""

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

# Logits that are alive at once: a vocabulary is wide.
MOST_LOGITS = 1 << 28


class Prior(ABC):
    """A language model that judges token sequences of a target."""

    @abstractmethod
    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the mean negative log-likelihood of each sequence's tokens.

        Args:
            ids: token ids of the target `[…, tokens]`, special tokens included, padded on the right.
            mask: True where there is a token `[…, tokens]`.

        Returns:
            One number for each sequence `[…]`: what LAMP (section 3.3) calls perplexity.
        """


class SharedVocabulary(Prior):
    """A prior over the target's own vocabulary: the embedded one. Its texts begin with [CLS] and end with [SEP].

    Args:
        model: the language model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model.eval().requires_grad_(False)

    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Score the ids as they are."""
        return _likelihood(self.model, ids.flatten(0, -2), mask.flatten(0, -2)).view(ids.shape[:-1])


class OtherVocabulary(Prior):
    """Any causal language model: sequences are decoded and tokenised again.

    Args:
        model: the language model.
        tokenizer: its tokenizer.
        target: the model whose sequences are judged.
    """

    def __init__(self, model: torch.nn.Module, tokenizer: Any, target: Target) -> None:  # noqa: ANN401
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.target = target

    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Decode, tokenise again, score; a beginning-of-text token goes first where the model has one."""
        rows = ids.flatten(0, -2).tolist()
        kept = mask.flatten(0, -2).tolist()
        texts = [
            self.target.decode([i for i, k in zip(r, m, strict=True) if k]) for r, m in zip(rows, kept, strict=True)
        ]
        encoded = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        start = self.tokenizer.bos_token_id
        start = self.model.config.bos_token_id if start is None else start  # type: ignore[union-attr]
        encoded = [([start] if start is not None else []) + row for row in encoded]
        longest = max(2, max(map(len, encoded)))
        again = torch.zeros(len(encoded), longest, dtype=torch.long, device=ids.device)
        there = torch.zeros(len(encoded), longest, dtype=torch.bool, device=ids.device)
        for number, row in enumerate(encoded):
            again[number, : len(row)] = torch.tensor(row, dtype=torch.long)
            there[number, : len(row)] = True
        return _likelihood(self.model, again, there).view(ids.shape[:-1])


def load_prior(name: str, target: Target) -> Prior:
    """Load a prior for a target.

    Args:
        name: `embedded`, or the directory or hub id of a Hugging Face causal language model.
        target: the model under attack; where its vocabulary is not the embedded prior's, texts are tokenised again.

    Raises:
        GradleakError: if there is no such model. Pickled weights and code that comes with a prior are always refused:
            the name may be from a study that somebody else wrote.
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
def _likelihood(model: torch.nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the mean negative log-likelihood `[sequences]` of all tokens but the first.

    Of sequences that are longer than the model can read, it is that of one stretch after the other.
    """
    vocabulary = int(model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    window = min(ids.shape[1], getattr(model.config, "max_position_embeddings", None) or ids.shape[1])
    step = max(1, MOST_LOGITS // (vocabulary * window))
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
