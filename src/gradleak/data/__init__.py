"""Datasets of private texts for simulated clients: shipped samples, sets from the hub, the user's own files.

Names and paths are resolved by `load_dataset`:

    dataset   Dataset, and the selection of its examples
    shipped   the samples that the package ships, and where they come from
    hub       splits of sets on the Hugging Face hub
    files     .txt, .csv, .tsv and .jsonl files
    columns   which column holds the text and which the label
    labels    from the values of a label column to class numbers
    classes   from these to the classes of a model
    load      the entry point: finds which of these a name means
"""

from __future__ import annotations

from gradleak.data.classes import LabelMapping, classes_needed, map_labels, parse_mapping
from gradleak.data.dataset import Dataset, parse_take
from gradleak.data.load import load_dataset
from gradleak.data.shipped import dataset_names, describe

__all__ = [
    "Dataset",
    "LabelMapping",
    "classes_needed",
    "dataset_names",
    "describe",
    "load_dataset",
    "map_labels",
    "parse_mapping",
    "parse_take",
]
