"""Execution of studies: the driver hands cells to an executor and records what comes back.

driver       run_study: plan, hand out, record, retry
events       what a run reports while it runs
lock         one driver per file of records
executors    run cells in this process or in worker processes
ray_cluster  run cells on Ray
worker       do the work of one cell
utility      fine-tune a model under defenses, and test it
"""
