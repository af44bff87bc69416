"""Look for a result that says more than is proven: random batches, honest updates and forged ones, by the minute.

    python benchmarks/fuzz.py --model tiny --data cola.tsv --minutes 60 --workers 2 -o fuzz.json
    python benchmarks/fuzz.py --model tiny --lora r=8,rounds=1 --attack forest --data cola.tsv -o adapters.json
    python benchmarks/fuzz.py --model lti-lm --task causal-lm --lora r=16,rounds=1 --attack forest --data cola.tsv
    python benchmarks/fuzz.py --attack forest --target tiny/classification/r=8 --target lti-lm/causal-lm/r=16 \
        --target small-llama/causal-lm/r=4 --target small-llama/causal-lm/r=8,dropout=0.05 \
        --target small-llama/classification --target smollm2/causal-lm/r=8 --data cola.tsv -o decoders.json
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
    rounded      cast to half precision, which the attacker is not told
    altered      some tensors, or all but the first layer's maps, of another text, noise, zero, pruned or scaled
    autocast     forward and backward pass in mixed precision
    sent         sent as fp16, bf16 or int8
    local sgd    several steps or epochs of SGD, with schedule, weight decay and clipping
    adamw        one to eight steps, or epochs, of AdamW
    clients      the sum of two to four clients, as secure aggregation shows it
    noise        Gaussian noise added
    combined     several of these options at once

The last seven come with their protocol, as an update file has it (docs/clients.md), with and without dropout.
`--kinds adamw,noise` draws from some kinds only. A case's number and the kinds drawn from make the case. With several
`--target` the cases take them in turn; `small-llama` is a Llama of 5 layers with random weights.

The result is held against `docs/verified.md`. Wrong is: `verified` with a text that no client trained on; `complete`
with a text missing or an update that was altered; `labels_verified` with a wrong label; more `copies` than there were.
An altered update that is verified with texts of its own is counted apart: it was not computed honestly. So is an
update that the attack refuses in a line. A run goes on where its output file ends.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch

from fuzz_cases import KINDS, Case
from gradleak.attacks import find_attack
from gradleak.errors import GradleakError
from gradleak.files import write_atomically


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
    options = {name: getattr(arguments, name) for name in ("model", "task", "lora", "attack", "budget", "kinds")}
    targets = [_target(text) for text in arguments.target or []] or [{}]
    until = time.monotonic() + 60 * arguments.minutes

    def cases() -> Iterator[dict[str, Any]]:
        for case in count():
            if time.monotonic() > until:
                return
            if case not in done:
                yield {"case": case, "texts": texts, **options, **targets[case % len(targets)]}

    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        # No more cases than workers at a time: what is drawn before the time is over is run to its end.
        for row in _as_they_end(pool, cases(), arguments.workers):
            rows.append(row)
            with write_atomically(path) as temporary:
                temporary.write_text(json.dumps(rows), encoding="utf-8")
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
    parser.add_argument("--task", default="classification", choices=("classification", "causal-lm"))
    parser.add_argument("--lora", help="adapters, which the client then trains and sends alone, such as r=8,rounds=1")
    parser.add_argument("--target", action="append", metavar="MODEL[/TASK[/LORA]]", help="in their place; repeatable")
    parser.add_argument("--data", help="tab-separated file with a column text")
    parser.add_argument("--attack", default="sieve")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of updates to draw from")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for a case")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("-o", "--output", default="fuzz.json")
    parser.add_argument("--report", help="a file of results to sum up")
    arguments = parser.parse_args()
    unknown = [kind for kind in arguments.kinds.split(",") if kind not in KINDS]
    if unknown:
        parser.error(f"no kind named {', '.join(unknown)}; there are {', '.join(KINDS)}")
    return arguments


def _target(text: str) -> dict[str, str]:
    """Return model, task and adapters of a `--target`."""
    model, _, rest = text.partition("/")
    task, _, lora = rest.partition("/")
    return {"model": model, "task": task or "classification", "lora": lora}


def _run(item: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    kinds = [kind for kind in item["kinds"].split(",") for _ in range(KINDS[kind][0])]
    options = {name: item[name] for name in ("task", "lora") if item.get(name)}
    case = Case(item["model"], item["texts"], item["case"], kinds, **options)
    update = case.update()
    started = time.perf_counter()
    row = {
        "case": item["case"],
        "kind": case.kind,
        "target": "/".join(filter(None, [item["model"], item.get("task"), item.get("lora")])),
        "how": case.how,
        "refused": "",
        "wrong": [],
        "notes": [],
    } | dict.fromkeys(("texts", "verified", "complete", "labels_verified", "exact"), 0)
    try:
        found = find_attack(item["attack"])()(case.target, update, budget=item["budget"])
    except GradleakError as error:  # said in a line that the update cannot be read
        return row | {"seconds": time.perf_counter() - started, "refused": str(error)}
    except Exception as error:  # a crash is a finding, too
        crash = f"crashed: {type(error).__name__}: {error}"
        return row | {"seconds": time.perf_counter() - started, "wrong": [crash]}
    trained = {tuple(ids): times for ids, times in case.trained()}
    return row | {
        "seconds": time.perf_counter() - started,
        "texts": len(trained),
        "verified": found.verified,
        "complete": found.complete,
        "labels_verified": found.labels_verified,
        "exact": set(found.token_ids) == set(trained),
        "wrong": list(_wrong(found, case, trained)),
        "notes": list(found.notes),
    }


def _wrong(found: Any, case: Case, trained: dict[tuple[int, ...], int]) -> Iterator[str]:  # noqa: ANN401
    if found.verified and not set(found.token_ids) <= set(trained):
        yield "verified a text that was not trained on"
    if found.complete and (set(found.token_ids) != set(trained) or case.kind == "altered"):
        yield "complete, and it is not"
    if found.verified and any(n > trained.get(ids, n) for ids, n in zip(found.token_ids, found.copies, strict=True)):
        yield "more copies than there were"
    if found.labels_verified:
        labels = {(tuple(ids), label) for ids, label in case.labelled()}
        if not set(zip(found.token_ids, found.labels, strict=True)) <= labels:
            yield "labels verified, and they are wrong"


def _report(rows: list[dict[str, Any]]) -> None:
    """Print how many cases of each kind, and of each target, were read, proven, and wrong."""
    columns = ("exact", "verified", "complete", "labels_verified", "refused", "wrong")
    names = ["cases", "texts", "exact", "verified", "complete", "labels", "refused", "wrong", "seconds"]
    for key, title in (("kind", "update"), ("target", "target")):
        values = sorted({row[key] for row in rows})
        width = max(map(len, [*values, title])) + 2
        print(f"{title:<{width}}" + "".join(f"{name:>10}" for name in names))
        for value in [*values, "all"]:
            own = [row for row in rows if value in (row[key], "all")]
            counts = [
                len(own),
                sum(row["texts"] for row in own),
                *(sum(bool(row.get(column)) for row in own) for column in columns),
                round(sum(row["seconds"] for row in own)),
            ]
            print(f"{value:<{width}}" + "".join(f"{number:>10,}" for number in counts))
    altered = Counter(row["how"].split(",")[0] for row in rows if row["kind"] == "altered" and row["verified"])
    print("altered and verified:", dict(altered) or "none")


if __name__ == "__main__":
    main()
