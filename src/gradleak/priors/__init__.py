"""Language models as priors: they tell an attack which of two candidates reads more like text."""

from gradleak.priors.causal import OtherVocabulary, Prior, SharedVocabulary, load_prior

__all__ = ["OtherVocabulary", "Prior", "SharedVocabulary", "load_prior"]
