"""What forest reads of decoders' updates, of all weights and of LoRA adapters, batch by batch (docs/attacks/forest.md).

    python benchmarks/decoders.py --data cola.tsv --data banking77.tsv --workers 2 -o decoders.json
    python benchmarks/decoders.py --data cola.tsv --rows lora-8:1,lora-16:4 --batches 16 -o decoders.json
    python benchmarks/decoders.py --attack lamp:best --data cola.tsv --rows lora-8,lora-16 --batches 4 -o decoders.json
    python benchmarks/decoders.py --data cola.tsv --device cuda --workers 8 --minutes 9 -o decoders.json
    python benchmarks/decoders.py --score decoders.json

The rows of the table (`--rows`), each with its own batch sizes unless `--batch-sizes` is given or it is named with one
(`lora-8:4`):

    full                   one gradient of all weights but the embeddings
    full-near-d            the same, of as many sentences as have 0.9 d tokens together
    lora-8, -16, -32       one gradient of LoRA adapters of that rank on query and value, in a later round (B is not 0)
    lora-16-bf16           the same, sent as bfloat16
    lora-16-adamw          one step of AdamW, learning rate 2e-4
    lora-16-adamw-4        4 steps of AdamW of all sentences, learning rate 2e-4
    lora-16-sgd            4 steps of SGD of B/4 sentences, at least one, learning rate 1e-2
    lora-16-dropout        one gradient, the adapters' inputs dropped at a rate of 0.05
    lora-64-first          one gradient in the first round, where B is 0
    minilm-lora-16         one gradient of a classifier's adapters and head: MiniLM, an encoder, no dropout
    gpt2                   one gradient of all weights of GPT-2's shape with random weights, no dropout

Batches alternate between the files; `--batches` is their number in a row, in all. Where a file has fewer sentences than
that takes, further batches are drawn from it at random, and from all files if a batch is larger than a file. Attacks
are told what their papers assume, forest nothing. The first batches of all rows come first, those with most tokens at
the head, then the second ones, and so on: a run that ends early has measured every row. Batches that the output file
holds are not run again, and with `--minutes` a run ends after that time, so that a table can be made in several runs.
`--score` needs rouge-score.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from batches import Row, Sentences, Summary, read_rows, read_sentences, result_of, run_all
from gradleak.attacks import find_attack
from gradleak.audit.scenario import ClientSettings, Scenario
from gradleak.exchange import FedAvg
from gradleak.targets import Target, load_target
from gradleak.targets.adapters import Lora

HEADINGS = ("update", "B", "tokens", "sentences", "ROUGE-1", "ROUGE-2", "ROUGE-L", "exact, %", "verified, %")
LAST_HEADINGS = ("wrongly verified", "seconds", "at most")
DRAWN = 1000
"""Numbers of batches that are drawn at random start here."""

NEAR = 0.9
"""Fraction of d that the tokens of a batch of `full-near-d` fill."""


@dataclass(frozen=True)
class DecoderUpdate:
    """How the updates of a row are made.

    Attributes:
        lora: settings of the adapters; None for a gradient of all weights.
        sizes: batch sizes; 0 for as many sentences as have 0.9 d tokens.
        send: number format of what is sent.
        optimizer: of local training; None for one gradient.
        steps: of AdamW.
        dropout: whether the client trains with dropout.
        model: `model`, `task` and `random_weights` of a row with a model of its own.
    """

    lora: str | None
    sizes: tuple[int, ...]
    send: str = "fp32"
    optimizer: str | None = None
    steps: int = 1
    dropout: bool = False
    model: tuple[str, str, bool] | None = None

    def client(self, size: int) -> ClientSettings:
        """Return the settings of a client with so many sentences."""
        if self.optimizer == "adamw":
            return ClientSettings(fedavg=FedAvg(steps=self.steps, lr=2e-4, optimizer="adamw"))
        if self.optimizer == "sgd":
            return ClientSettings(fedavg=FedAvg(steps=4, lr=1e-2, batch=max(1, size // 4)))
        return ClientSettings(send=self.send, dropout=self.dropout)  # type: ignore[arg-type]  # one of the formats


KINDS = {
    "full": DecoderUpdate(None, (1, 4, 16, 32)),
    "full-near-d": DecoderUpdate(None, (0,)),
    "lora-8": DecoderUpdate("r=8,rounds=1", (1, 4)),
    "lora-16": DecoderUpdate("r=16,rounds=1", (1, 4)),
    "lora-32": DecoderUpdate("r=32,rounds=1", (8,)),
    "lora-16-bf16": DecoderUpdate("r=16,rounds=1", (1,), send="bf16"),
    "lora-16-adamw": DecoderUpdate("r=16,rounds=1", (1,), optimizer="adamw"),
    "lora-16-sgd": DecoderUpdate("r=16,rounds=1", (4,), optimizer="sgd"),
    "lora-16-adamw-4": DecoderUpdate("r=16,rounds=1", (1,), optimizer="adamw", steps=4),
    "lora-16-dropout": DecoderUpdate("r=16,dropout=0.05,rounds=1", (1,), dropout=True),
    "lora-64-first": DecoderUpdate("r=64,rounds=0", (1,)),
    "minilm-lora-16": DecoderUpdate("r=16,rounds=1", (1, 4), model=("minilm", "classification", False)),
    "gpt2": DecoderUpdate(None, (64, 0, 128), model=("gpt2", "causal-lm", True)),
}
KEPT = 4
"""How many models a process keeps: rows differ in their adapters, and follow each other in turn."""


def main() -> None:
    """Run batches, or print the table of what was found."""
    arguments = _arguments()
    if arguments.score:
        print_tables([row for name in arguments.score for row in read_rows(Path(name))])
        return
    options = {"workers": arguments.workers, "threads": arguments.threads, "minutes": arguments.minutes}
    sys.exit(1 if run_all(in_turn(work(arguments)), attack_batch, Path(arguments.output), **options) else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--random-weights", action="store_true", help="the model's shape alone")
    parser.add_argument("--task", default="causal-lm", choices=("causal-lm", "classification"))
    parser.add_argument(
        "--data", action="append", help="tab-separated file with the columns label and text; repeatable"
    )
    parser.add_argument("--take", default="0:100", help="first:last sentence of each file")
    parser.add_argument("--words", type=int, help="leave out sentences of more words than this")
    parser.add_argument("--rows", default=",".join(KINDS))
    parser.add_argument("--batch-sizes", help="in place of each row's own")
    parser.add_argument("--batches", type=int, help="in a row, of all files together; 16 by default, 8 from B = 16 on")
    parser.add_argument("--attack", default="forest", help="NAME[:PRESET]")
    parser.add_argument("--budget", type=float, help="seconds for a batch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--minutes", type=float, help="end the run after this time; batches under way are lost")
    parser.add_argument("-o", "--output", default="decoders.json")
    parser.add_argument("--score", metavar="FILE", nargs="+", help="files of results to print as tables")
    arguments = parser.parse_args()
    arguments.rows = [_row(name, arguments.batch_sizes) for name in arguments.rows.split(",")]
    unknown = [name for name, _ in arguments.rows if name not in KINDS]
    if unknown:
        parser.error(f"no row named {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if not arguments.score and not arguments.data:
        parser.error("give --data, or --score")
    return arguments


def _row(text: str, sizes: str | None) -> tuple[str, tuple[int, ...]]:
    """Return a row's name and batch sizes: those it is named with, those of all rows, or its own."""
    name, _, size = text.partition(":")
    chosen = size or sizes
    own = KINDS[name].sizes if name in KINDS else ()
    return name, tuple(int(one) for one in chosen.split(",")) if chosen else own


