"""Tests of the page use the logs and the browser of the tests of reports."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "analysis/report"))
