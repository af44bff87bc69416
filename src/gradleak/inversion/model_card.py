"""CARD.md: what an inverter is for and how it was trained, for people."""

from __future__ import annotations

from pathlib import Path

from gradleak.files import write_atomically
from gradleak.inversion.recipe import Recipe
from gradleak.inverters.card import Card
from gradleak.inverters.storage import FILE
from gradleak.version import __version__


def write_card(folder: Path, card: Card, recipe: Recipe) -> None:
    """Write CARD.md into the folder of a saved inverter."""
    lengths = f"{card.tokens}" if card.tokens == card.shortest else f"{card.shortest} to {card.tokens}"
    size = (folder / FILE).stat().st_size / 2**20
    rows = {
        "target": f"{card.origin.name}, {card.origin.task}, seed {card.origin.seed}",
        "target's hash": card.origin.fingerprint,
        "batches": f"{card.sequences} of {lengths} tokens",
        "clients": f"embeddings {card.embeddings}, {'dropout' if card.dropout else 'no dropout'}",
        "defenses": ", ".join(card.defenses) or "none",
        "data": card.data,
        "reduction": f"{card.reduction}, {card.share:g} of the gradient at most, {len(card.parameters)} parameters",
        "network": f"hidden {', '.join(map(str, card.hidden))}{', direct map' if card.direct else ''}; {card.output}",
        "training": f"Adam, lr {recipe.lr:g}, batch {recipe.batch}, {card.samples:,} examples, seed {card.seed}",
        "held-out accuracy": f"{card.accuracy:.1f} % of tokens",
        "size": f"{size:.1f} MiB",
        "gradleak": __version__,
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    text = f"""# Inverter

Maps the gradient of one private batch to its tokens (Learning to Invert). It reads updates of the target below and of
no other model. Made to measure how much federated training leaks; do not use it on people's data without their leave.

    gradleak attack --update FILE --attack lti --set inverter={folder}

| | |
| --- | --- |
{table}
"""
    with write_atomically(folder / "CARD.md", private=False) as temporary:
        temporary.write_text(text, encoding="utf-8")
