"""Scores: how close a reconstruction comes to the private text, and how accurate a classifier is.

Each sentence is scored by ROUGE-1, ROUGE-2 and ROUGE-L (F-measure), exact match and token accuracy,
all from 0 to 100. An update does not show the order of the sentences in a batch, so a reconstructed
batch is first aligned with the truth: by optimal assignment (each reconstruction counts once) or by
the best match (one reconstruction may serve several references). docs/scores.md has the definitions.

    scores    the scores of a sentence and of a batch
    align     which reconstruction is compared with which reference
    rouge     ROUGE of two texts
    wording   the text and the tokens of a sentence that are scored, and what the tokenizer cannot represent
    tokens    from token ids to scores: the entry point
    utility   accuracy and Matthews correlation of a classifier
"""

from __future__ import annotations

from gradleak.metrics.scores import SCORE_NAMES, BatchScores, Scores, share
from gradleak.metrics.tokens import Alignment, Scoring, score_tokens
from gradleak.metrics.utility import accuracy, matthews_correlation
from gradleak.metrics.wording import Tokenizer

__all__ = [
    "SCORE_NAMES",
    "Alignment",
    "BatchScores",
    "Scores",
    "Scoring",
    "Tokenizer",
    "accuracy",
    "matthews_correlation",
    "score_tokens",
    "share",
]
