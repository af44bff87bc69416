"""Fused kernels for a GPU, and the choice between them and plain torch."""
