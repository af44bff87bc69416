"""A small Llama with random weights and the embedded vocabulary, for cases of fuzz.py that take no time."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from gradleak.assets import asset_path

NAME = "small-llama"
"""What fuzz.py calls it."""

SHAPE = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "vocab_size": 30_522,
    "pad_token_id": 0,
}


def small_decoder(parent: Path | None = None) -> Path:
    """Write the model's configuration and tokenizer into a new folder, and return it; it has no weights.

    Args:
        parent: the folder to put it in; that for temporary files by default.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{NAME}-", dir=parent))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(asset_path("tiny") / name, folder / name)
    (folder / "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
    return folder
