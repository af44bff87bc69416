"""gradleak: how much of your clients' text can be read back from the updates they send?

import gradleak as gl
target = gl.load_target("tiny")
update = gl.Client(target).update(["the patient was given ten milligrams"], labels=[1])
result = gl.attack("lamp", target, update, knowledge=gl.Knowledge(labels=[1], lengths=[8]))
gl.score(result, ["the patient was given ten milligrams"]).rouge2
"""

from __future__ import annotations

from gradleak.version import __version__

TYPE_CHECKING = False  # without typing: until the command line handles interrupts, they are tracebacks
if TYPE_CHECKING:
    from gradleak.api import attack, score
    from gradleak.attacks import ATTACKS
    from gradleak.data import load_dataset
    from gradleak.errors import GradleakError
    from gradleak.exchange import Knowledge, Reconstruction, Update
    from gradleak.federation import Client, FedAvg
    from gradleak.targets import Lora, Target, load_target

__all__ = [
    "ATTACKS",
    "Client",
    "FedAvg",
    "GradleakError",
    "Knowledge",
    "Lora",
    "Reconstruction",
    "Target",
    "Update",
    "__version__",
    "attack",
    "load_dataset",
    "load_target",
    "score",
]

_HOMES = {
    "ATTACKS": "gradleak.attacks",
    "Client": "gradleak.federation",
    "FedAvg": "gradleak.federation",
    "GradleakError": "gradleak.errors",
    "Knowledge": "gradleak.exchange",
    "Lora": "gradleak.targets",
    "Reconstruction": "gradleak.exchange",
    "Target": "gradleak.targets",
    "Update": "gradleak.exchange",
    "attack": "gradleak.api",
    "load_dataset": "gradleak.data",
    "load_target": "gradleak.targets",
    "score": "gradleak.api",
}


def __getattr__(name: str) -> object:
    # Names are fetched when first used: `import gradleak`, and with it `gradleak --help`, must not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'gradleak' has no attribute '{name}'")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
