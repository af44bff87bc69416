from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from fake_records import HOSTILE, audit_record, rounds_file

from gradleak.reports.page import draw, score
from gradleak.reports.rounds import rounds_record

ORDER = ["Verdict", "What to do", "Who was assumed", "What was read", "Leakage and utility", "Leakage against batch"]
ORDER += ["What one update can hold", "How it was measured"]


class Outline(HTMLParser):
    """Collects what a browser would make of a page: elements, headings, images without a name."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[tuple[int, str]] = []
        self._level = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if re.fullmatch(r"h[1-6]", tag):
            self._level = int(tag[1])
            self.headings.append((self._level, ""))

    def handle_endtag(self, tag: str) -> None:
        if re.fullmatch(r"h[1-6]", tag):
            self._level = 0

    def handle_data(self, data: str) -> None:
        if self._level:
            level, words = self.headings[-1]
            self.headings[-1] = level, words + data


def test_sections_come_in_the_order_of_the_reader() -> None:
    found = [words for level, words in Outline(draw(audit_record())).headings if level == 2]
    assert [next(name for name in ORDER if words.startswith(name)) for words in found] == ORDER


def test_headings_never_skip_a_level_and_drawings_have_names() -> None:
    outline = Outline(draw(audit_record()))
    levels = [level for level, _ in outline.headings]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    drawings = [attributes for tag, attributes in outline.elements if tag == "svg"]
    assert drawings
    assert all(attributes.get("aria-label") for attributes in drawings)


def test_page_loads_nothing_and_runs_nothing() -> None:
    page = draw(audit_record(reveal=True, texts=HOSTILE))
    outline = Outline(page)
    tags = {tag for tag, _ in outline.elements}
    assert not tags & {"script", "iframe", "object", "embed", "form", "img", "audio", "video", "base"}
    for _, attributes in outline.elements:
        assert not [name for name in attributes if name.startswith("on")]
        assert all(
            not (attributes.get(name) or "").startswith(("http", "//", "javascript")) for name in ("src", "href")
        )
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_hostile_text_is_shown_as_text() -> None:
    page = draw(audit_record(reveal=True, texts=HOSTILE))
    assert "&lt;script&gt;document.title=" in page
    assert "<script" not in page
    assert page.count("<style>") == 1
    assert "\u202e" not in page
    assert "\x00" not in page
    assert "{{ 7 * 7 }}" in re.sub(r"<[^>]+>", "", page)


def test_words_are_shown_only_if_revealed_and_the_page_says_so() -> None:
    hidden, shown = draw(audit_record()), draw(audit_record(reveal=True))
    assert "milligrams" not in hidden
    assert "This page shows private text" not in hidden
    assert "milligrams" in shown
    assert "This page shows private text" in shown


def test_drawings_are_well_formed() -> None:
    drawings = re.findall(r"<svg.*?</svg>", draw(audit_record()), flags=re.DOTALL)
    assert len(drawings) >= 8
    for drawing in drawings:
        ElementTree.fromstring(drawing)


def test_large_audit_gives_a_small_page_quickly() -> None:
    record = audit_record(settings=200, sentences=2_000)
    started = time.perf_counter()
    page = draw(record)
    assert time.perf_counter() - started < 5
    assert len(page.encode()) < 1_000_000
    assert "40 of 2,000 results" in page


def test_interval_is_drawn_only_if_the_record_has_one() -> None:
    record = audit_record()
    assert 'class="interval"' not in draw(record)
    for setting in record["settings"]:
        setting["scores"]["rougeL"] = setting["scores"]["rougeL"] | {"low": 1.0, "high": 99.0}
    assert 'class="interval"' in draw(record)


def test_least_and_most_stand_beside_every_mean() -> None:
    record = audit_record(settings=8)
    page = draw(record)
    for setting in record["settings"]:
        rouge = setting["scores"]["rougeL"]
        assert f"({score(rouge['min'])}–{score(rouge['max'])})" in page


def test_utility_that_cannot_be_said_is_said_in_words() -> None:
    record = audit_record()
    record["utility"] = {
        "measured": False,
        "metric": "accuracy",
        "note": "Utility not measured: 20 texts.",
        "baseline": None,
    }
    page = draw(record)
    assert "Utility not measured: 20 texts." in page
    assert "accuracy 85" not in page


def test_setting_that_failed_shows_why() -> None:
    record = audit_record()
    record["settings"][3] |= {"scores": None, "error": "the worker process died", "sentences": 0}
    assert "the worker process died" in draw(record)


def test_rounds_are_drawn_over_time(tmp_path: Path) -> None:
    page = draw(rounds_record(rounds_file(tmp_path)))
    assert "What leaked when" in page
    assert page.count('class="look ') == 40
    assert "epsilon is nominal" in page
    assert "milligrams" not in page
    (drawing,) = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    ElementTree.fromstring(drawing)


def test_many_rounds_and_clients_stay_small(tmp_path: Path) -> None:
    page = draw(rounds_record(rounds_file(tmp_path, rounds=100, clients=40)))
    assert len(page.encode()) < 1_000_000
    assert "the 200 worst of 4000" in page


def test_empty_log_is_drawn(tmp_path: Path) -> None:
    assert "No update of this federation has been attacked yet" in draw(rounds_record(rounds_file(tmp_path, rounds=0)))


@pytest.mark.parametrize(("value", "words"), [(None, "–"), (0.0, "0"), (3.14159, "3.1"), (99.96, "100"), (20.0, "20")])
def test_scores_have_the_digits_that_mean_something(value: float | None, words: str) -> None:
    assert score(value) == words
