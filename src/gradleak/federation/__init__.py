"""The client's side of federated learning: private text in, Update out, by FedSGD or FedAvg.

client         Client: trains on a private batch, and sends
training       local training: mini-batches, torch's optimisers, mixed precision
transmission   number formats in which an update leaves the client; sums over clients
"""

from gradleak.exchange import FedAvg, Precision, WireFormat
from gradleak.federation.client import Client, Embeddings, sent_parameters
from gradleak.federation.training import check_batch, check_precision
from gradleak.federation.transmission import sum_updates

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
