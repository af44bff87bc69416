"""NVIDIA FLARE: audit a running federation by a filter at a client or an aggregator on the server.

docs/integrations.md shows both.

    leakage = TextLeakageFilter(target="./model", protocol="lr=5e-5,steps=10", texts="{site}.txt")
    recipe.add_client_output_filter(leakage, tasks=["train"])

leakage_filter    TextLeakageFilter: a client attacks its own result, scores it, and may blank it
audit_aggregator  AuditAggregator: wraps an aggregator, and attacks what clients send to it
texts             the client's texts by file or function: components of FLARE are made from plain values
"""

from importlib.util import find_spec

from gradleak.errors import missing_extra

if find_spec("nvflare") is None:
    raise missing_extra("nvflare", "flare", "gradleak.flare")

from gradleak.flare.audit_aggregator import AuditAggregator
from gradleak.flare.leakage_filter import TextLeakageFilter

__all__ = ["AuditAggregator", "TextLeakageFilter"]
