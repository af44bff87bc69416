"""Which of the inverters in a folder can read an update; used by the attacks `lti` and `lti-p`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gradleak.errors import GradleakError
from gradleak.inverters.card import Card
from gradleak.inverters.network import Inverter
from gradleak.inverters.storage import inverters_in, load_inverter, read_card
from gradleak.targets import Target


@dataclass(frozen=True, kw_only=True)
class InverterNeeds:
    """What updates demand of an inverter that shall read them.

    Attributes:
        sent: names of the parameters whose gradients were sent.
        sequences: sentences in a batch.
        longest: tokens of the longest sentence; 0 if lengths are not known.
        defenses: the defenses of the clients; None if they are not known.
        pseudo_only: whether the inverter must have been trained on pseudo-data alone (LTI-P).
    """

    sent: Collection[str]
    sequences: int = 1
    longest: int = 0
    defenses: tuple[str, ...] | None = None
    pseudo_only: bool = False

    def misfit(self, card: Card) -> str | None:
        """Return why an inverter cannot read the updates; None if it can. Another defense is no reason."""
        missing = [name for name in card.parameters if name not in self.sent]
        if card.sequences != self.sequences:
            return f"it was trained for batches of {card.sequences}, and this one has {self.sequences}"
        if missing:
            return f"it reads the gradient of {missing[0]}, which was not sent"
        if self.longest > card.tokens:
            return f"it was trained for at most {card.tokens} tokens, and this text has {self.longest}"
        if self.pseudo_only and not card.pseudo:
            return "it was trained on text, not on pseudo-data alone"
        return None


def choose_inverter(folder: str, target: Target, needs: InverterNeeds) -> tuple[Inverter, tuple[str, ...]]:
    """Return the inverter for some updates, and a note if it was trained under other defenses than theirs.

    Args:
        folder: holds an inverter, or folders that hold one each.
        target: the model.
        needs: what the inverter must be able to read. One trained under the same defenses is preferred.

    Raises:
        GradleakError: if no inverter in the folder is for this target, or none can read the updates.
    """
    cards = {path: read_card(path) for path in inverters_in(folder)}
    if not cards:
        raise GradleakError(
            f"there is no inverter in '{folder}'; train one with gradleak invert train and give its folder "
            "with --set inverter=DIR"
        )
    own = {path: card for path, card in cards.items() if card.origin.fingerprint == target.fingerprint}
    if not own:
        load_inverter(next(iter(cards)), target)  # raises an error that names both targets
    misfits = {path: needs.misfit(card) for path, card in own.items()}
    fitting = [path for path, reason in misfits.items() if reason is None]
    if not fitting:
        raise GradleakError(f"no inverter in '{folder}' fits this update: {next(iter(misfits.values()))}")
    chosen = min(fitting, key=lambda path: needs.defenses not in (None, own[path].defenses))
    return load_inverter(chosen, target), _defense_notes(own[chosen], needs.defenses, chosen)


def _defense_notes(card: Card, known: tuple[str, ...] | None, folder: Path) -> tuple[str, ...]:
    if known is None or known == card.defenses:
        return ()
    trained, sent = (" + ".join(defenses) or "none" for defenses in (card.defenses, known))
    return (f"the inverter in {folder} learnt under defense {trained}; this update is under {sent}",)
