"""Look for a result that says more than is proven: random batches, honest updates and forged ones, by the minute.

    python benchmarks/fuzz.py --model tiny --data cola.tsv --minutes 60 --workers 2 -o fuzz.json
    python benchmarks/fuzz.py --report fuzz.json

Each case draws one to eight texts (a sentence of the file, a part of one, one or two words again and again, words of
the file at random; some twice), labels, dropout, visible embeddings, and how the update is made:

    honest       one gradient
    scaled       the same times a factor, as clipping makes it
    passes       the mean of two or three dropout passes, as R-Drop makes it
    steps        several local steps (FedAvg), of learning rates from 1e-4 to 10
    sum          the sum or mean of several clients' updates
    difference   one client's update minus another's
    confident    a classifier so sure of itself that some texts leave no trace
    other head   computed with another classifier than the attacker is given
    rounded      cast to half precision
    altered      some tensors, or all but the first layer's maps, of another text, noise, zero, pruned or scaled

The result is held against `docs/verified.md`. Wrong is: `verified` with a text that no client trained on; `complete`
with a text missing or an update that was altered; `labels_verified` with a wrong label; more `copies` than there were.
An altered update that is verified with texts of its own is counted apart: it was not computed honestly. A run goes on
where its output file ends.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks import find_attack
from gradleak.exchange import Update
from gradleak.federation import Client, FedAvg
from gradleak.targets import Target, load_target

KINDS = (
    *("honest",) * 3,
    *("scaled", "passes", "steps", "sum", "difference", "confident", "other head", "rounded"),
    *("altered",) * 4,
)
SURE = 60.0
"""What the classifier is multiplied with to be sure of its classes."""

_TARGETS: dict[str, Target] = {}

Batch = list[tuple[str, int]]


def main() -> None:
    """Run cases until the time is over, or report on those of a file."""
    arguments = _arguments()
    if arguments.report:
        _report(json.loads(Path(arguments.report).read_text(encoding="utf-8")))
        return
    path = Path(arguments.output)
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    done = {row["case"] for row in rows}
    with Path(arguments.data).open(encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    until = time.monotonic() + 60 * arguments.minutes

    def cases() -> Iterator[dict[str, Any]]:
        for case in count():
            if time.monotonic() > until:
                return
            if case not in done:
                yield {"case": case, "texts": texts, "model": arguments.model, "budget": arguments.budget}

    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        # No more cases than workers at a time: what is drawn before the time is over is run to its end.
        for row in _as_they_end(pool, cases(), arguments.workers):
            rows.append(row)
            path.write_text(json.dumps(rows), encoding="utf-8")
            if row["wrong"]:
                print(f"case {row['case']}, {row['kind']}: {', '.join(row['wrong'])}", flush=True)
    _report(rows)


def _as_they_end(pool: Any, cases: Iterator[dict[str, Any]], workers: int) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    running = [pool.apply_async(_run, (case,)) for case, _ in zip(cases, range(workers), strict=False)]
    while running:
        ended = [result for result in running if result.ready()]
        for result in ended:
            running.remove(result)
            yield result.get()
            following = next(cases, None)
            if following is not None:
                running.append(pool.apply_async(_run, (following,)))
        time.sleep(0.02)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--data", help="tab-separated file with a column text")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for a case")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("-o", "--output", default="fuzz.json")
    parser.add_argument("--report", help="a file of results to sum up")
    return parser.parse_args()


def _run(item: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    draw = random.Random(item["case"])
    kind = draw.choice(KINDS)
    target = _target(item["model"], sure=kind == "confident")
    case = Case(target, item["texts"], draw, item["case"])
    update = case.update(kind, item["model"])
    started = time.perf_counter()
    try:
        found = find_attack("sieve")()(target, update, budget=item["budget"])
    except Exception as error:  # a crash is a finding, too
        return dict.fromkeys(("texts", "verified", "complete", "labels_verified", "exact"), 0) | {
            "case": item["case"],
            "kind": kind,
            "how": case.how,
            "seconds": time.perf_counter() - started,
            "wrong": [f"crashed: {type(error).__name__}: {error}"],
            "notes": [],
        }
    trained = {tuple(ids): times for ids, times in case.trained()}
    return {
        "case": item["case"],
        "kind": kind,
        "how": case.how,
        "seconds": time.perf_counter() - started,
        "texts": len(trained),
        "verified": found.verified,
        "complete": found.complete,
        "labels_verified": found.labels_verified,
        "exact": set(found.token_ids) == set(trained),
        "wrong": list(_wrong(found, case, trained, kind)),
        "notes": list(found.notes),
    }


def _wrong(found: Any, case: Case, trained: dict[tuple[int, ...], int], kind: str) -> Iterator[str]:  # noqa: ANN401
    if found.verified and not set(found.token_ids) <= set(trained):
        yield "verified a text that was not trained on"
    if found.complete and (set(found.token_ids) != set(trained) or kind == "altered"):
        yield "complete, and it is not"
    if found.verified and any(n > trained.get(ids, n) for ids, n in zip(found.token_ids, found.copies, strict=True)):
        yield "more copies than there were"
    if found.labels_verified:
        labels = {(tuple(ids), label) for ids, label in case.labelled()}
        if not set(zip(found.token_ids, found.labels, strict=True)) <= labels:
            yield "labels verified, and they are wrong"


def _target(model: str, *, sure: bool = False, head: int = 0) -> Target:
    name = f"{model} {sure} {head}"
    if name not in _TARGETS:
        _TARGETS[name] = load_target(model, 2, head, device="cpu")
        if sure:
            with torch.no_grad():
                _TARGETS[name].parameters[f"{_TARGETS[name].classifier}.weight"].mul_(SURE)
    return _TARGETS[name]


class Case:
    """One update, and all that went into it."""

    def __init__(self, target: Target, texts: list[str], draw: random.Random, number: int) -> None:
        self.target, self.draw, self.number = target, draw, number
        self.how = ""
        self.passes = 1
        self.dropout = draw.random() < 0.5
        self.embeddings: Any = draw.choice(["frozen", "frozen", "frozen", "words-frozen", "trained"])
        self._texts = texts
        self.batches: list[Batch] = []

    def batch(self, most: int = 8) -> Batch:
        """Draw a batch that is trained on."""
        size = self.draw.choice([size for size in (1, 1, 2, 3, 4, 6, 8) if size <= most])
        batch = [(_random_text(self._texts, self.draw), self.draw.randrange(2)) for _ in range(size)]
        if self.draw.random() < 0.2:
            batch.append(self.draw.choice(batch))
        self.batches.append(batch)
        return batch

    def trained(self) -> list[tuple[list[int], int]]:
        """Return the token ids of each text, and how often the model saw it."""
        times = Counter(text for batch in self.batches for text, _ in batch)
        seen: Counter[tuple[int, ...]] = Counter()
        for text, number in times.items():
            seen[self._ids(text)] += number * self.passes
        return [(list(ids), number) for ids, number in seen.items()]

    def labelled(self) -> list[tuple[tuple[int, ...], int]]:
        """Return the token ids of each text with its label."""
        return [(self._ids(text), label) for batch in self.batches for text, label in batch]

    def update(self, kind: str, model: str) -> Update:
        """Make the update."""
        if kind == "passes":
            self.dropout, self.passes = True, self.draw.choice([2, 3])
            batch = self.batch(3)
            return self._sum([self._sent(batch, seed) for seed in range(self.passes)], 1 / self.passes)
        if kind == "steps":
            batch = self.batch(4)
            steps, lr = self.draw.choice([1, 2, 4]), self.draw.choice([1e-4, 1e-2, 1.0, 10.0])
            self.passes, self.how = steps, f"{steps} steps, lr {lr:g}"
            fedavg = FedAvg(steps=steps, lr=lr, batch=self.draw.choice([None, 1]))
            update = self._sent(batch, fedavg=fedavg)
            if not all(bool(torch.isfinite(tensor).all()) for tensor in update.tensors.values()):
                return self._sent(batch)
            if fedavg.batch:  # one text a step, from the first on
                self.batches = [[batch[step % len(batch)] for step in range(steps)]]
            return update
        if kind == "sum":
            clients = [self._sent(self.batch(3), seed) for seed in range(self.draw.choice([2, 3]))]
            return self._sum(clients, self.draw.choice([1.0, 1 / len(clients)]))
        if kind == "difference":
            first, second = self._sent(self.batch(3), 0), self._sent(self.batch(3), 1)
            return self._sum([first, self._sum([second], -1.0)], 1.0)
        if kind == "other head":
            return self._sent(self.batch(4), target=_target(model, head=1))
        update = self._sent(self.batch())
        if kind == "scaled":
            return self._sum([update], self.draw.choice([0.5, 0.1, 0.37, 3.0]))
        if kind == "rounded":
            dtype = self.draw.choice([torch.bfloat16, torch.float16])
            return update.with_tensors({name: tensor.to(dtype).float() for name, tensor in update.tensors.items()})
        return self._altered(update) if kind == "altered" else update

    def _altered(self, update: Update) -> Update:
        layer = self.target.layers[0]
        maps = {name for part in (layer.query, layer.key, layer.value) for name in (part.weight, part.bias)}
        rest = [name for name in update.tensors if name not in maps]
        chosen = set(rest if self.draw.random() < 0.5 else self.draw.sample(rest, self.draw.choice([1, 2, 5])))
        way = self.draw.choice(["other text", "noise", "zero", "pruned", "scaled"])
        self.how = f"{way}, {len(chosen)} of {len(update.tensors)} tensors"
        other = None
        if way == "other text":
            other = self._sent([(_random_text(self._texts, self.draw), 0) for _ in self.batches[0]], 7)
        factor = self.draw.choice([1.01, 0.9, 2.0])
        generator = torch.Generator().manual_seed(self.number)

        def change(name: str, tensor: Tensor) -> Tensor:
            if other is not None:
                return other.tensors[name]
            if way == "noise":
                return tensor.std(correction=0) * torch.randn(tensor.shape, generator=generator)
            if way == "zero":
                return torch.zeros_like(tensor)
            return factor * tensor if way == "scaled" else tensor * (tensor.abs() > tensor.abs().mean())

        return update.with_tensors({n: change(n, t) if n in chosen else t for n, t in update.tensors.items()})

    def _sent(self, batch: Batch, seed: int = 0, fedavg: FedAvg | None = None, target: Target | None = None) -> Update:
        client = Client(
            target or self.target,
            dropout=self.dropout,
            embeddings=self.embeddings,
            fedavg=fedavg,
            seed=100 * self.number + seed,
        )
        update = client.update([text for text, _ in batch], [label for _, label in batch])
        return Update(update.tensors, update.kind, update.learning_rate, update.steps)

    def _sum(self, updates: list[Update], factor: float) -> Update:
        names = updates[0].tensors
        total = {name: sum(update.tensors[name] for update in updates) for name in names}
        return Update({name: factor * torch.as_tensor(tensor) for name, tensor in total.items()})

    def _ids(self, text: str) -> tuple[int, ...]:
        encoded = self.target.encode([text])
        return tuple(encoded.ids[0][encoded.mask[0]].tolist())


def _random_text(texts: list[str], draw: random.Random) -> str:
    """Return a sentence, a part of one, the same word again and again, or word salad."""
    words = draw.choice(texts).split()
    kind = draw.random()
    if kind < 0.5:
        return " ".join(words)
    if kind < 0.7:
        return " ".join(words[draw.randrange(len(words)) :])
    length = draw.randrange(1, 16)
    every = (
        words[:2] if kind < 0.8 else [word for text in draw.sample(texts, min(20, len(texts))) for word in text.split()]
    )
    return " ".join(draw.choices(every, k=length))


def _report(rows: list[dict[str, Any]]) -> None:
    """Print how many cases of each kind were read, proven, and wrong."""
    keys = ("exact", "verified", "complete", "labels_verified", "wrong")
    names = ["cases", "texts", "exact", "verified", "complete", "labels", "wrong", "seconds"]
    print(f"{'update':<22}" + "".join(f"{name:>10}" for name in names))
    for kind in [*sorted({row["kind"] for row in rows}), "all"]:
        own = [row for row in rows if kind in (row["kind"], "all")]
        counts = [
            len(own),
            sum(row["texts"] for row in own),
            *(sum(bool(row[key]) for row in own) for key in keys),
            round(sum(row["seconds"] for row in own)),
        ]
        print(f"{kind:<22}" + "".join(f"{number:>10,}" for number in counts))
    altered = Counter(row["how"].split(",")[0] for row in rows if row["kind"] == "altered" and row["verified"])
    print("altered and verified:", dict(altered) or "none")


if __name__ == "__main__":
    main()
