"""docs/settings.md lists every setting of every attack as it is declared."""

from __future__ import annotations

from settings_page import PAGE, attacks, page

from gradleak.settings import settings_of


def test_the_page_is_as_generated() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tests/docs/settings_page.py --write"


def test_every_setting_of_every_attack_is_on_the_page() -> None:
    sections = {part.split("\n", 1)[0]: part for part in page().split("\n## ")[1:]}
    for name, kind in attacks():
        for setting in settings_of(kind):
            assert f"| `{setting}` |" in sections[name]
