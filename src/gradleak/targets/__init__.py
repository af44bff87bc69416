"""Models under audit: one adapter per architecture family, and the registry of names; every room above uses `Target`.

`load_target` turns a name, a directory, a GGUF file or a hub id into a `Target`. A Target answers every question about
a model that an attack may ask (where the embeddings are, what the first layer's query matrix is called, how long a text
may be) through its `Family`; no other room knows a layer by name. `layout.py` says how to add a family.
"""

from gradleak.targets.adapters import AdaptedModule, Adapter, Lora
from gradleak.targets.layout import FAMILIES, Family, Layer, Projection, Task, family_of, register
from gradleak.targets.loading import load_target, resolve_device, trained_classes
from gradleak.targets.losses import cross_entropy
from gradleak.targets.registry import MODELS
from gradleak.targets.target import Target
from gradleak.targets.tokens import Tokens

__all__ = [
    "FAMILIES",
    "MODELS",
    "AdaptedModule",
    "Adapter",
    "Family",
    "Layer",
    "Lora",
    "Projection",
    "Target",
    "Task",
    "Tokens",
    "cross_entropy",
    "family_of",
    "load_target",
    "register",
    "resolve_device",
    "trained_classes",
]
