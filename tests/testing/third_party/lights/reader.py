"""A day as one episode."""

from __future__ import annotations

import numpy as np

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.read.npz import NpzFile
from datasets_rl.sources.base import EpisodeReader
from datasets_rl.ted.episode import Episode


class DayReader(EpisodeReader):
    """The opened file of a day: `lamps` [T + 1, 2], `switches` [T, 1] and `comfort` [T]."""

    columns = (
        Column(("observation",), np.dtype("f4"), (2,), shared=True),
        Column(("action",), np.dtype("f4"), (1,)),
        Column(("next", "reward"), np.dtype("f4"), (1,)),
        Column(("next", "terminated"), np.dtype("?"), (1,)),
        Column(("next", "truncated"), np.dtype("?"), (1,)),
    )

    def __init__(self, dataset_id, files, facts):
        (path,) = files.values()
        self.file = NpzFile(path)

    def __exit__(self, *details):
        self.file.__exit__(*details)

    def episodes(self, part=None):
        lamps, switches, comfort = map(self.file.read, ("lamps", "switches", "comfort"))
        if not len(lamps) - 1 == len(switches) == len(comfort):
            raise ConversionError(
                self.file.name, [f"{len(lamps)} lamps, {len(switches)} switches, {len(comfort)} comfort"]
            )
        last = np.arange(len(switches))[:, None] == len(switches) - 1
        steps = {("action",): switches, ("next", "reward"): comfort[:, None]}
        yield Episode(
            steps | {("next", "terminated"): ~last & last, ("next", "truncated"): last}, {("observation",): lamps}
        )
