"""The benchmarks are a package at the root of the repository, which is on no path by itself."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
