"""The audit: a threat model, and attacks run under it. Used by the command line and by studies.

scenario   Scenario: private text, a client, defenses, and what the attacker knows; yields captured batches
run        AttackPlan and run_plan: an attack on many batches, in groups that fit into memory
scoring    score: how close a reconstruction comes to the private texts
threads    how many CPU threads an attack can use
"""
