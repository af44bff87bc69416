"""The settings of an inverter and of its training, each declared once.

`gradleak.inversion.Recipe` checks them, `Card` stores those of the network, and `gradleak invert train` makes its
options of them. This module must not import torch: the command line reads it to print its help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gradleak.settings import check_settings, setting, settings_of

MOST_SEQUENCES = 4


@dataclass(frozen=True, kw_only=True)
class InverterSettings:
    """What an inverter reads and how its network is built; LTI's values (section 4.2) are noted beside each."""

    tokens: int = setting(
        16, "the most tokens of a sentence, special ones included", unit="tokens", least=1, paper="16"
    )
    shortest: int = setting(
        16,
        "the fewest tokens of a sentence; if equal to the most, text is joined and cut into pieces of that length",
        unit="tokens",
        least=1,
        paper="16",
    )
    # Every order of a batch's sentences is tried against the answers: 24 for four of them.
    sequences: int = setting(
        1, "sentences in a client's batch", unit="sentences", least=1, most=MOST_SEQUENCES, paper="1"
    )
    embeddings: str = setting(
        "frozen",
        "which embedding gradients the clients send: frozen (none), words-frozen (all but those of words) or trained",
        paper="words-frozen, as we read it",
    )
    dropout: bool = setting(False, "whether the clients train with dropout")
    reduction: Literal["keep", "hash"] = setting(
        "keep", "the features: the gradients that tell most about the text (keep), or all of them hashed", paper="hash"
    )
    share: float = setting(
        0.1, "the most features for each entry of the gradient", unit="features per entry", above=0, most=1, paper="0.1"
    )
    output: Literal["words", "vocabulary"] = setting(
        "words",
        "the output: embeddings, compared with the target's frozen word embeddings (words), or a logit for every token",
        paper="vocabulary",
    )
    hidden: tuple[int, ...] = setting(
        (600, 1000), "widths of the hidden layers", unit="units", least=1, paper="600,1000"
    )
    direct: bool = setting(True, "add a linear map from the features to the output", paper="false")
    seed: int = setting(0, "seed of everything random")

    def __post_init__(self) -> None:
        check_settings(self)
        for width in self.hidden:
            settings_of(InverterSettings)["hidden"].check(width)

    def network_settings(self) -> dict[str, Any]:
        """Return the settings that training and a saved inverter have in common, by name."""
        return {name: getattr(self, name) for name in settings_of(InverterSettings)}


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(InverterSettings):
    """How an inverter is trained: the settings of its network, and those of the optimiser."""

    lr: float = setting(1e-3, "learning rate of Adam", above=0, paper="the best of 1e-3, 1e-4 and 1e-5")
    decay: bool = setting(True, "let the learning rate fall linearly to zero over all epochs", paper="false")
    batch: int = setting(64, "examples in a step of the optimiser", unit="examples", least=1, paper="64")
    epochs: int = setting(20, "the most passes over the auxiliary text", unit="epochs", least=1, paper="20")
    patience: int = setting(
        2, "stop when held-out accuracy has not risen for so many epochs; 0 for never", unit="epochs", least=0
    )
    chunk: int = setting(512, "examples whose gradients are computed at once", unit="examples", least=1)
    probe: int = setting(1_024, "examples on which `keep` measures what each gradient tells", unit="examples", least=1)
