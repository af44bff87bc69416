"""Studies: grids of experiments that survive anything, and their records in one SQLite file.

A study file names lists of targets, datasets, clients, defenses, attacks and seeds; every combination is cut into
cells of a few batches. A cell's id is a hash of its description and of the weights and sentences that it names: an
edited study keeps what has finished, and what has changed under its name is run again. The driver hands cells to an
executor, is the only one to write, and writes one transaction per cell: whatever is killed, the file holds whole cells,
and running the study again continues there.

reading    tables of TOML, and one clear line for every mistake
schema     what a study file may say
study      Study: from a file to cells
cells      Cell: one description, one id
scenario   Scenario: from private text to updates as the attacker gets them
work       what a worker does with a cell
outcome    what comes out of it
executors  where cells run: this process, worker processes
cluster    the same on Ray
store      the SQLite file
lock       one driver per file
stale      which records still stand for a cell
running    the driver
show       records summed up
intervals  bootstrap intervals of many groups at once
published  the papers' own figures
plots      the pictures
placing    where their text goes
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradleak.audit.scenario import CapturedBatch, ClientSettings, Scenario, TargetSpec
    from gradleak.studies.definition.cells import AttackCell, Cell, UtilityCell
    from gradleak.studies.definition.study import Library, Study, load_study, ready_studies
    from gradleak.studies.execution.driver import Event, Summary, run_study
    from gradleak.studies.execution.executors import Executor, InProcess, Processes
    from gradleak.studies.execution.ray_cluster import RayCluster
    from gradleak.studies.records.outcome import BatchRecord, Failure, Outcome, Sentence, UtilityRecord
    from gradleak.studies.records.store import Store

__all__ = [
    "AttackCell",
    "BatchRecord",
    "CapturedBatch",
    "Cell",
    "ClientSettings",
    "Event",
    "Executor",
    "Failure",
    "InProcess",
    "Library",
    "Outcome",
    "Processes",
    "RayCluster",
    "Scenario",
    "Sentence",
    "Store",
    "Study",
    "Summary",
    "TargetSpec",
    "UtilityCell",
    "UtilityRecord",
    "load_study",
    "ready_studies",
    "run_study",
]

# Names are fetched when first used, as those of `gradleak` are: showing a table must not wait for torch.
_HOMES = {
    "AttackCell": "gradleak.studies.definition.cells",
    "BatchRecord": "gradleak.studies.records.outcome",
    "CapturedBatch": "gradleak.audit.scenario",
    "Cell": "gradleak.studies.definition.cells",
    "ClientSettings": "gradleak.audit.scenario",
    "Event": "gradleak.studies.execution.driver",
    "Executor": "gradleak.studies.execution.executors",
    "Failure": "gradleak.studies.records.outcome",
    "InProcess": "gradleak.studies.execution.executors",
    "Library": "gradleak.studies.definition.study",
    "Outcome": "gradleak.studies.records.outcome",
    "Processes": "gradleak.studies.execution.executors",
    "RayCluster": "gradleak.studies.execution.ray_cluster",
    "Scenario": "gradleak.audit.scenario",
    "Sentence": "gradleak.studies.records.outcome",
    "Store": "gradleak.studies.records.store",
    "Study": "gradleak.studies.definition.study",
    "Summary": "gradleak.studies.execution.driver",
    "TargetSpec": "gradleak.audit.scenario",
    "UtilityCell": "gradleak.studies.definition.cells",
    "UtilityRecord": "gradleak.studies.records.outcome",
    "load_study": "gradleak.studies.definition.study",
    "ready_studies": "gradleak.studies.definition.study",
    "run_study": "gradleak.studies.execution.driver",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gradleak.studies' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
