"""Names in the files, and names of the files of episodes: ``episode_000000_1000.npz``, or ``<time>_0_1000.npz`` of DrQ-v2."""

from __future__ import annotations

import re

ARRAYS = ("observation", "action", "reward", "discount")
"""Names of the arrays that every file has."""

_EPISODE = re.compile(r"(?!\.)[^/]*_(?P<number>\d+)_(?P<steps>\d+)\.npz", re.ASCII)


def episode_order(path: str) -> tuple[int, str, int] | None:
    """Return the number of the episode in a file, the path and the number of steps, or None for other files."""
    match = _EPISODE.fullmatch(path.rpartition("/")[2])
    return None if match is None else (int(match["number"]), path, int(match["steps"]))
