"""Priors over text: how likely a token sequence is (LAMP, sieve), and how often a token occurs (pseudo text of LTI)."""

from gradleak.priors.causal import OtherVocabulary, Prior, SharedVocabulary, load_prior
from gradleak.priors.unigram import marginal_distribution, marginal_of_tokens

__all__ = ["OtherVocabulary", "Prior", "SharedVocabulary", "load_prior", "marginal_distribution", "marginal_of_tokens"]
