"""Batches of sentences attacked by a pool of processes: what sieve.py and field.py share.

A script describes each batch as a dict with `cell` (the row of the table that it belongs to) and `batch` (its number),
and gives a function that attacks one of them; `run_all` calls it in worker processes and keeps what they return in a
JSON file. Batches that the file holds are not run again. `result_of` makes the entry, `Summary` sums entries up.
"""

from __future__ import annotations

import csv
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from gradleak.exchange import Reconstruction
from gradleak.files import write_atomically
from gradleak.targets import Target, Task, load_target

Row = dict[str, Any]


@dataclass(frozen=True)
class Sentences:
    """Some sentences of a file.

    Attributes:
        texts: the sentences.
        labels: the class of each.
        first: the place of the first of them in the file.
        classes: how many classes the whole file has, at least two.
    """

    texts: tuple[str, ...]
    labels: tuple[int, ...]
    first: int
    classes: int

    def batches(self, size: int) -> Iterator[Sentences]:
        """Yield full batches in order; what remains at the end is left out."""
        for start in range(0, len(self.texts) - size + 1, size):
            part = slice(start, start + size)
            yield Sentences(self.texts[part], self.labels[part], self.first + start, self.classes)

    def shorter(self, words: int | None) -> Sentences:
        """Return the sentences of at most so many words; all for None."""
        kept = [number for number, text in enumerate(self.texts) if words is None or len(text.split()) <= words]
        texts, labels = tuple(self.texts[number] for number in kept), tuple(self.labels[number] for number in kept)
        return Sentences(texts, labels, self.first, self.classes)


