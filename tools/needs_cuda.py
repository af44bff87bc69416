"""Exit with 0 if the torch that is installed is a build for NVIDIA GPUs, which needs requirements-cuda.lock, else 1."""

from __future__ import annotations

import sys
from importlib.metadata import requires

from packaging.requirements import Requirement

needed = [Requirement(text) for text in requires("torch") or ()]
cuda = [each for each in needed if each.name.startswith(("cuda-", "nvidia-"))]
sys.exit(0 if any(each.marker is None or each.marker.evaluate() for each in cuda) else 1)
