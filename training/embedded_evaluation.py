"""Figures of the trained models, measured on the files that ship."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from embedded_corpus import BatchSource, Corpus, encode_lines, load_tokenizer, pack, plan_once
from embedded_models import CausalObjective, Objective
from embedded_trainer import held_out_score
from gradleak.assets.models import load_embedded_masked_lm, load_embedded_prior

_BATCH_TOKENS = 16_384
_SEED = 0


def load_shipped(name: str, folder: Path) -> PreTrainedModel:
    """Load the model from a folder of compact files."""
    return load_embedded_masked_lm(folder) if name == "tiny" else load_embedded_prior(folder)


@torch.no_grad()
def measure(
    objective: Objective,
    model: PreTrainedModel,
    corpus: Corpus,
    cola: Path | None,
    vocabulary: Path,
    device: torch.device,
) -> dict[str, Any]:
    """Measure one model on the held-out lines and, for the prior, on CoLA."""
    torch.nn.Module.to(model, device).train(False)
    lines = corpus.evaluation_lines()
    held_out = pack([_line(corpus, number) for number in lines])
    plan = plan_once(held_out.lengths, np.arange(len(lines)), _BATCH_TOKENS)
    loss, accuracy = held_out_score(objective, model, BatchSource(held_out, device), plan, _SEED)
    figures: dict[str, Any] = {
        "held_out_lines": len(lines),
        "held_out_loss": round(loss, 4),
        "held_out_perplexity": round(math.exp(min(loss, 50.0)), 2),
        "held_out_top1": round(accuracy, 4),
    }
    if isinstance(objective, CausalObjective) and cola is not None:
        figures |= measure_order(objective, model, read_cola(cola), vocabulary, device)
    return figures


def _line(corpus: Corpus, number: int) -> list[int]:
    ids: list[int] = corpus.tokens[corpus.offsets[number] : corpus.offsets[number + 1]].tolist()
    return ids


def read_cola(path: Path) -> list[str]:
    """Return the acceptable sentences of 5 to 12 words of a CoLA file `label<TAB>text`."""
    rows = [line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    accepted = [row[1].strip() for row in rows if len(row) == 2 and row[0] == "1"]
    return [text for text in accepted if 5 <= len(text.split()) <= 12]


def measure_order(
    objective: CausalObjective,
    model: PreTrainedModel,
    sentences: list[str],
    vocabulary: Path,
    device: torch.device,
) -> dict[str, Any]:
    """Return how often a sentence is more likely than its words in another order."""
    random = np.random.default_rng(_SEED)
    # The tokenizer lowers the case: words that differ only in case are the same word.
    words = [text.lower().split() for text in sentences]
    words = [line for line in words if len(set(line)) > 1]
    texts = list(words)
    texts += [shuffled(line, random) for line in words]
    texts += [swapped(line, random) for line in words]
    tokenizer = load_tokenizer(vocabulary)
    ids = encode_lines(tokenizer, [" ".join(line) for line in texts])
    original, shuffle, swap = text_losses(objective, model, ids, device).reshape(3, -1)
    return {
        "cola_sentences": len(words),
        "cola_prefers_to_shuffle": round(float((original < shuffle).float().mean()), 4),
        "cola_prefers_to_swap": round(float((original < swap).float().mean()), 4),
    }


def shuffled(words: list[str], random: np.random.Generator) -> list[str]:
    """Return the words in a random order that differs from the original."""
    while True:
        other = [words[i] for i in random.permutation(len(words))]
        if other != words:
            return other


def swapped(words: list[str], random: np.random.Generator) -> list[str]:
    """Return the words with two different neighbours exchanged."""
    places = [i for i in range(len(words) - 1) if words[i] != words[i + 1]]
    place = places[int(random.integers(len(places)))]
    return [*words[:place], words[place + 1], words[place], *words[place + 2 :]]


@torch.no_grad()
def text_losses(
    objective: CausalObjective, model: PreTrainedModel, ids: list[list[int]], device: torch.device
) -> Tensor:
    """Return the total negative log-likelihood of each text, [texts]."""
    corpus = pack(ids)
    plan = plan_once(corpus.lengths, np.arange(len(ids)), _BATCH_TOKENS)
    totals = torch.zeros(len(ids), dtype=torch.float64)
    generator = torch.Generator()
    batches = BatchSource(corpus, device).serve(plan)
    for batch, (_, first, last) in zip(batches, plan.batches, strict=True):
        losses, _ = objective.score(model, batch, generator)
        numbers = torch.from_numpy(plan.lines[first:last])
        # Predictions are ordered by row: every token but the first of a row is predicted once.
        rows = numbers.repeat_interleave(batch.lengths.cpu() - 1)
        totals.index_add_(0, rows, losses.double().cpu())
    return totals
