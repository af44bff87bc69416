"""What server and clients share: a small BERT that ships with gradleak, and the texts of each site."""

from __future__ import annotations

from transformers import BertForSequenceClassification

import gradleak as gl
from gradleak.data import load_dataset

RATE, TEXTS_A_ROUND, LEAST_WORDS, MOST_WORDS = 5e-5, 2, 5, 9
PROTOCOL = f"optimizer=adamw,lr={RATE},steps={TEXTS_A_ROUND},batch=1"


class TinyClassifier(BertForSequenceClassification):
    """The embedded model `tiny` with two classes, as a class that FLARE can build by name."""

    def __init__(self) -> None:
        source = gl.load_target("tiny", num_labels=2).model
        super().__init__(source.config)
        self.load_state_dict(source.state_dict())


def labelled_texts(site: str, number: int) -> list[tuple[str, int]]:
    """Return texts and labels that a site trains on in a round: its share of the shipped CoLA sample."""
    data = load_dataset("cola")
    short = [i for i, text in enumerate(data.texts) if LEAST_WORDS <= len(text.split()) <= MOST_WORDS]
    first = 8 * (int(site.rpartition("-")[2]) - 1) + number * TEXTS_A_ROUND
    return [(data.texts[i], (data.labels or ())[i]) for i in short[first : first + TEXTS_A_ROUND]]


def own_texts(site: str, number: int) -> list[str]:
    """Return the texts alone, for the filter that scores a site's own update."""
    return [text for text, _ in labelled_texts(site, number)]
