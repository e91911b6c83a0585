"""DSRL: tasks of safe reinforcement learning, in one HDF5 file per id of D4RL's layout, with the cost of each step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from datasets_rl.sources.base import AT_ADDRESS, Source

__all__ = ["DSRL", "SOURCE"]


class DSRL(Source):
    """Source of the files that the catalog lists."""

    name = "dsrl"
    endings = (".hdf5", ".h5")
    kind = "HDF5"
    arrays = ("observations", "actions", "rewards", "terminals", "costs")
    reader = "datasets_rl.sources.d4rl.reader:D4RLReader"
    image_forms = ()

    @override
    def reader_facts(self, name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        time_limit = None if AT_ADDRESS in params else self.entry(name).time_limit
        return {"time_limit": time_limit, "required": ["costs"]}


SOURCE = DSRL()
