"""DSRL: tasks of safe reinforcement learning, in one HDF5 file per id of D4RL's layout, with the cost of each step."""

from datasets_rl.sources.d4rl import D4RL

__all__ = ["DSRL", "SOURCE"]


class DSRL(D4RL):
    """Source of the files that the catalog lists."""

    name = "dsrl"
    arrays = (*D4RL.arrays, "costs")
    foreign_arrays = frozenset()
    image_forms = ()
    required = ("costs",)


SOURCE = DSRL()