@lru_cache(KEPT)
def adapted_target(model: str, classes: int, task: str, device: str, random_weights: bool, lora: str | None) -> Target:
    """Load a model, with adapters if they are given; each process keeps the last few."""
    adapters = None if lora is None else Lora.parse(lora)
    return load_target(model, classes, task=task, device=device, random_weights=random_weights, lora=adapters)  # type: ignore[arg-type]


def _model(options: dict[str, Any], row: str) -> tuple[str, str, bool]:
    """Return name and task of a row's model, and whether its weights are random."""
    return KINDS[row].model or (options["model"], options["task"], options["random_weights"])


def _target(options: dict[str, Any], classes: int, row: str) -> Target:
    model, task, random_weights = _model(options, row)
    return adapted_target(model, classes, task, options["device"], random_weights, KINDS[row].lora)


def work(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the batches of all rows and sizes, from one file after the other in turn."""
    files = [(Path(name).stem, read_sentences(Path(name), arguments.take)) for name in arguments.data]
    files = [(stem, sentences.shorter(arguments.words)) for stem, sentences in files]
    for name, sizes in arguments.rows:
        own, task, random_weights = _model(vars(arguments), name)
        model = Path(own).name + (" with random weights" if random_weights else "")
        for size in sizes:
            wanted = arguments.batches or (8 if size == 0 or size >= 16 else 16)
            sources = [
                _batches(arguments, [own for _, own in files], number, (name, size)) for number in range(len(files))
            ]
            for number in range(wanted):
                stem = files[number % len(files)][0]
                batch = next(sources[number % len(files)])
                yield {
                    "cell": f"{model}, {task}, {arguments.attack}, {name}, B={size}, {stem}",
                    "batch": batch.first,
                    "run": f"{arguments.attack} on {model}, {task}",
                    "row": name,
                    "size": size,
                    "sentences": batch,
                    "arguments": vars(arguments),
                }


def in_turn(items: Iterable[Row]) -> list[Row]:
    """Return batches so that all rows are measured early: every row's first one, the longest ahead, then the next."""
    by_row: dict[tuple[str, int], list[Row]] = {}
    for item in items:
        by_row.setdefault((item["row"], item["size"]), []).append(item)

    def length(item: Row) -> int:
        return sum(map(len, item["sentences"].texts))

    rounds = zip_longest(*by_row.values())
    return [item for one in rounds for item in sorted(filter(None, one), key=length, reverse=True)]


def _batches(
    arguments: argparse.Namespace, files: Sequence[Sentences], number: int, cell: tuple[str, int]
) -> Iterator[Sentences]:
    """Yield batches of a file without end: in its order, then drawn at random.

    Args:
        arguments: those of the command line.
        files: the sentences of all files.
        number: which of them is meant.
        cell: row and batch size; 0 for as many sentences as have 0.9 d tokens.
    """
    own, (row, size) = files[number], cell
    yield from own.batches(size) if size else _near(arguments, own, row)
    draw = random.Random(f"{number} {row} {size}")
    pool = own if size <= len(own.texts) else _joined(files)
    if len(pool.texts) < max(size, 1):
        return
    for first in count(DRAWN):
        order = draw.sample(range(len(pool.texts)), size or len(pool.texts))
        texts, labels = tuple(pool.texts[i] for i in order), tuple(pool.labels[i] for i in order)
        drawn = Sentences(texts, labels, first, pool.classes)
        yield drawn if size else replace(next(_near(arguments, drawn, row), drawn), first=first)


def _joined(files: Sequence[Sentences]) -> Sentences:
    texts, labels = (tuple(item for own in files for item in getattr(own, name)) for name in ("texts", "labels"))
    return Sentences(texts, labels, 0, max(own.classes for own in files))


def _near(arguments: argparse.Namespace, sentences: Sentences, row: str) -> Iterator[Sentences]:
    """Yield batches of as many sentences as have 0.9 d tokens."""
    target = _target(vars(arguments) | {"device": "cpu"}, sentences.classes, row)
    most, start, total = NEAR * target.word_embeddings.shape[1], 0, 0
    for place, text in enumerate(sentences.texts):
        own = len(target.tokenizer(text)["input_ids"])
        if total + own > most:
            part = slice(start, place)
            yield Sentences(sentences.texts[part], sentences.labels[part], sentences.first + start, sentences.classes)
            start, total = place, 0
        total += own


def attack_batch(item: Row) -> Row:
    """Capture one update and attack it."""
    options, batch, kind = item["arguments"], item["sentences"], KINDS[item["row"]]
    target = _target(options, batch.classes, item["row"])
    name, _, preset = options["attack"].partition(":")
    attack = find_attack(name).with_settings(preset or None)
    size = len(batch.texts)
    scenario = Scenario(
        texts=batch.texts,
        labels=batch.labels if target.task == "classification" else None,
        batch_size=size,
        client=kind.client(size),
        facts=attack.assumes,
        seed=batch.first,
    )
    (captured,) = scenario.batches(target)
    started = time.perf_counter()
    found = attack(target, captured.update, captured.knowledge, budget=options["budget"])
    seconds = time.perf_counter() - started
    kept = {key: item[key] for key in ("cell", "batch", "run", "row", "size")}
    names = ("model", "task", "random_weights")
    kept |= {"options": dict(zip(names, _model(options, item["row"]), strict=True)) | {"device": options["device"]}}
    return kept | result_of(target, batch.texts, found, seconds)


def print_tables(rows: list[Row]) -> None:
    """Print a markdown table for each model and attack, all files together."""
    for run in dict.fromkeys(row["run"] for row in rows):
        own = [row for row in rows if row["run"] == run]
        model, task, random_weights = (own[0]["options"][key] for key in ("model", "task", "random_weights"))
        tokenizer = adapted_target(model, 2, task, "cpu", random_weights, None).tokenizer
        headings = HEADINGS + LAST_HEADINGS
        print(f"{run}\n\n| {' | '.join(headings)} |\n|{' --- |' * len(headings)}")
        for name in KINDS:
            for size in sorted({row["size"] for row in own if row["row"] == name}):
                part = [row for row in own if (row["row"], row["size"]) == (name, size)]
                cell = Summary.of(part, tokenizer)
                tokens = sum(row["tokens"] for row in part) / len(part)
                scores = [f"{score:.1f}" for score in (cell.rouge1, cell.rouge2, cell.rougeL)]
                shares = [f"{cell.exact:.0f}", f"{cell.verified:.0f}", str(cell.wrongly_verified)]
                times = [f"{cell.seconds:.1f}", f"{cell.most_seconds:.1f}"]
                first = [name, str(size or "0.9 d"), f"{tokens:.0f}", str(cell.sentences)]
                print("| " + " | ".join([*first, *scores, *shares, *times]) + " |")
        print()


if __name__ == "__main__":
    main()
