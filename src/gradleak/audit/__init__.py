"""The threat model, and attacks carried out under it: what the command line and studies share."""
