"""Small targets and inverters for tests."""

from __future__ import annotations

from typing import Any

from conftest import small_target
from gradleak.inversion import PseudoText, Recipe, Shape
from gradleak.priors import marginal_distribution
from gradleak.targets import Target

WORDS = "the a cat dog sat ran on mat red big . ,"


def pseudo(target: Target, tokens: int = 6, shortest: int | None = None, **options: Any) -> PseudoText:
    """Return pseudo-text of a dozen words."""
    shape = Shape(tokens, shortest or tokens)
    return PseudoText(target, marginal_distribution(target, [WORDS] * 20), shape, **options)


def language_model(**changes: Any) -> Target:
    """Return a language model that an inverter learns to read within seconds."""
    return small_target("gpt2", "causal-lm", n_embd=32, **changes)


QUICK = Recipe(tokens=6, shortest=6, hidden=(64, 64), share=0.2, chunk=128, batch=32, epochs=2, probe=256)
