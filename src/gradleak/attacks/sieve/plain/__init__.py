"""Read a batch of a client without dropout: find sentences whose attention contexts fit, subtract them, repeat."""
