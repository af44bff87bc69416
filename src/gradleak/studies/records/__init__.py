"""What a study leaves: outcomes of cells, and the SQLite file that holds them."""
