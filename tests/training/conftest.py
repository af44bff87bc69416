from __future__ import annotations

import sys
from pathlib import Path

# The training scripts are no package: their folder is on the path when one of them is run.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "training"))
