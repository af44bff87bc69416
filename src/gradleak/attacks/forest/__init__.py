"""Forest: decoders' updates, of all weights or of LoRA adapters, read prefix by prefix (README.md)."""

from gradleak.attacks.forest.attack import Forest

__all__ = ["Forest"]
