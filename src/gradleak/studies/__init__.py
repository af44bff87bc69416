"""Studies: grids of experiments that can be stopped at any time, with their records in one SQLite file.

A study file names lists of targets, datasets, clients, defenses, attacks and seeds; every combination is cut into
cells of a few batches. A cell's id is a hash of its description and of the weights and sentences that it names: an
edited study keeps its finished cells, and a cell runs again if its weights or sentences have changed. The driver hands
cells to an executor. It alone writes records, in one transaction per cell: whatever is killed, the file holds complete
cells, and the next run continues.

definition/  a study file: parse and validate it, expand it into cells
execution/   run cells: driver, lock, executors, workers, training under defenses
records/     outcomes of cells, the SQLite file, and which records are valid
report/      records summed up: rows, tables, JSON, CSV, LaTeX, plots
ready/       the studies that ship with the package
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradleak.audit.scenario import CapturedBatch, ClientSettings, Scenario, TargetSpec
    from gradleak.studies.definition.cells import AttackCell, Cell, ImageCell, UtilityCell
    from gradleak.studies.definition.library import Library
    from gradleak.studies.definition.study import Study, load_study, ready_studies
    from gradleak.studies.execution.driver import RunOptions, Summary, run_study
    from gradleak.studies.execution.events import Event
    from gradleak.studies.execution.executors import Executor, InProcess, Processes
    from gradleak.studies.execution.ray_cluster import RayCluster
    from gradleak.studies.execution.utility import FineTuning, Utility, measure_utility
    from gradleak.studies.records.outcome import BatchRecord, Failure, ImageRecord, Outcome, Sentence, UtilityRecord
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
    "FineTuning",
    "ImageCell",
    "ImageRecord",
    "InProcess",
    "Library",
    "Outcome",
    "Processes",
    "RayCluster",
    "RunOptions",
    "Scenario",
    "Sentence",
    "Store",
    "Study",
    "Summary",
    "TargetSpec",
    "Utility",
    "UtilityCell",
    "UtilityRecord",
    "load_study",
    "measure_utility",
    "ready_studies",
    "run_study",
]

# Names are imported when first used, as those of `gradleak` are: showing a table must not wait for torch.
_HOMES = {
    "AttackCell": "gradleak.studies.definition.cells",
    "BatchRecord": "gradleak.studies.records.outcome",
    "CapturedBatch": "gradleak.audit.scenario",
    "Cell": "gradleak.studies.definition.cells",
    "ClientSettings": "gradleak.audit.scenario",
    "Event": "gradleak.studies.execution.events",
    "Executor": "gradleak.studies.execution.executors",
    "Failure": "gradleak.studies.records.outcome",
    "FineTuning": "gradleak.studies.execution.utility",
    "ImageCell": "gradleak.studies.definition.cells",
    "ImageRecord": "gradleak.studies.records.outcome",
    "InProcess": "gradleak.studies.execution.executors",
    "Library": "gradleak.studies.definition.library",
    "Outcome": "gradleak.studies.records.outcome",
    "Processes": "gradleak.studies.execution.executors",
    "RayCluster": "gradleak.studies.execution.ray_cluster",
    "RunOptions": "gradleak.studies.execution.driver",
    "Scenario": "gradleak.audit.scenario",
    "Sentence": "gradleak.studies.records.outcome",
    "Store": "gradleak.studies.records.store",
    "Study": "gradleak.studies.definition.study",
    "Summary": "gradleak.studies.execution.driver",
    "TargetSpec": "gradleak.audit.scenario",
    "Utility": "gradleak.studies.execution.utility",
    "UtilityCell": "gradleak.studies.definition.cells",
    "UtilityRecord": "gradleak.studies.records.outcome",
    "load_study": "gradleak.studies.definition.study",
    "measure_utility": "gradleak.studies.execution.utility",
    "ready_studies": "gradleak.studies.definition.study",
    "run_study": "gradleak.studies.execution.driver",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gradleak.studies' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
