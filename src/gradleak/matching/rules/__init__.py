"""One file per layer type, registered by a decorator; `registry.py` says how to add one."""

from gradleak.matching.rules import embedding, linear, norm
from gradleak.matching.rules.registry import RULES, Rule, Use, rule

__all__ = ["RULES", "Rule", "Use", "embedding", "linear", "norm", "rule"]
