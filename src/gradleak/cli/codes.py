"""Exit codes."""

FAILED, USAGE, INTERRUPTED = 1, 2, 130
