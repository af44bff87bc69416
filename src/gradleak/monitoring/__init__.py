"""Audits of a running federation: `flower` and `flare` hand over weights, this room attacks, scores and writes down.

settings      AuditSettings: model, protocol, attack and budget, checked when the app starts
examination   one client's update attacked: a record of what was read, and scores where the truth is known
thresholds    `rougeL=20`: which scores a client does not accept
local_dp      what a stated local differential privacy is worth, and whether its noise is in the update
records       rounds.jsonl in the audit's folder, which `gradleak report` draws
process       AuditProcess: attacks in a process of its own, so that rounds do not wait for them
worker        that process: `python -m gradleak.monitoring.worker`
client_side   ClientAudit: a client that attacks its own update, in its own process
"""

from gradleak.monitoring.client_side import ClientAudit
from gradleak.monitoring.local_dp import LocalDp
from gradleak.monitoring.process import AuditJob, AuditProcess
from gradleak.monitoring.settings import AuditSettings, check_counts, seconds_of
from gradleak.monitoring.thresholds import Thresholds

__all__ = [
    "AuditJob",
    "AuditProcess",
    "AuditSettings",
    "ClientAudit",
    "LocalDp",
    "Thresholds",
    "check_counts",
    "seconds_of",
]
