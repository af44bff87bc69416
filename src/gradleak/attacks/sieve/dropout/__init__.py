"""Read a batch of a client with dropout: decode each token's mask, group tokens into sentences, prove the result."""