def read_sentences(path: Path, take: str) -> Sentences:
    """Read the sentences `first:last` of a tab-separated file with the columns label and text.

    Where labels are names and not numbers, one of two classes is drawn for each sentence of the file, always the same.
    A file with fewer sentences than asked for is named on stderr.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    if all(row["label"].isdecimal() for row in rows):
        labels = [int(row["label"]) for row in rows]
    else:
        labels = torch.randint(2, (len(rows),), generator=torch.Generator().manual_seed(0)).tolist()
    first, last = (int(part) for part in take.split(":"))
    if last > len(rows):
        print(f"{path.name} has {len(rows)} sentences, fewer than {take} asks for", file=sys.stderr)
    texts = tuple(row["text"] for row in rows[first:last])
    return Sentences(texts, tuple(labels[first:last]), first, max([1, *labels]) + 1)


@cache
def target_of(
    model: str, classes: int, task: Task = "classification", device: str = "cpu", random_weights: bool = False
) -> Target:
    """Load a model once in each process."""
    return load_target(model, classes, task=task, device=device, random_weights=random_weights)


def run_all(
    items: Sequence[Row],
    run: Callable[[Row], Row],
    path: Path,
    *,
    workers: int,
    threads: int,
    minutes: float | None = None,
) -> int:
    """Run the batches that the file does not hold, and write the file anew after each of them.

    A batch whose run ends in an error is named, and the others go on: run again, it is tried again.

    Args:
        items: descriptions of the batches, in the order in which they start.
        run: attacks one batch; a function of a module's top level, because workers import it.
        path: file of results.
        workers: processes; with one, batches are run in this process.
        threads: threads of each.
        minutes: when to end, though batches are left; those under way are lost.

    Returns:
        The number of batches that failed.
    """
    rows = read_rows(path)
    done = {(row["cell"], row["batch"]) for row in rows}
    failed = 0
    left = [item for item in items if (item["cell"], item["batch"]) not in done]
    until = time.monotonic() + 60 * (minutes or math.inf)
    print(f"{len(left)} batches to run, {len(rows)} in {path}", file=sys.stderr, flush=True)
    for item, outcome in _outcomes(left, run, workers, threads, until):
        name = f"{item['cell']}, batch {item['batch']}"
        if isinstance(outcome, str):
            failed += 1
            print(f"{name} failed:\n{outcome}", file=sys.stderr, flush=True)
            continue
        rows.append(outcome)
        with write_atomically(path) as temporary:
            temporary.write_text(json.dumps({"rows": rows}), encoding="utf-8")
        print(f"{name}: {outcome['seconds']:.1f} s, verified {outcome['verified']}", flush=True)
    return failed


def read_rows(path: Path) -> list[Row]:
    """Return the results that a file holds; none if it does not exist."""
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


def result_of(target: Target, texts: Sequence[str], found: Reconstruction, seconds: float) -> Row:
    """Return what is kept of an attack on a batch."""
    tokens = target.encode(texts)
    return {
        "seconds": seconds,
        "tokens": int(tokens.mask.sum()),
        "texts": list(texts),
        "references": [row[there].tolist() for row, there in zip(tokens.ids, tokens.mask, strict=True)],
        "found": [list(ids) for ids in found.token_ids],
        "found_labels": found.labels,
        "copies": list(found.copies),
        "verified": found.verified,
        "complete": found.complete,
        "loss": found.loss,
        "notes": list(found.notes),
    }


def claims_too_much(row: Row) -> bool:
    """Return whether a result is verified with a text that was not trained on, or complete with one missing."""
    found, trained = ({tuple(ids) for ids in row[name]} for name in ("found", "references"))
    return bool((row["verified"] and not found <= trained) or (row.get("complete") and found != trained))


@dataclass(frozen=True)
class Summary:
    """Results of one cell: means over sentences of ROUGE and exact match, from 0 to 100; `verified` over batches."""

    sentences: int
    rouge1: float
    rouge2: float
    rougeL: float  # noqa: N815 - the field's own spelling
    exact: float
    verified: float
    wrongly_verified: int
    seconds: float
    most_seconds: float

    @classmethod
    def of(cls, rows: Sequence[Row], tokenizer: Any) -> Summary:  # noqa: ANN401 - Hugging Face's, which has no one type
        """Score results against their references; needs rouge-score."""
        from gradleak.metrics import score_tokens

        scores = [
            sentence
            for row in rows
            for sentence in score_tokens(
                row["found"], row["references"], tokenizer, texts=row.get("texts"), copies=row.get("copies", ())
            ).sentences
        ]
        means = {
            name: sum(getattr(score, name) for score in scores) / len(scores)
            for name in ("rouge1", "rouge2", "rougeL", "exact")
        }
        seconds = [row["seconds"] for row in rows]
        return cls(
            sentences=len(scores),
            **means,
            verified=100 * sum(row["verified"] for row in rows) / len(rows),
            wrongly_verified=sum(map(claims_too_much, rows)),
            seconds=sum(seconds) / len(seconds),
            most_seconds=max(seconds),
        )


def _outcomes(
    items: Sequence[Row], run: Callable[[Row], Row], workers: int, threads: int, until: float
) -> Iterable[tuple[Row, Row | str]]:
    """Yield each batch with its result, or with the traceback of its error, until a time of the monotonic clock."""
    os.environ["OMP_NUM_THREADS"] = str(threads)  # numpy reads it where a worker imports it
    guarded = partial(_guarded, run)
    if workers == 1 or len(items) < 2:
        torch.set_num_threads(threads)
        for item in items:
            if time.monotonic() > until:
                break
            yield guarded(item)
        return
    with get_context("spawn").Pool(min(workers, len(items)), torch.set_num_threads, (threads,)) as pool:
        found = pool.imap_unordered(guarded, items)
        for _ in items:
            try:
                yield found.next(None if until == math.inf else max(0.0, until - time.monotonic()))
            except TimeoutError:
                print("the time is over: run again for the rest", flush=True)
                return


def _guarded(run: Callable[[Row], Row], item: Row) -> tuple[Row, Row | str]:
    try:
        return item, run(item)
    except Exception:  # one batch must not end a run of hours
        return item, traceback.format_exc()
