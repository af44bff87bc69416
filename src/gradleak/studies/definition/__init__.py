"""Study definitions: parse and validate a study file, and expand its grids into cells.

reading   readers of TOML tables and scalars; every error names the place in the file
specs     what one entry of a study file describes: a dataset, an attack, a grid
schema    the keys of a study file, and the reader of each
study     Study: load a file, list its cells
library   datasets and hashes, each read once per run
cells     Cell: one complete description, one id
"""
