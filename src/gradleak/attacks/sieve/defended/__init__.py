"""Read an update that noise, pruning or sign compression changed, from the part of it that exceeds the noise."""
