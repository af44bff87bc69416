"""How a study runs: the driver, the worker, and the executors that cells are handed to."""
