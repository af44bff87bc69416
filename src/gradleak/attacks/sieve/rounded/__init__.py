"""Read a batch without dropout from an update that was rounded, or that drifted over a few local steps."""
