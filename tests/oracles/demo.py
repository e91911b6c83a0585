"""Oracle of the demo, whose file has D4RL's layout."""

from oracles.d4rl import compare

__all__ = ["compare"]
