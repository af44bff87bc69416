"""The HTML page of a record: one file, no script, nothing loaded from anywhere.

    html = draw(read_record(Path("audit/audit.json")))

A page is a list of sections, each a template in `templates/`; which ones a record gets depends on its kind. All text
goes through Jinja2's autoescape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gradleak.reports.charts import ChartPoint, capacity_chart, leakage_chart, look_words, rounds_chart
from gradleak.reports.record import Record
from gradleak.reports.words import cleaned

MOST_LOOKS = 200
"""Rows of the table of rounds."""

LEFT_OUT: Mapping[str, Any] = {
    "notices": (),
    "gate": (),
    "recommendation": None,
    "own": None,
    "settings": (),
    "ladders": (),
    "utility": None,
    "defense_notes": (),
    "batch_note": None,
    "capacity": {},
}
"""What stands for keys that a record of another kind does not have."""

LEFT_OUT_INSIDE: Mapping[str, Mapping[str, Any]] = {
    "threat_model": {"knowledge_note": None},
    "measured": {"commands": (), "lines": (), "facts": (), "machine": {}, "seconds": None, "finished_at": None},
    "capacity": {"lines": (), "tokens": (), "limits": ()},
}

Setting = Mapping[str, Any]
View = dict[str, Any]


def draw(record: Record) -> str:
    """Return the page of a record of any kind."""
    shown = {**LEFT_OUT, **cleaned(record)}
    shown |= {name: {**defaults, **shown[name]} for name, defaults in LEFT_OUT_INSIDE.items()}
    view: View = {"record": shown, "style": _style(), "sections": [], "tiles": []}
    for add in SECTIONS[shown["kind"]]:
        add(shown, view)
    return _environment().get_template("report.html").render(view)


# --- what sections need --------------------------------------------------------------------------------------------


def _worst(record: Record, view: View) -> None:
    """Add the figures below the verdict: the worst case and the size of the audit."""
    settings = measured(record["settings"])
    own = next((setting for setting in settings if setting["id"] == record.get("own")), None)
    worst = max(settings, key=_leak, default=None)
    tiles = []
    if own is not None:
        mean = own["scores"]["rougeL"]
        tiles.append(_tile("own setup, ROUGE-L", score(mean["mean"]), f"{score(mean['min'])} to {score(mean['max'])}"))
        tiles.append(_tile("read word for word", f"{own['exact']} of {own['sentences']}", "sentences, own setup"))
    advised = next((each for each in settings if each["id"] == (record["recommendation"] or {}).get("setting")), None)
    if advised is not None and own is not None and advised["id"] != own["id"]:
        mean = advised["scores"]["rougeL"]
        spread = f"{score(mean['min'])} to {score(mean['max'])}: {advised['name']}"
        tiles.append(_tile("with the defense advised", score(mean["mean"]), spread))
    elif worst is not None:
        tiles.append(_tile("worst setting, ROUGE-L", score(worst["scores"]["rougeL"]["mean"]), worst["name"]))
    total = sum(setting["sentences"] for setting in settings)
    tiles.append(_tile("attacked", f"{total:,}", f"sentences in {len(settings):,} settings"))
    view["tiles"] = tiles


def _recommendation(record: Record, view: View) -> None:
    if record["recommendation"]:
        view["sections"].append("recommendation.html")


def _threat_model(record: Record, view: View) -> None:
    view["knowledge"] = [setting for setting in record["settings"] if setting["axis"] == "knowledge"]
    view["sections"].append("threat_model.html")


def _sentences(record: Record, view: View) -> None:
    if record["sentences"]:
        view["sections"].append("sentences.html")


def _defenses(record: Record, view: View) -> None:
    defended = [setting for setting in record["settings"] if setting["axis"] in ("own", "defense")]
    if not any(setting["axis"] == "defense" for setting in defended):
        return
    view["defended"] = defended
    view["panels"] = [_panel(ladder, record) for ladder in record["ladders"]]
    view["sections"].append("defenses.html")


def _panel(ladder: Mapping[str, Any], record: Record) -> View:
    points = [
        _point(setting, record)
        for setting in measured(record["settings"])
        if setting["axis"] == "defense" and setting["ladder"] == ladder["name"]
    ]
    empty: str | Markup = Markup("") if points else "not tried"
    utility = record.get("utility") or {}
    baseline = utility_share(utility.get("baseline"))
    metric = str(utility.get("metric", "utility"))
    drawn = (
        leakage_chart(
            points,
            f"Leakage under {ladder['title']}",
            ladder["unit"],
            limit=record["line"]["rougeL"],
            baseline=baseline,
            metric=metric,
        )
        if points
        else empty
    )
    return {"title": ladder["title"], "drawing": drawn, "summary": ladder["summary"]}


def _batches(record: Record, view: View) -> None:
    rows = sorted(
        (s for s in record["settings"] if s["axis"] in ("own", "batch")), key=lambda setting: setting["batch_size"]
    )
    points = [
        _point(setting | {"place": _doublings(setting["batch_size"]), "label": str(setting["batch_size"])}, record)
        for setting in measured(rows)
    ]
    if len(points) < 2:
        return
    view["batches"] = rows
    view["batch_drawing"] = leakage_chart(
        points, "Leakage against batch size", "sentences in a batch", limit=record["line"]["rougeL"]
    )
    view["sections"].append("batches.html")


def _capacity(record: Record, view: View) -> None:
    capacity = record["capacity"]
    rows = [(str(name), float(value)) for name, value in capacity["tokens"]]
    limits = [(str(name), float(value)) for name, value in capacity["limits"]]
    if not rows and not capacity["lines"]:
        return
    view["capacity_drawing"] = capacity_chart(rows, limits, "Tokens in one update and what can be read") if rows else ""
    view["sections"].append("capacity.html")


def _every(record: Record, view: View) -> None:
    view["every"] = sorted(record["settings"], key=lambda setting: -_leak(setting))
    view["sections"].append("settings.html")


def _rounds(record: Record, view: View) -> None:
    looks = record["rounds"]
    view["looks"] = sorted(
        sorted(looks, key=lambda look: (-bool(look["verified"] or look["exact"]), -(look["rougeL"] or 0.0)))[
            :MOST_LOOKS
        ],
        key=lambda look: (look["round"], look["client"]),
    )
    view["rounds_drawing"] = rounds_chart(looks, "What leaked when") if looks else ""
    view["sections"].append("rounds.html")


def _measured(record: Record, view: View) -> None:
    found = record["measured"]
    rows = [tuple(row) for row in found["facts"]]
    rows += [("machine", ", ".join(f"{name} {value}" for name, value in found["machine"].items()))]
    rows += [("seconds of attacks and training, all workers", f"{found['seconds']:,.1f}")] if found["seconds"] else []
    rows += [("finished", found["finished_at"])] if found["finished_at"] else []
    rows += [("gradleak", found.get("version") or "unknown"), ("schema of the record", str(record["schema"]))]
    view["facts"] = [(name, value) for name, value in rows if value]
    view["sections"].append("measured.html")


Section = Callable[[Record, View], None]
SECTIONS: Mapping[str, Sequence[Section]] = {
    "audit": (
        _worst,
        _recommendation,
        _threat_model,
        _sentences,
        _defenses,
        _batches,
        _capacity,
        _measured,
    ),
    "study": (_worst, _threat_model, _sentences, _every, _measured),
    "rounds": (_threat_model, _rounds, _sentences, _capacity, _measured),
}
"""The sections of each kind of record, in order."""


# --- values --------------------------------------------------------------------------------------------------------


def measured(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """Return the settings that have scores."""
    return [dict(setting) for setting in settings if setting.get("scores")]


def _leak(setting: Setting) -> float:
    return float(setting["scores"]["rougeL"]["mean"]) if setting.get("scores") else -1.0


def _tile(name: str, value: str, note: str) -> View:
    return {"name": name, "value": value, "note": note}


def _point(setting: Setting, record: Record) -> ChartPoint:
    rouge = setting["scores"]["rougeL"]
    chosen = (record.get("recommendation") or {}).get("setting")
    return ChartPoint(
        place=float(setting["place"]),
        name=str(setting["label"]),
        mean=rouge["mean"],
        least=rouge["min"],
        most=rouge["max"],
        interval=None if rouge["low"] is None else (rouge["low"], rouge["high"]),
        utility=utility_share(setting.get("utility")),
        chosen=chosen is not None and chosen == setting["id"],
    )


def utility_share(utility: Mapping[str, Any] | None) -> float | None:
    """Return accuracy in per cent; for a language model the share of its perplexity's ideal, 100 / perplexity."""
    if not utility:
        return None
    if utility.get("accuracy") is not None:
        return 100.0 * float(utility["accuracy"])
    perplexity = utility.get("perplexity")
    return None if perplexity is None else 100.0 / max(1.0, float(perplexity))


