"""The client's side of federated learning: private text in, Update out, by FedSGD or FedAvg."""

from gradleak.federation.client import Client, Embeddings, FedAvg, sent_parameters

__all__ = ["Client", "Embeddings", "FedAvg", "sent_parameters"]
