"""Datasets that are part of this package, in D4RL's layout: they need no network. `make_pendulum` wrote them."""

from __future__ import annotations

from datasets_rl.sources.d4rl import D4RL

__all__ = ["SOURCE", "Demo"]


class Demo(D4RL):
    """The ids of the catalog."""

    name = "demo"


SOURCE = Demo()
