"""The models that gradleak ships, so that every study runs without a network.

`tiny` is a small BERT (uncased WordPiece vocabulary of 30,522, four layers, hidden size 128) for
clients to fine-tune; `prior` is a small GPT-2 over the same vocabulary that tells an attack how
likely a text is. The tokenizer of both lies in the folder of `tiny`. Each folder has a `CARD.md`
that says what the model was trained on, how well it does, and under which licence it ships.

The weights are stored compactly (`gradleak.assets.storage`), not in the layout that
`from_pretrained` expects: load them with `gradleak.assets.models`. This module imports no torch,
so that asking for a path costs nothing.
"""

from __future__ import annotations

from pathlib import Path

from gradleak.errors import unknown_name

_NAMES = ("tiny", "prior")


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
