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
    from gradleak.studies.cells import AttackCell, Cell, UtilityCell
    from gradleak.studies.cluster import RayCluster
    from gradleak.studies.executors import Executor, InProcess, Processes
    from gradleak.studies.outcome import BatchRecord, Failure, Outcome, Sentence, UtilityRecord
    from gradleak.studies.running import Event, Summary, run_study
    from gradleak.studies.scenario import Case, ClientSettings, Scenario, TargetSpec
    from gradleak.studies.store import Store
    from gradleak.studies.study import Library, Study, load_study, ready_studies

__all__ = [
    "AttackCell",
    "BatchRecord",
    "Case",
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
    "AttackCell": "cells",
    "BatchRecord": "outcome",
    "Case": "scenario",
    "Cell": "cells",
    "ClientSettings": "scenario",
    "Event": "running",
    "Executor": "executors",
    "Failure": "outcome",
    "InProcess": "executors",
    "Library": "study",
    "Outcome": "outcome",
    "Processes": "executors",
    "RayCluster": "cluster",
    "Scenario": "scenario",
    "Sentence": "outcome",
    "Store": "store",
    "Study": "study",
    "Summary": "running",
    "TargetSpec": "scenario",
    "UtilityCell": "cells",
    "UtilityRecord": "outcome",
    "load_study": "study",
    "ready_studies": "study",
    "run_study": "running",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gradleak.studies' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"gradleak.studies.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
