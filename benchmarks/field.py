"""What an attack reads of updates as fine-tuning in the field makes them (docs/clients.md), batch by batch.

    python benchmarks/field.py --data cola.tsv --data banking77.tsv --take 0:32 --budget 120 --workers 2 -o field.json
    python benchmarks/field.py --model gpt2 --random-weights --data cola.tsv --rows bf16,adamw-4 -o field.json
    python benchmarks/field.py --attack lamp:best --data cola.tsv --rows bf16 --batch-sizes 1 -o field.json
    python benchmarks/field.py --score field.json

The rows of the table (`--rows`), each for every batch size B unless it has its own:

    fp16, bf16             one gradient, cast when it is sent; with -dropout, the client trains with dropout
    int8                   one gradient, sent as whole numbers with a scale for each block of 4,096 entries
    bf16-autocast          one gradient, forward and backward pass in mixed precision
    sgd-1e-2, sgd-5e-5     4 steps of SGD of B/4 sentences, at least one, with this learning rate
    adamw-1                1 step of AdamW of all sentences, learning rate 5e-5
    adamw-4                4 steps of AdamW of B/4 sentences, at least one, learning rate 5e-5
    adamw-8x2              8 steps of AdamW of two sentences, 16 in all, learning rate 5e-5
    clients                the sum of 4 clients' gradients of two sentences each
    noise-5e-4             one gradient with Gaussian noise of that size; with -dropout, of a client with dropout
    dager                  10 epochs of SGD in mini-batches of 4 of 16 sentences, learning rate 1e-4: the FedAvg setting
                           of DAGER (Petrov et al. 2024)

`--take` is of each file; a batch has sentences of one. sieve and auto are told nothing, the other attacks what their
papers assume (labels and lengths; grab also the dropout rate). All of them know the protocol, which is public.
Batches that the output file holds are not run again, so a table can grow: by rows, sizes, files, attacks, or sentences
from where it ends. Runs need nothing but the core, `--score` needs rouge-score.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from batches import Row, Sentences, Summary, read_rows, read_sentences, result_of, run_all, target_of
from gradleak.attacks import find_attack
from gradleak.attacks.base import Attack
from gradleak.audit.scenario import ClientSettings, Scenario
from gradleak.defenses import parse_defense
from gradleak.federation import FedAvg

ADAMW_RATE = 5e-5
HEADINGS = ("update", "B", "sentences", "ROUGE-1", "ROUGE-2", "ROUGE-L", "exact, %", "verified, %", "wrongly verified")
TIMES = ("seconds", "at most")


@dataclass(frozen=True)
class UpdateKind:
    """How the updates of a row of the table are made.

    Attributes:
        client: settings of a client, given the number of its sentences.
        defense: applied to what it sends, as on the command line; none if None.
        sentences: of one client, where the row has its own number; None for that of the command line.
    """

    client: Callable[[int], ClientSettings]
    defense: str | None = None
    sentences: int | None = None

    def batch_sizes(self, wanted: list[int]) -> list[int]:
        """Return the numbers of sentences behind an update; all clients' together."""
        return wanted if self.sentences is None else [self.sentences * self.client(self.sentences).clients]

    def scenario(self, batch: Sentences, facts: tuple[str, ...]) -> Scenario:
        """Return the threat model of one update."""
        size = self.sentences or len(batch.texts)
        return Scenario(
            texts=batch.texts,
            labels=batch.labels,
            batch_size=size,
            client=self.client(size),
            defenses=() if self.defense is None else (parse_defense(self.defense),),
            facts=facts,
            seed=batch.first,
        )


def _always(client: ClientSettings) -> Callable[[int], ClientSettings]:
    return lambda size: client


