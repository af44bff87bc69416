"""One file per architecture family; importing this package registers them all."""

from gradleak.targets.families import (
    albert,
    bert,
    distilbert,
    gemma,
    gpt2,
    gpt_neox,
    llama,
    lstm,
    mpnet,
    roberta,
    textcnn,
)

__all__ = [
    "albert",
    "bert",
    "distilbert",
    "gemma",
    "gpt2",
    "gpt_neox",
    "llama",
    "lstm",
    "mpnet",
    "roberta",
    "textcnn",
]
