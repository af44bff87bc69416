"""What the commands show and write: the screen, live progress, highlights, JSON files."""
