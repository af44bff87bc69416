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
import csv
import json
import multiprocessing
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from gradleak.attacks import find_attack
from gradleak.defenses import parse_defense
from gradleak.federation import Client
from gradleak.targets import Target, load_target

_TARGET: dict[str, Target] = {}


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
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    done = {(row["cell"], row["batch"]) for row in rows}
    work = [item for item in _work(arguments) if (item["cell"], item["batch"]) not in done]
    work.sort(key=lambda item: -len(item["texts"]))  # long ones first, or they end alone
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        for row in pool.imap_unordered(_run, work):
            rows.append(row)
            path.write_text(json.dumps({"rows": rows}), encoding="utf-8")
            print(
                f"{row['cell']}, batch {row['batch']}: {row['seconds']:.1f} s, verified {row['verified']}", flush=True
            )


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


def _work(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return all batches of all cells."""
    with Path(arguments.data).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    first, last = (int(part) for part in arguments.take.split(":"))
    rows = rows[first:last]
    items = []
    for size in map(int, arguments.batch_sizes.split(",")):
        for dropout in arguments.dropout.split(","):
            for defense in arguments.defense or [None]:
                words = [Path(arguments.data).stem, Path(arguments.model).name, arguments.embeddings, f"B={size}"]
                words += [f"dropout={dropout}", *([defense] if defense else [])]
                cell = " ".join([*words, *([f"prior={arguments.prior}"] if arguments.prior else [])])
                for number, start in enumerate(range(0, len(rows) - size + 1, size)):
                    batch = rows[start : start + size]
                    items.append(
                        {
                            "cell": cell,
                            "batch": number,
                            "texts": [row["text"] for row in batch],
                            "labels": [int(row["label"]) for row in batch],
                            "dropout": dropout == "on",
                            "embeddings": arguments.embeddings,
                            "defense": defense,
                            "arguments": vars(arguments),
                        }
                    )
    return items


def _run(item: dict[str, Any]) -> dict[str, Any]:
    """Capture one update and read it, told nothing."""
    options = item["arguments"]
    torch.set_num_threads(options["threads"])
    if "target" not in _TARGET:
        _TARGET["target"] = load_target(
            options["model"],
            2,
            task=options["task"],
            device=options["device"],
            random_weights=options["random_weights"],
        )
    target = _TARGET["target"]
    client = Client(target, dropout=item["dropout"], embeddings=item["embeddings"], seed=item["batch"])
    labels = item["labels"] if target.task == "classification" else None
    update = client.update(item["texts"], labels)
    if item["defense"]:
        update = parse_defense(item["defense"]).apply(update, torch.Generator().manual_seed(item["batch"]))
    attack = find_attack(options["attack"])(**({"prior": options["prior"]} if options["prior"] else {}))
    started = time.perf_counter()
    found = attack(target, update)
    seconds = time.perf_counter() - started
    tokens = target.encode(item["texts"])
    return {
        "cell": item["cell"],
        "batch": item["batch"],
        "seconds": seconds,
        "tokens": int(tokens.mask.sum()),
        "references": [row[there].tolist() for row, there in zip(tokens.ids, tokens.mask, strict=True)],
        "labels": labels,
        "found": [list(ids) for ids in found.token_ids],
        "found_labels": found.labels,
        "verified": found.verified,
        "loss": found.loss,
        "notes": list(found.notes),
    }


def _score(path: Path) -> None:
    from gradleak.metrics import score_tokens

    tokenizer = load_target("tiny").tokenizer  # the uncased vocabulary that the models here share
    cells = defaultdict(list)
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        cells[row["cell"]].append(row)
    print(f"{'cell':<64}{'n':>4}{'R-1':>7}{'R-2':>7}{'R-L':>7}{'exact':>7}{'verified':>9}{'wrongly':>8}{'s':>7}")
    for cell, rows in cells.items():
        scores = [s for row in rows for s in score_tokens(row["found"], row["references"], tokenizer).sentences]
        means = [
            sum(getattr(s, name) for s in scores) / len(scores) for name in ("rouge1", "rouge2", "rougeL", "exact")
        ]
        verified = [row for row in rows if row["verified"]]
        wrongly = sum(sorted(row["found"]) != sorted(row["references"]) for row in verified)
        seconds = sum(row["seconds"] for row in rows) / len(rows)
        print(
            f"{cell:<64}{len(scores):>4}"
            + "".join(f"{mean:>7.1f}" for mean in means)
            + f"{100 * len(verified) / len(rows):>9.0f}{wrongly:>8}{seconds:>7.1f}"
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
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
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
