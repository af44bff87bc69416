"""The shipped example report is a page of this version's templates, without private words."""

from __future__ import annotations

from pathlib import Path

from gradleak.data import load_dataset

DOCS = Path(__file__).parents[2] / "docs"


def test_example_report_shows_an_audit_of_the_shipped_sample_without_its_words() -> None:
    page = (DOCS / "example-report.html").read_text(encoding="utf-8")
    assert "Leakage audit of tiny on cola" in page
    assert "Leakage and utility under each defense" in page
    assert "This page shows private text" not in page
    assert not [text for text in load_dataset("cola").texts if text in page]
    assert len(page.encode()) < 200_000


def test_picture_of_the_example_is_small() -> None:
    picture = (DOCS / "example-report.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 300_000
