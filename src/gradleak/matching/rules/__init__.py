"""Gradient rules, one file per layer type; `trace.py` applies them and `registry.py` says how to add one."""

from gradleak.matching.rules import embedding, linear, norm
from gradleak.matching.rules.registry import RULES, GradRule, LayerCall, register_grad_rule

__all__ = ["RULES", "GradRule", "LayerCall", "embedding", "linear", "norm", "register_grad_rule"]
