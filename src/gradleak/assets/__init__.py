"""The models that ship with gradleak: every study runs without a network. `targets` and `priors` load them.

`tiny` is a small BERT (uncased WordPiece vocabulary of 30,522, four layers, hidden size 128) for clients to fine-tune;
`prior` is a small GPT-2 over the same vocabulary that scores how likely a text is. The tokenizer of both is in the
folder of `tiny`. Each folder has a `CARD.md` with training data, quality and licence.

The weights are stored compactly (`gradleak.assets.storage`), not in the layout that `from_pretrained` expects: load
them with `gradleak.assets.models`. This module does not import torch: asking for a path is cheap.
"""

from __future__ import annotations

from pathlib import Path

from gradleak.errors import unknown_name

_NAMES = ("tiny", "prior")
_PUBLIC_TEXT = "rotten_tomatoes"


def embedded_names() -> tuple[str, ...]:
    """Return the names of the embedded models."""
    return _NAMES


def asset_path(name: str) -> Path:
    """Return the folder of the embedded model `name` inside the package.

    Raises:
        GradleakError: If there is no embedded model of that name.
    """
    if name not in _NAMES:
        raise unknown_name("embedded model", name, _NAMES)
    return Path(__file__).resolve().parent / name


def image_asset(name: str) -> Path:
    """Return the path of a file that ships for attacks on images: the sample and its card."""
    return Path(__file__).resolve().parent / "images" / name


def sample_texts() -> tuple[str, ...]:
    """Return sentences of a shipped sample, last one first, for training on public text: attacks begin at its start."""
    path = Path(__file__).resolve().parent / "datasets" / f"{_PUBLIC_TEXT}.tsv"
    rows = path.read_text(encoding="utf-8").split("\n")[1:]
    return tuple(row.partition("\t")[2] for row in reversed(rows) if row)
