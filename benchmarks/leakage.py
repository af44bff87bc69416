"""What attacks recover from a model, sentence by sentence, with nothing installed but the core.

    python benchmarks/leakage.py --model minilm --data cola.tsv --take 0:32 --attack lamp --attack tag -o found.json
    python benchmarks/leakage.py --score found.json

The first command runs where the GPU is and writes reconstructions as JSON; the second scores them (it needs
rouge-score) and prints ROUGE-1/2/L and exact match, with 95 % intervals of a bootstrap that draws whole batches.
`--attack NAME[:PRESET][,KEY=VALUE…]` may be repeated; without a preset it is `best` if the attack has that, else
`paper`. What the output file holds is not run again (batch by batch with `--separately`). Runs of one name in several
files, each of a part of the sentences, are scored as one; in one file a name has one model, range and seed. Where the
data has fewer sentences than `--take` asks for, the first line says so.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from gradleak.attacks import find_attack
from gradleak.audit.scenario import ClientSettings, Scenario
from gradleak.defenses import parse_defense
from gradleak.federation import FedAvg
from gradleak.targets import Target, load_target

BOOTSTRAP = 10_000
SHORT = "fewer sentences than asked for:"
Row = dict[str, Any]
EMPTY: Row = {
    "seconds": 0,
    "each": [],
    "sentences": 0,
    "references": [],
    "reconstructions": [],
    "texts": [],
    "losses": [],
}


def main() -> None:
    """Run attacks, or score what they found."""
    arguments = _arguments()
    if arguments.score:
        _score([Path(path) for path in arguments.score])
        return
    path = Path(arguments.output)
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    _refuse_mixture(path, document["rows"], arguments)
    if arguments.gpu_share < 1:
        torch.cuda.set_per_process_memory_fraction(arguments.gpu_share)
    texts, labels, classes = _read(Path(arguments.data), arguments.take)
    if not texts:
        return
    target = load_target(
        arguments.model,
        num_labels=classes,
        device=arguments.device,
        random_weights=arguments.random_weights,
    )
    for spec in arguments.attack:
        for row in _attack(target, texts, labels, spec, document["rows"], arguments):
            document["rows"] = [*(other for other in document["rows"] if other["name"] != row["name"]), row]
            path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--random-weights", action="store_true", help="the model's shape alone")
    parser.add_argument("--data", help="tab-separated file with the columns label and text")
    parser.add_argument("--take", default="0:16")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--attack", action="append", default=[])
    parser.add_argument("--separately", action="store_true", help="one batch after the other, each with its own time")
    parser.add_argument("--embeddings", default="frozen", choices=["frozen", "words-frozen", "trained"])
    parser.add_argument("--dropout", action="store_true")
    parser.add_argument("--fedavg", help="steps=S,lr=R")
    parser.add_argument("--defense", action="append", default=[])
    parser.add_argument("--know", help="what the attacker is told; by default what the attack's paper assumes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--gpu-share", type=float, default=1, help="share of the GPU's memory, where others run beside")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", default="found.json")
    parser.add_argument("--score", nargs="+", help="files of reconstructions to score")
    return parser.parse_args()


def _row_name(arguments: argparse.Namespace, spec: str) -> str:
    extra = [
        *(["dropout"] if arguments.dropout else []),
        *([f"fedavg:{arguments.fedavg}"] if arguments.fedavg else []),
        *arguments.defense,
        *([f"know:{arguments.know}"] if arguments.know is not None else []),
    ]
    return " ".join([Path(arguments.data).stem, arguments.embeddings, f"B={arguments.batch_size}", *extra, spec])


def _made_from(arguments: argparse.Namespace) -> Row:
    """Return what a row is made from but not named after, since rows of one name are scored as one."""
    return {
        "model": arguments.model + (" with random weights" if arguments.random_weights else ""),
        "data": Path(arguments.data).name,
        "take": arguments.take,
        "seed": arguments.seed,
    }


def _refuse_mixture(path: Path, rows: list[Row], arguments: argparse.Namespace) -> None:
    """End where a row would be continued, or taken for finished, that was made from something else."""
    names = {_row_name(arguments, spec) for spec in arguments.attack}
    wanted = _made_from(arguments)
    for row in rows:
        made = row.get("made_from", wanted)  # older rows do not tell, and are taken as they are
        if row["name"] in names and made != wanted:
            source = "model {model}, sentences {take} of {data}, seed {seed}".format_map(made)
            print(f"{path} holds '{row['name']}' of {source}: choose another file", file=sys.stderr)
            sys.exit(2)


def _scenario(texts: list[str], labels: list[int], arguments: argparse.Namespace, assumed: tuple[str, ...]) -> Scenario:
    fedavg = None
    if arguments.fedavg:
        values = dict(pair.split("=") for pair in arguments.fedavg.split(","))
        fedavg = FedAvg(steps=int(values["steps"]), lr=float(values["lr"]))
    told = assumed if arguments.know is None else tuple(fact for fact in arguments.know.split(",") if fact != "none")
    return Scenario(
        texts=tuple(texts),
        labels=tuple(labels),
        batch_size=arguments.batch_size,
        client=ClientSettings(dropout=arguments.dropout, embeddings=arguments.embeddings, fedavg=fedavg),
        defenses=tuple(parse_defense(text) for text in arguments.defense),
        facts=told if arguments.batch_size == 1 else (*told, "batch-size"),
        seed=arguments.seed,
    )


def _attack(
    target: Target, texts: list[str], labels: list[int], spec: str, rows: list[Row], arguments: argparse.Namespace
) -> Iterator[Row]:
    """Attack what a row of that name does not hold yet; yield the row whenever it has grown."""
    head, *settings = spec.split(",")
    kind, _, preset = head.partition(":")
    attack = find_attack(kind).with_settings(preset or None, dict(pair.split("=", 1) for pair in settings))
    name = _row_name(arguments, spec)
    new = {"name": name, "settings": repr(attack), "made_from": _made_from(arguments), **EMPTY}
    row = next((row for row in rows if row["name"] == name), new)
    cases = list(_scenario(texts, labels, arguments, attack.assumes).batches(target))[len(row["reconstructions"]) :]
    for group in [[case] for case in cases] if arguments.separately else filter(None, [cases]):
        started = time.perf_counter()
        found = attack.many(target, [c.update for c in group], [c.knowledge for c in group], seed=arguments.seed)
        encoded = [target.encode(case.texts) for case in group]
        grown = {
            "seconds": time.perf_counter() - started,
            "each": [result.seconds for result in found],
            "sentences": sum(len(case.texts) for case in group),
            "references": [[r[m].tolist() for r, m in zip(t.ids, t.mask, strict=True)] for t in encoded],
            "reconstructions": [result.token_ids for result in found],
            "texts": [result.texts for result in found],
            "losses": [result.loss for result in found],
        }
        row = row | {key: row[key] + value for key, value in grown.items()}
        print(f"{name}: {row['sentences']} sentences in {row['seconds']:.1f} s", flush=True)
        yield row


def _read(path: Path, take: str) -> tuple[list[str], list[int], int]:
    """Return the texts and labels that were asked for, and how many classes the whole file has.

    Where the file has fewer sentences than that, it is said: a table must not claim what was never attacked.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    first, last = (int(part) for part in take.split(":"))
    labels = [int(row["label"]) for row in rows]
    if last > len(rows):
        taken = max(0, len(rows) - first)
        print(f"{SHORT} {path.name} has {len(rows)} sentences, {taken} of {take} are attacked", file=sys.stderr)
    return [row["text"] for row in rows[first:last]], labels[first:last], max(2, 1 + max(labels))


