"""Assign known tokens to unknown places: shared by the attacks that read tokens from the word embeddings' gradient."""
