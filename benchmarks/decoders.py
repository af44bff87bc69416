"""What forest reads of decoders' updates, of all weights and of LoRA adapters, batch by batch (docs/attacks/forest.md).

    python benchmarks/decoders.py --data cola.tsv --data banking77.tsv --workers 2 -o decoders.json
    python benchmarks/decoders.py --data cola.tsv --rows lora-8 --batch-sizes 1 --batches 16 -o decoders.json
    python benchmarks/decoders.py --attack lamp:best --data cola.tsv --rows lora-8 --batches 4 -o decoders.json
    python benchmarks/decoders.py --model gpt2 --random-weights --data cola.tsv --rows full --batch-sizes 64 -o g.json
    python benchmarks/decoders.py --score decoders.json

The rows of the table (`--rows`), each with its own batch sizes unless `--batch-sizes` is given:

    full                   one gradient of all weights but the embeddings
    full-near-d            the same, of as many sentences as have 0.9 d tokens together
    lora-8, -16, -32       one gradient of LoRA adapters of that rank on query and value, in a later round (B is not 0)
    lora-16-bf16           the same, sent as bfloat16
    lora-16-adamw          one step of AdamW, learning rate 2e-4
    lora-16-sgd            4 steps of SGD of B/4 sentences, at least one, learning rate 1e-2
    lora-64-first          one gradient in the first round, where B is 0

Batches alternate between the files; `--batches` is their number in a row, in all. Attacks are told what their papers
assume, forest nothing. Batches that the output file holds are not run again. `--score` needs rouge-score.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from batches import Row, Sentences, Summary, read_rows, read_sentences, result_of, run_all
from gradleak.attacks import find_attack
from gradleak.audit.scenario import ClientSettings, Scenario
from gradleak.exchange import FedAvg
from gradleak.targets import Target, load_target
from gradleak.targets.adapters import Lora

HEADINGS = ("update", "B", "tokens", "sentences", "ROUGE-1", "ROUGE-2", "ROUGE-L", "exact, %", "verified, %")
LAST_HEADINGS = ("wrongly verified", "seconds", "at most")
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
    """

    lora: str | None
    sizes: tuple[int, ...]
    send: str = "fp32"
    optimizer: str | None = None

    def client(self, size: int) -> ClientSettings:
        """Return the settings of a client with so many sentences."""
        if self.optimizer == "adamw":
            return ClientSettings(fedavg=FedAvg(steps=1, lr=2e-4, optimizer="adamw"))
        if self.optimizer == "sgd":
            return ClientSettings(fedavg=FedAvg(steps=4, lr=1e-2, batch=max(1, size // 4)))
        return ClientSettings(send=self.send)  # type: ignore[arg-type]  # one of the formats


KINDS = {
    "full": DecoderUpdate(None, (1, 4, 16, 32)),
    "full-near-d": DecoderUpdate(None, (0,)),
    "lora-8": DecoderUpdate("r=8,rounds=1", (1, 4)),
    "lora-16": DecoderUpdate("r=16,rounds=1", (1, 4)),
    "lora-32": DecoderUpdate("r=32,rounds=1", (8,)),
    "lora-16-bf16": DecoderUpdate("r=16,rounds=1", (1,), send="bf16"),
    "lora-16-adamw": DecoderUpdate("r=16,rounds=1", (1,), optimizer="adamw"),
    "lora-16-sgd": DecoderUpdate("r=16,rounds=1", (4,), optimizer="sgd"),
    "lora-64-first": DecoderUpdate("r=64", (1,)),
}


def main() -> None:
    """Run batches, or print the table of what was found."""
    arguments = _arguments()
    if arguments.score:
        print_tables(read_rows(Path(arguments.score)))
        return
    options = {"workers": arguments.workers, "threads": arguments.threads}
    sys.exit(1 if run_all(list(work(arguments)), attack_batch, Path(arguments.output), **options) else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--random-weights", action="store_true", help="the model's shape alone")
    parser.add_argument("--task", default="causal-lm", choices=("causal-lm", "classification"))
    parser.add_argument(
        "--data", action="append", help="tab-separated file with the columns label and text; repeatable"
    )
    parser.add_argument("--take", default="0:100", help="first:last sentence of each file")
    parser.add_argument("--rows", default=",".join(KINDS))
    parser.add_argument("--batch-sizes", help="in place of each row's own")
    parser.add_argument("--batches", type=int, help="in a row, of all files together; 16 by default, 8 from B = 16 on")
    parser.add_argument("--attack", default="forest", help="NAME[:PRESET]")
    parser.add_argument("--budget", type=float, help="seconds for a batch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("-o", "--output", default="decoders.json")
    parser.add_argument("--score", metavar="FILE", help="a file of results to print as tables")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.rows.split(",") if name not in KINDS]
    if unknown:
        parser.error(f"no row named {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if not arguments.score and not arguments.data:
        parser.error("give --data, or --score")
    return arguments


@cache
def adapted_target(model: str, classes: int, task: str, device: str, random_weights: bool, lora: str | None) -> Target:
    """Load a model once in each process, with adapters if they are given."""
    adapters = None if lora is None else Lora.parse(lora)
    return load_target(model, classes, task=task, device=device, random_weights=random_weights, lora=adapters)  # type: ignore[arg-type]


def _target(options: dict[str, object], classes: int, row: str) -> Target:
    names = ("model", "task", "device", "random_weights")
    model, task, device, random_weights = (options[name] for name in names)
    return adapted_target(model, classes, task, device, random_weights, KINDS[row].lora)


def work(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the batches of all rows and sizes, from one file after the other in turn."""
    files = [(Path(name).stem, read_sentences(Path(name), arguments.take)) for name in arguments.data]
    model = Path(arguments.model).name + (" with random weights" if arguments.random_weights else "")
    for name in arguments.rows.split(","):
        sizes = [int(size) for size in arguments.batch_sizes.split(",")] if arguments.batch_sizes else KINDS[name].sizes
        for size in sizes:
            count = arguments.batches or (8 if size == 0 or size >= 16 else 16)
            sources = [(stem, iter(_batches(arguments, sentences, name, size))) for stem, sentences in files]
            for number in range(count):
                stem, source = sources[number % len(sources)]
                batch = next(source, None)
                if batch is None:
                    continue
                yield {
                    "cell": f"{model}, {arguments.task}, {arguments.attack}, {name}, B={size}, {stem}",
                    "batch": batch.first,
                    "run": f"{arguments.attack} on {model}, {arguments.task}",
                    "row": name,
                    "size": size,
                    "sentences": batch,
                    "arguments": vars(arguments),
                }


def _batches(arguments: argparse.Namespace, sentences: Sentences, row: str, size: int) -> Iterator[Sentences]:
    """Yield batches of a size, or if it is 0, of as many sentences as have 0.9 d tokens."""
    if size:
        yield from sentences.batches(size)
        return
    target = _target(vars(arguments), sentences.classes, row)
    most, start, total = NEAR * target.word_embeddings.shape[1], 0, 0
    for place, text in enumerate(sentences.texts):
        own = len(target.tokenizer(text)["input_ids"])
        if total + own > most:
            part = slice(start, place)
            yield Sentences(sentences.texts[part], sentences.labels[part], start, sentences.classes)
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
        labels=batch.labels if options["task"] == "classification" else None,
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
    kept |= {"options": {key: options[key] for key in ("model", "task", "device", "random_weights")}}
    return kept | result_of(target, batch.texts, found, seconds)


def print_tables(rows: list[Row]) -> None:
    """Print a markdown table for each model and attack, all files together."""
    for run in dict.fromkeys(row["run"] for row in rows):
        own = [row for row in rows if row["run"] == run]
        tokenizer = _target(own[0]["options"] | {"device": "cpu"}, 2, "full").tokenizer
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
