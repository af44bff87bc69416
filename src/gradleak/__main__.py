"""`python -m gradleak` is the command `gradleak`."""

from __future__ import annotations

import sys

from gradleak.cli import main

if __name__ == "__main__":
    sys.exit(main())
