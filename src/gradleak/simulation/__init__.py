"""What a client computes under a public protocol: the client does it on its texts, an attacker on a guess.

training       local training: mini-batches, torch's optimisers, mixed precision
transmission   number formats in which an update leaves the client; sums over clients
"""
