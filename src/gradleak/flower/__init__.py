"""Flower: audit a running federation with one line on the server, or one mod at a client (docs/integrations.md).

    from gradleak.flower import LeakageAudit
    strategy = LeakageAudit(FedAvg(), target="./model", protocol="optimizer=adamw,lr=5e-5,steps=10,batch=4")

strategy      LeakageAudit: wraps any strategy, and attacks what clients reply
mod           leakage_mod: a client attacks its own reply, scores it, and may refuse to send it
surroundings  what else of the run protects clients, or does not: differential privacy, secure aggregation
"""

from importlib.util import find_spec

from gradleak.errors import missing_extra

if find_spec("flwr") is None:
    raise missing_extra("flwr", "flower", "gradleak.flower")

from gradleak.flower.mod import leakage_mod
from gradleak.flower.strategy import LeakageAudit

__all__ = ["LeakageAudit", "leakage_mod"]