def _in_four_steps(optimizer: Literal["sgd", "adamw"], lr: float) -> Callable[[int], ClientSettings]:
    def client(size: int) -> ClientSettings:
        return ClientSettings(fedavg=FedAvg(steps=4, lr=lr, batch=max(1, size // 4), optimizer=optimizer))

    return client


def _adamw(steps: int, batch: int | None) -> Callable[[int], ClientSettings]:
    return _always(ClientSettings(fedavg=FedAvg(steps=steps, lr=ADAMW_RATE, batch=batch, optimizer="adamw")))


KINDS = {
    "fp16": UpdateKind(_always(ClientSettings(send="fp16"))),
    "bf16": UpdateKind(_always(ClientSettings(send="bf16"))),
    "fp16-dropout": UpdateKind(_always(ClientSettings(send="fp16", dropout=True))),
    "bf16-dropout": UpdateKind(_always(ClientSettings(send="bf16", dropout=True))),
    "int8": UpdateKind(_always(ClientSettings(send="int8"))),
    "bf16-autocast": UpdateKind(_always(ClientSettings(precision="bf16"))),
    "sgd-1e-2": UpdateKind(_in_four_steps("sgd", 1e-2)),
    "sgd-5e-5": UpdateKind(_in_four_steps("sgd", 5e-5)),
    "adamw-1": UpdateKind(_adamw(1, None)),
    "adamw-4": UpdateKind(_in_four_steps("adamw", ADAMW_RATE)),
    "adamw-8x2": UpdateKind(_adamw(8, 2), sentences=16),
    "clients": UpdateKind(_always(ClientSettings(clients=4)), sentences=2),
    "noise-5e-4": UpdateKind(_always(ClientSettings()), defense="noise:0.0005"),
    "noise-5e-4-dropout": UpdateKind(_always(ClientSettings(dropout=True)), defense="noise:0.0005"),
    "dager": UpdateKind(_always(ClientSettings(fedavg=FedAvg(epochs=10, lr=1e-4, batch=4))), sentences=16),
}


def main() -> None:
    """Run batches, or print the table of what was found."""
    arguments = _arguments()
    if arguments.score:
        print_tables(read_rows(Path(arguments.score)))
        return
    items = sorted(work(arguments), key=lambda item: (item["number"], -len(item["sentences"].texts)))
    options = {"workers": arguments.workers, "threads": arguments.threads}
    sys.exit(1 if run_all(items, attack_batch, Path(arguments.output), **options) else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--random-weights", action="store_true", help="the model's shape alone")
    parser.add_argument(
        "--data", action="append", help="tab-separated file with the columns label and text; repeatable"
    )
    parser.add_argument("--take", default="0:16", help="first:last sentence of each file")
    parser.add_argument("--rows", default=",".join(KINDS))
    parser.add_argument("--batch-sizes", default="1,4,8")
    parser.add_argument("--attack", default="auto", help="NAME[:PRESET]")
    parser.add_argument("--budget", type=float, help="seconds for a batch; if left out, no limit, or the attack's own")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("-o", "--output", default="field.json")
    parser.add_argument("--score", metavar="FILE", help="a file of results to print as tables")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.rows.split(",") if name not in KINDS]
    if unknown:
        parser.error(f"no row named {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if not arguments.score and not arguments.data:
        parser.error("give --data, or --score")
    if not arguments.score:
        attack_of(arguments.attack, arguments.budget)  # a misspelt name ends the run here
    return arguments


def attack_of(spec: str, budget: float | None) -> Attack:
    """Return the attack that `NAME[:PRESET]` names; one that plans its own time, such as auto, is told the budget."""
    name, _, preset = spec.partition(":")
    kind = find_attack(name)
    planned = {"budget": str(budget)} if budget is not None and kind.has_setting("budget") else None
    return kind.with_settings(preset or None, planned)


def work(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the batches of all rows, sizes and files."""
    sizes = [int(size) for size in arguments.batch_sizes.split(",")]
    model = Path(arguments.model).name + (" with random weights" if arguments.random_weights else "")
    seconds = getattr(attack_of(arguments.attack, arguments.budget), "budget", arguments.budget)
    limit = "no limit" if seconds is None else f"{seconds:g} s"
    for file in map(Path, arguments.data):
        sentences = read_sentences(file, arguments.take)
        for name in arguments.rows.split(","):
            for size in KINDS[name].batch_sizes(sizes):
                for number, batch in enumerate(sentences.batches(size)):
                    yield {
                        "cell": f"{model}, {arguments.attack}, {limit}, {name}, B={size}, {file.stem}",
                        "batch": batch.first,
                        "number": number,
                        "run": f"{arguments.attack} on {model}, {limit}",
                        "row": name,
                        "size": size,
                        "sentences": batch,
                        "arguments": vars(arguments),
                    }


def attack_batch(item: Row) -> Row:
    """Capture one update and attack it."""
    options, batch = item["arguments"], item["sentences"]
    target = target_of(
        options["model"], batch.classes, device=options["device"], random_weights=options["random_weights"]
    )
    attack = attack_of(options["attack"], options["budget"])
    (captured,) = KINDS[item["row"]].scenario(batch, attack.assumes).batches(target)
    started = time.perf_counter()
    found = attack(target, captured.update, captured.knowledge, budget=options["budget"])
    seconds = time.perf_counter() - started
    kept = {key: item[key] for key in ("cell", "batch", "run", "row", "size")}
    kept |= {"model": options["model"], "random_weights": options["random_weights"], "labels": list(batch.labels)}
    return kept | result_of(target, batch.texts, found, seconds)


def print_tables(rows: list[Row]) -> None:
    """Print a markdown table for each model, attack and time limit, all files together."""
    for run in dict.fromkeys(row["run"] for row in rows):
        own = [row for row in rows if row["run"] == run]
        tokenizer = target_of(own[0]["model"], 2, random_weights=own[0]["random_weights"]).tokenizer
        print(f"{run}\n\n| {' | '.join(HEADINGS + TIMES)} |\n|{' --- |' * len(HEADINGS + TIMES)}")
        for name in KINDS:
            for size in sorted({row["size"] for row in own if row["row"] == name}):
                cell = Summary.of([row for row in own if (row["row"], row["size"]) == (name, size)], tokenizer)
                scores = [f"{score:.1f}" for score in (cell.rouge1, cell.rouge2, cell.rougeL)]
                shares = [f"{cell.exact:.0f}", f"{cell.verified:.0f}", str(cell.wrongly_verified)]
                times = [f"{cell.seconds:.1f}", f"{cell.most_seconds:.1f}"]
                print("| " + " | ".join([name, str(size), str(cell.sentences), *scores, *shares, *times]) + " |")
        print()


if __name__ == "__main__":
    main()