def score(value: float | None) -> str:
    """Return a score with as many digits as mean something."""
    if value is None:
        return "\N{EN DASH}"
    return f"{value:.0f}" if abs(value) >= 10 or float(value).is_integer() else f"{value:.1f}"


def price(utility: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """Return the utility under a defense, what it loses against none, and its privacy loss if there is one."""
    baseline = whole.get("baseline") or {}
    words = []
    if utility.get("accuracy") is not None:
        change = 100 * (utility["accuracy"] - baseline["accuracy"]) if baseline.get("accuracy") is not None else 0.0
        words.append(f"accuracy {100 * utility['accuracy']:.1f} % ({change:+.1f})")
    if utility.get("mcc") is not None:
        words.append(f"MCC {utility['mcc']:.2f}")
    if utility.get("perplexity") is not None:
        words.append(f"perplexity {utility['perplexity']:.4g}")
    if utility.get("epsilon") is not None:
        words.append(f"\N{GREEK SMALL LETTER EPSILON} {utility['epsilon']:.3g}")
    return ", ".join(words)


def origin(sentence: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Return where a sentence was read: its setting, or its round and client."""
    if "round" in sentence:
        return f"round {sentence['round']}, client {sentence['client']}"
    return str(record["settings"][sentence["setting"]]["name"])


def _doublings(size: int) -> float:
    return float(size.bit_length() - 1) + (size / (1 << (size.bit_length() - 1)) - 1.0)


@cache
def _style() -> Markup:
    return Markup((resources.files("gradleak.reports") / "templates" / "style.css").read_text(encoding="utf-8"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gradleak.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"score": score, "price": price, "origin": origin, "found": look_words}
    return environment
