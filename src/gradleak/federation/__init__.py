"""The client's side of federated learning: private text in, Update out, by FedSGD or FedAvg.

What it computes (`gradleak.simulation`) is public, and used by attackers as well; its texts and its seed are not.
"""

from gradleak.exchange import FedAvg, Precision, WireFormat
from gradleak.federation.client import Client, Embeddings, sent_parameters
from gradleak.simulation.training import check_batch, check_precision
from gradleak.simulation.transmission import sum_updates

__all__ = [
    "Client",
    "Embeddings",
    "FedAvg",
    "Precision",
    "WireFormat",
    "check_batch",
    "check_precision",
    "sent_parameters",
    "sum_updates",
]
