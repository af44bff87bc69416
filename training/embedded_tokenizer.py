"""Make the shipped tokenizer files: Google's uncased BERT WordPiece, without saved padding.

Published copies of this tokenizer often carry the padding and truncation of the model that they
were saved with, which would silently cut or fill every text. Usage:

    python training/embedded_tokenizer.py SOURCE_FOLDER TARGET_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MAX_LENGTH = 256  # the positions that both embedded models have


def clean_tokenizer(source: Path, target: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` of `source`, cleaned, into `target`."""
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["truncation"] = None
    tokenizer["padding"] = None
    config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "model_max_length": MAX_LENGTH,
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }
    target.mkdir(parents=True, exist_ok=True)
    compact = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))
    (target / "tokenizer.json").write_text(compact + "\n", encoding="utf-8")
    (target / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    clean_tokenizer(Path(sys.argv[1]), Path(sys.argv[2]))
