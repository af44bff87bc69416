"""Private texts to simulate a client with: shipped samples, whole sets from the hub, the user's own files.

dataset   Dataset, and which of its examples to take
shipped   the samples that the package carries, and where they come from
hub       splits of sets on the Hugging Face hub
files     .txt, .csv, .tsv and .jsonl files
columns   which column holds the text and which the label
labels    from what a label column holds to class numbers
classes   from these to the classes of a model
load      from what the user wrote to one of these: the entry point
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
