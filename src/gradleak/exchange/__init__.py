"""What passes between client, experimenter and attacker: Update, Knowledge, Reconstruction; every room above uses them.

A client sends an `Update`; the experimenter decides which `Knowledge` goes with it; an attack answers with a
`Reconstruction`. None of them refers to the private batch.
"""

from gradleak.exchange.checkpoints import as_protocol, fitted, named_tensors, update_from_gradients, update_from_weights
from gradleak.exchange.grouping import group_by_key, length_class
from gradleak.exchange.kinds import Appearance, appearance, settle_kind, stated_kind
from gradleak.exchange.knowledge import FACTS, Knowledge, fact_field
from gradleak.exchange.progress import Deadline, Listener, Progress, Reporter
from gradleak.exchange.protocol import FedAvg, Precision, Protocol, WireFormat
from gradleak.exchange.reconstruction import Reconstruction, Snapshot
from gradleak.exchange.update import Origin, Update
from gradleak.exchange.victim import Finding, Victim

__all__ = [
    "FACTS",
    "Appearance",
    "Deadline",
    "FedAvg",
    "Finding",
    "Knowledge",
    "Listener",
    "Origin",
    "Precision",
    "Progress",
    "Protocol",
    "Reconstruction",
    "Reporter",
    "Snapshot",
    "Update",
    "Victim",
    "WireFormat",
    "appearance",
    "as_protocol",
    "fact_field",
    "fitted",
    "group_by_key",
    "length_class",
    "named_tensors",
    "settle_kind",
    "stated_kind",
    "update_from_gradients",
    "update_from_weights",
]
