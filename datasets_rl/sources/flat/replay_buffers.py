"""Names of the arrays in replay buffers of diffusion policy, UMI and DP3, whose `data/*` have a row for each step.

data/action, data/obs, data/img, ...       the arrays of steps
meta/episode_ends                          rows after the last rows of the episodes
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from datasets_rl.ted.keys import OBSERVATION, Key

ENDS = "meta/episode_ends"
"""Name of the array that marks the episodes."""
_OBSERVED = re.compile(
    r"img|obs|(full_)?state|agent_pos|keypoints?|object|(.+_)?(point_?cloud|image|rgb|depth)(_\d+)?|camera_?\d+(_\w+)?"
    r"|robot\d*_(eye_in_hand_\w+|eef_\w+|joint\w*|gripper\w*|vel_\w+)"
)
_ASIDE = re.compile(r"n_contacts|stage|timestamp|robot\d*_demo_(start|end)_pose")
"""Values beside the observations, which a policy does not get: the end pose is known only after the episode."""


def without_group(arrays: Collection[str]) -> dict[str, str]:
    """Return the names of arrays, without the group `data` if all arrays are in the groups `data` and `meta`."""
    groups = {array.partition("/")[0] for array in arrays if "/" in array}
    is_wrapped = "data" in groups <= {"data", "meta"} and all("/" in array for array in arrays)
    return {array: array.removeprefix("data/") if is_wrapped else array for array in arrays}


def with_observations(keys: Mapping[str, Key], arrays: Collection[str]) -> dict[str, Key]:
    """Return the keys of the arrays of a file, with those of the observations of a replay buffer.

    Args:
        keys: The keys of the arrays with usual names.
        arrays: The names of all arrays.
    """
    if ENDS not in arrays:
        return dict(keys)
    names = {array: array.removeprefix("data/") for array in arrays if array.startswith("data/") and array not in keys}
    observed = {array: (*OBSERVATION, name) for array, name in names.items() if _OBSERVED.fullmatch(name)}
    aside = {array: ("info", name) for array, name in names.items() if _ASIDE.fullmatch(name)}
    # An observation beside others has a separate name.
    named = {
        array: (*key, array.rpartition("/")[2]) if observed and key == OBSERVATION else key
        for array, key in keys.items()
    }
    return {**named, **observed, **aside}