def _score(paths: list[Path]) -> None:
    import numpy as np

    from gradleak.metrics import score_tokens
    from gradleak.studies.report.intervals import bootstrap

    tokenizer = load_target("tiny").tokenizer  # the uncased vocabulary that BERT and MiniLM share
    parts: dict[str, list[Row]] = {}
    for path in paths:
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            parts.setdefault(f"{path.name.split('.')[0]}: {row['name']}", []).append(row)
    print(f"{'run':<80}{'n':>4}{'ROUGE-1':>20}{'ROUGE-2':>20}{'ROUGE-L':>20}{'exact':>8}{'s each':>8}{'median':>8}")
    for name, rows in parts.items():
        pairs = [pair for row in rows for pair in zip(row["reconstructions"], row["references"], strict=True)]
        scores = [score for a, b in pairs for score in score_tokens(a, b, tokenizer).sentences]
        values = np.array([[s.rouge1, s.rouge2, s.rougeL, s.exact] for s in scores])
        batches = np.repeat(np.arange(len(pairs)), [len(b) for _, b in pairs])
        (estimates,) = bootstrap(values, np.array([len(values)]), batches, resamples=BOOTSTRAP)
        cells = [f"{mean:.1f} ({low:.1f}–{high:.1f})" for mean, low, high in estimates]
        seconds = sum(row["seconds"] for row in rows) / sum(row["sentences"] for row in rows)
        print(
            f"{name:<80}{len(scores):>4}"
            + "".join(f"{cell:>20}" for cell in cells[:3])
            + f"{values[:, 3].mean():>8.1f}{seconds:>8.2f}"
            + f"{np.median([each for row in rows for each in row['each']]):>8.2f}"
        )


if __name__ == "__main__":
    main()
