"""Encoders' adapters: tokens and positions from the first layer, sentences grown and judged whole by all layers.

An encoder's first input is x(t, p) = γ ⊙ (E_t + P_p) / σ(t, p) + β, so that the rows of an update are

    Y = Σ_t a_t ê_tᵀ + Σ_p b_p p̂_pᵀ + c βᵀ,     ê = γ ⊙ E,  p̂ = γ ⊙ P.

Positions are few and known: they are projected out, and what is left is joint sparse recovery over the vocabulary, as
in a decoder. Then a, b and c are solved for. A token at a position contributes the same vector to a_t and to b_p, which
tells which pairs occur (`pairs.py`). Attention looks both ways, so that a deeper layer's inputs depend on the whole
sentence: sentences are put together from pairs that are alike, and edited while all layers' rows explain them better,
each beside the others (`sentences.py`).
"""
