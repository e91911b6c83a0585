"""The data that comes with the package, in D4RL's layout: everything works on it without a network.

``datasets_rl/demo/make_pendulum.py`` made it.
"""

from __future__ import annotations

from datasets_rl.sources.d4rl import D4RL

__all__ = ["SOURCE"]

SOURCE = D4RL("demo")
