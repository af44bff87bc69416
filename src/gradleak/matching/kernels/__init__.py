"""Fused GPU kernels for sums over entries, and the choice between them and plain PyTorch; used by `reductions.py`."""
