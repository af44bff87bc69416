"""Take the picture of a report that the documentation shows.

python tests/browser/picture.py docs/example-report.html docs/example-report.png
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from test_report_in_browser import SYNC, chromium


def take(page: Path, picture: Path, width: int = 1100, height: int = 1500) -> None:
    """Write the beginning of a page as a PNG."""
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with SYNC.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=arguments)
        tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        tab.goto(page.resolve().as_uri())
        tab.screenshot(path=str(picture))
        browser.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]))
