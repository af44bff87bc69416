"""Records of studies: the outcomes of cells, and the SQLite file that holds them.

outcome  what a cell gives: sentences, counts of batches, utility, or a failure
store    Store: the SQLite file
stale    which records are valid for a cell
"""
