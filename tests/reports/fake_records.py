"""Records of audits that never ran, for tests of the page."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from gradleak.reports.record import MARK, SCHEMA, Record
from gradleak.reports.words import cleaned, sentence_record

HOSTILE = (
    "<script>document.title='run'</script>",
    "<img src=http://127.0.0.1:9/x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "\u202egnirts desrever\u202c",
    "null\x00bell\x07escape\x1b[31mred",
    "{{ 7 * 7 }} {% raw %}",
    "</style><style>body{display:none}</style>",
    "w" * 5_000,
    "Z\u0300\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308\u0309\u030a algo",
    "&lt;b&gt; &amp; 'quotes'",
)
LADDERS = ("precision", "clip", "sign", "prune", "noise", "dpsgd")


def scored(mean: float, spread: float = 20.0, interval: bool = False) -> dict[str, Any]:
    low, high = max(0.0, mean - spread), min(100.0, mean + spread)
    ends = {"low": max(0.0, mean - 5), "high": min(100.0, mean + 5)} if interval else {"low": None, "high": None}
    one = {"mean": mean, "min": low, "max": high, **ends}
    return dict.fromkeys(("rouge1", "rouge2", "rougeL", "exact", "token_accuracy"), one)


def setting(number: int, axis: str, name: str, mean: float, **further: Any) -> dict[str, Any]:
    return {
        "id": number,
        "axis": axis,
        "name": name,
        "ladder": None,
        "place": 0.0,
        "label": name,
        "defenses": [],
        "send": None,
        "batch_size": 1,
        "knowledge": [],
        "sentences": 16,
        "scores": scored(mean),
        "exact": int(mean // 10),
        "exact_long": int(mean // 10),
        "below": mean < 20,
        "seconds": 1.0,
        "seconds_for_each_update": 3.0,
        "out_of_time": mean < 20,
        "utility": None,
        "error": None,
    } | further


def audit_record(
    settings: int = 24, sentences: int = 30, *, reveal: bool = False, texts: tuple[str, ...] | None = None
) -> Record:
    """Return a record with so many settings and results, a sample of which it shows."""
    draw = random.Random(0)
    found = [setting(0, "own", "own setup", 96.0)]
    found += [setting(n + 1, "batch", f"batches of {2 << n}", 95.0 - 22 * n, batch_size=2 << n) for n in range(5)]
    while len(found) < settings:
        number = len(found)
        ladder = LADDERS[number % len(LADDERS)]
        step = number // len(LADDERS)
        mean = max(0.0, 100.0 - 22.0 * step - draw.random() * 9)
        found.append(
            setting(
                number,
                "defense",
                f"{ladder}, {step} × the update",
                mean,
                ladder=ladder,
                place=float(step),
                label=f"{step}",
                utility={"accuracy": 0.9 - 0.05 * step, "mcc": 0.7, "perplexity": None, "epsilon": 3.1},
            )
        )
    words = ["the", "patient", "was", "given", "ten", "milligrams", "of", "the", "drug", "at", "noon", "and", "slept"]
    pairs = [
        (" ".join(draw.sample(words, k=draw.randint(3, 12))), " ".join(draw.sample(words, k=draw.randint(3, 12))))
        for _ in range(sentences)
    ]
    if texts:
        pairs = [(text, text) for text in texts]
    shown = [
        {
            "setting": number % len(found),
            **sentence_record(truth, guess, dict.fromkeys(("rouge1", "rougeL", "exact"), 50.0), reveal=reveal),
        }
        for number, (truth, guess) in enumerate(pairs[:40])
    ]
    record: Record = {
        "gradleak": MARK,
        "schema": SCHEMA,
        "kind": "audit",
        "title": f"Leakage audit of tiny on {texts[0] if texts else 'clients.csv'}",
        "revealed": reveal,
        "finished": True,
        "notices": ["3 texts were cut to the 128 tokens that the model takes (--truncate)."],
        "line": {"rougeL": 20.0, "words": 4},
        "verdict": {
            "level": "leaks",
            "sentence": "With this setup an attacker reads back 15 of 16 sentences word for word.",
            "detail": "Mean ROUGE-L 96 over 16 sentences, from 31 to 100; the worst case counts as much as the mean.",
        },
        "recommendation": {
            "sentence": "Of the settings tried, the cheapest that stays below the line is: noise, 1 × the update.",
            "detail": ["16 sentences were attacked under it: mean ROUGE-L 4.", "It costs: accuracy 87.1 % (-2.9)."],
            "options": ["--defense noise:0.00269"],
            "setting": 22,
        },
        "gate": [{"score": "rougeL", "limit": 20.0, "found": 96.0, "passed": False}],
        "threat_model": {
            "assumed": ["The weights that the client trained from.", "One update as it arrives."],
            "not_tested": ["A server that sends manipulated weights.", "Attacks over several rounds."],
            "knowledge_note": None,
        },
        "own": 0,
        "settings": found,
        "ladders": [
            {
                "name": name,
                "title": name,
                "unit": "norm of the noise over that of the update",
                "summary": "Leakage ends at 3.",
            }
            for name in LADDERS
        ],
        "utility": {
            "measured": True,
            "metric": "accuracy",
            "note": "Utility: trained with AdamW on 1,000 texts and tested on 200 others.",
            "baseline": {"accuracy": 0.9, "mcc": 0.8, "perplexity": None, "epsilon": None},
        },
        "defense_notes": ["Noise of 1 × the update is noise:0.00269 as an option."],
        "batch_note": "Text comes back up to batches of 8.",
        "sentences": shown,
        "sentences_total": sentences,
        "capacity": {
            "hidden": 384,
            "rank": None,
            "tokens": [["batch of 1", 12.0], ["batch of 4", 48.0], ["batch of 32", 390.0]],
            "limits": [["hidden size", 384]],
            "lines": ["With fewer tokens than the 384 dimensions of an input, the words can be solved for."],
        },
        "measured": {
            "commands": ["gradleak audit --model tiny --data clients.csv --output audit"],
            "lines": ["Clients are simulated here, so the truth is known."],
            "facts": [
                ["model", "tiny: bert, 4,749,954 parameters"],
                ["model hash", "0123456789abcdef" * 4],
                ["seed", "0"],
            ],
            "machine": {"platform": "Linux", "cores": 2},
            "seconds": 171.2,
            "finished_at": "2026-01-01T00:00:00+00:00",
            "version": "0.1.0",
        },
    }
    return cleaned(record)


def rounds_file(
    folder: Path, rounds: int = 8, clients: int = 5, text: str = "the patient was given ten milligrams"
) -> Path:
    """Write what an audit of a federation would have written."""
    draw = random.Random(1)
    header = {
        "gradleak": "rounds",
        "schema": 1,
        "framework": "flower",
        "side": "client",
        "model": "tiny",
        "attack": "auto",
    }
    lines: list[dict[str, Any]] = [header]
    for number in range(1, rounds + 1):
        for client in range(clients):
            rouge = max(0.0, 100.0 - 12.0 * number * draw.random() - 20 * client)
            sentence = {
                "reference": text,
                "reconstruction": text if rouge > 80 else "the drug was",
                "scores": {"rougeL": rouge, "exact": 100.0 if rouge > 80 else 0.0},
            }
            lines.append(
                {
                    "round": number,
                    "client": f"client-{client}",
                    "status": "failed" if number == 3 and client == 1 else "done",
                    "sentences": [sentence],
                    "verified": rouge > 90,
                    "warnings": ["epsilon is nominal: sensitivity is below the clipping norm"] if client == 2 else [],
                    "seconds": 1.5,
                }
            )
    path = folder / "rounds.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
