"""``rlds recipe``: the training programs as files to read and to change."""

from __future__ import annotations

GROUP = "Train"
HELP = """List, print and copy the training programs that `rlds train` runs: one file each, to read and to change.

The recipes of preprocessing are another thing: `rlds preprocess --list`.

\b
Examples:
  rlds recipe list
  rlds recipe show iql
  rlds recipe copy td3_bc my_algorithm.py
"""
