"""Known tokens assigned to unknown places: what attacks share that read the tokens from the embeddings' gradient."""
