"""What sieve reads, told nothing: batch sizes, dropout, defenses; batch by batch on as many cores as there are.

    python benchmarks/sieve.py --model minilm --data cola.tsv --take 0:64 --batch-sizes 1,2,4,8,16 -o sieve.json
    python benchmarks/sieve.py --model minilm --data cola.tsv --defense sign --defense prune:0.9 -o sieve.json
    python benchmarks/sieve.py --score sieve.json
    python benchmarks/sieve.py --plot limit.svg -o sieve.json      # how many are exact, against tokens in a batch

Batches that the output file holds are not run again. The score of a batch needs rouge-score and is kept apart: the
other commands need nothing but the core. Whether a reconstruction that says `verified` is right is counted, too;
`fuzz.py` looks for one that is not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

from batches import Row, Summary, read_rows, read_sentences, result_of, run_all, target_of
from gradleak.attacks import find_attack
from gradleak.defenses import parse_defense
from gradleak.federation import Client


def main() -> None:
    """Run batches, or score what was found."""
    arguments = _arguments()
    if arguments.score:
        _score(Path(arguments.score))
        return
    path = Path(arguments.output)
    if arguments.plot:
        _plot(path, Path(arguments.plot))
        return
    work = sorted(_work(arguments), key=lambda item: -len(item["texts"]))  # long ones first, or they end alone
    sys.exit(1 if run_all(work, _run, path, workers=arguments.workers, threads=arguments.threads) else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--random-weights", action="store_true", help="the model's shape alone")
    parser.add_argument("--task", default="classification", choices=["classification", "causal-lm"])
    parser.add_argument("--data", help="tab-separated file with the columns label and text")
    parser.add_argument("--take", default="0:16")
    parser.add_argument("--batch-sizes", default="1")
    parser.add_argument("--dropout", default="off,on", help="off, on, or both")
    parser.add_argument("--embeddings", default="frozen", choices=["frozen", "words-frozen", "trained"])
    parser.add_argument("--defense", action="append", default=[], help="one cell each; none if left out")
    parser.add_argument("--attack", default="sieve")
    parser.add_argument("--prior", help="sieve's prior where it is not its own: none, a directory or a hub id")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--output", default="sieve.json")
    parser.add_argument("--score", help="a file of reconstructions to score")
    parser.add_argument("--plot", help="a picture of the undefended batches in the output file, as SVG")
    return parser.parse_args()


def _work(arguments: argparse.Namespace) -> list[Row]:
    """Return all batches of all cells."""
    sentences = read_sentences(Path(arguments.data), arguments.take)
    items = []
    for size in map(int, arguments.batch_sizes.split(",")):
        for dropout in arguments.dropout.split(","):
            for defense in arguments.defense or [None]:
                words = [Path(arguments.data).stem, Path(arguments.model).name, arguments.embeddings, f"B={size}"]
                words += [f"dropout={dropout}", *([defense] if defense else [])]
                cell = " ".join([*words, *([f"prior={arguments.prior}"] if arguments.prior else [])])
                for number, batch in enumerate(sentences.batches(size)):
                    items.append(
                        {
                            "cell": cell,
                            "batch": number,
                            "texts": batch.texts,
                            "labels": batch.labels,
                            "classes": batch.classes,
                            "dropout": dropout == "on",
                            "embeddings": arguments.embeddings,
                            "defense": defense,
                            "arguments": vars(arguments),
                        }
                    )
    return items


def _run(item: Row) -> Row:
    """Capture one update and read it, told nothing."""
    options = item["arguments"]
    target = target_of(options["model"], item["classes"], options["task"], options["device"], options["random_weights"])
    client = Client(target, dropout=item["dropout"], embeddings=item["embeddings"], seed=item["batch"])
    labels = item["labels"] if target.task == "classification" else None
    update = client.update(item["texts"], labels)
    if item["defense"]:
        update = parse_defense(item["defense"]).apply(update, torch.Generator().manual_seed(item["batch"]))
    attack = find_attack(options["attack"])(**({"prior": options["prior"]} if options["prior"] else {}))
    started = time.perf_counter()
    found = attack(target, update)
    seconds = time.perf_counter() - started
    kept = {"cell": item["cell"], "batch": item["batch"], "labels": labels}
    return kept | result_of(target, item["texts"], found, seconds)


def _score(path: Path) -> None:
    tokenizer = target_of("tiny", 2).tokenizer  # the uncased vocabulary that the models here share
    cells = defaultdict(list)
    for row in read_rows(path):
        cells[row["cell"]].append(row)
    print(f"{'cell':<64}{'n':>4}{'R-1':>7}{'R-2':>7}{'R-L':>7}{'exact':>7}{'verified':>9}{'wrongly':>8}{'s':>7}")
    for cell, rows in cells.items():
        summary = Summary.of(rows, tokenizer)
        means = (summary.rouge1, summary.rouge2, summary.rougeL, summary.exact)
        print(
            f"{cell:<64}{summary.sentences:>4}"
            + "".join(f"{mean:>7.1f}" for mean in means)
            + f"{summary.verified:>9.0f}{summary.wrongly_verified:>8}{summary.seconds:>7.1f}"
        )


def _plot(path: Path, picture: Path, width: int = 384) -> None:
    """Draw a dot for every batch without a defense: tokens in it, and the share of its sentences that were exact."""
    left, right, top, bottom = 60, 520, 50, 250
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 560 300" font-family="sans-serif" font-size="12">',
        "<title>Share of sentences read exactly against the number of tokens in a batch</title>",
        '<rect width="560" height="300" fill="#fff"/>',
        f'<path d="M{left} 40V{bottom}H530" fill="none" stroke="#333"/>',
        f'<path d="M{right} 40V{bottom}" stroke="#b5643c" stroke-dasharray="4 3"/>',
        f'<text x="{right - 4}" y="36" text-anchor="end" fill="#b5643c">hidden size d = {width}</text>',
        '<text x="290" y="290" text-anchor="middle">tokens in a batch, N</text>',
        '<text x="16" y="150" transform="rotate(-90 16 150)" text-anchor="middle">sentences exact, %</text>',
        '<circle cx="80" cy="20" r="4" fill="#4a6fa5"/><text x="90" y="24">no dropout</text>',
        '<circle cx="180" cy="20" r="4" fill="#c0392b"/><text x="190" y="24">dropout 0.1</text>',
    ]
    for share in (0, 25, 50, 75, 100):
        y = bottom - (bottom - top) * share / 100
        parts.append(f'<path d="M56 {y}h4" stroke="#333"/><text x="50" y="{y + 4}" text-anchor="end">{share}</text>')
    for tokens in range(0, width + 1, 64):
        x = left + (right - left) * tokens / width
        parts.append(f'<path d="M{x:.0f} {bottom}v4" stroke="#333"/>')
        parts.append(f'<text x="{x:.0f}" y="268" text-anchor="middle">{tokens}</text>')
    dots = set()
    for row in read_rows(path):
        kind = row["cell"].rsplit(" ", 1)[-1]  # a defense would stand behind it
        if kind in ("dropout=off", "dropout=on"):
            left_over = list(row["references"])
            for ids in row["found"]:
                if ids in left_over:
                    left_over.remove(ids)
            exact = 1 - len(left_over) / len(row["references"])
            dots.add((row["tokens"], exact, kind == "dropout=on"))
    for tokens, exact, dropout in sorted(dots):
        x, y = left + (right - left) * tokens / width, bottom - (bottom - top) * exact + (3 if dropout else -3)
        colour = "#c0392b" if dropout else "#4a6fa5"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}" fill-opacity="0.6"/>')
    picture.write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
