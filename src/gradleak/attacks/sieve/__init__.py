"""Sieve: read the text out of the first layer's gradient instead of searching for it; see README.md."""

from gradleak.attacks.sieve.attack import Sieve

__all__ = ["Sieve"]
