"""Language models as priors: they tell an attack which of two candidates reads more like text."""

from gradleak.priors.causal import OtherVocabulary, Prior, SharedVocabulary, load_prior
from gradleak.priors.unigram import marginal_distribution, marginal_of_tokens

__all__ = ["OtherVocabulary", "Prior", "SharedVocabulary", "load_prior", "marginal_distribution", "marginal_of_tokens"]
