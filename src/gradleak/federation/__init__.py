"""The client's side: private text in, Update out, by FedSGD or FedAvg."""

from gradleak.federation.client import Client, Embeddings, FedAvg

__all__ = ["Client", "Embeddings", "FedAvg"]
