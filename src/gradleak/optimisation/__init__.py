"""Optimisation of guesses at private batches: descent on embeddings, starts, token orders, many victims at once."""
