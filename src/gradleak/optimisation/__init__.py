"""Optimisation of guesses at private batches, many victims at once: the parts of DLG, TAG, LAMP and GRAB.

cohort         Cohort: victims with their gradients, guesses, optimiser, random streams, history and deadline
guess          Guess: embeddings, labels and dropout masks `[victims, starts, sequences, tokens]`
slots          Slots: the places of tokens, and the projection of embeddings to words
descent        Adam over guesses, and its schedule
quasi_newton   L-BFGS, for fits that descent approaches too slowly (sieve)
start          the best of many samples, permutations and lengths
reorder        token orders: drawn, scored, and improved step by step
word_order     LAMP's words put in order at the end, or early (gradleak's own)
substitutions  tokens and their nearest words at any place
beam_reorder   beam search over substitutions (GRAB)
dropout_masks  dropout masks as variables (GRAB)
history        progress reports and snapshots
settings       the settings that these attacks share

An attack makes a `Cohort` and calls these on it; `select` takes a subset of victims, `retire` removes those done.
"""
