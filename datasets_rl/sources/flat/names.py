"""Names of arrays that the field uses, and the fields that the names mean: the only list of such names.

A name is compared in lower case. A name of a group stands for the arrays in the group: ``obs/joints`` is the field
``observation.joints``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from datasets_rl.sources.flat.replay_buffers import ENDS, with_observations, without_group
from datasets_rl.ted.keys import (
    ACTION,
    NEXT,
    NEXT_COST,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_SUCCESS,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    Key,
)

IMAGE: Key = (*OBSERVATION, "image")
EPISODE_NUMBERS = ("episode_index", "episode_id", "episode")
"""Names of a column that has the number of the episode of each row."""
FRAME_NUMBERS = re.compile(r"frame(_?(index|idx|id|number|num|no))?", re.IGNORECASE)
"""Names of a column that has the number of the frame of each row, in a video or in an episode."""
COUNTS_STEPS = re.compile(rf"^(time)?steps?(_index|_id|_idx|s)?$|^{FRAME_NUMBERS.pattern}$|^t$", re.IGNORECASE)
"""Last names of arrays that may number the rows of each episode."""
COUNTS_EPISODES = re.compile(
    r"^(num|n|number|total|count)(_of)?_?(episodes|eps|trajectories|trajs|demos|demonstrations|rollouts)$",
    re.IGNORECASE,
)
"""Last names of a number of episodes."""
RETURNS = re.compile(r"^(ep|eps|episode|traj|trajectory|rollout)s?_(return|ret|reward|rew)s?$", re.IGNORECASE)
"""Last names of the sums of the rewards of episodes."""
_SPEAKS = re.compile(
    r"episode|(^|_)eps?(_|$)|traj|rollout|^(trial|session|run)(_id|_index)?$|demo|reset|segment|(^|_)seq(uence)?(_|$)|start|length|(^|_)lens?(_|$)|is_first|is_last|^last$|(^|_)ends?$|^indices$",
    re.IGNORECASE,
)
NAMES: Mapping[Key, tuple[str, ...]] = {
    OBSERVATION: (
        "observation",
        "observations",
        "obs",
        "state",
        "states",
        "ob",
        "obses",
        "expert_observations",
        "expert_obs",
        "expert_states",
    ),
    ACTION: ("action", "actions", "act", "acts", "ac", "acs", "expert_actions", "expert_acs", "expert_acts"),
    NEXT_REWARD: ("reward", "rewards", "rew", "rews", "next/reward", "expert_rewards"),
    NEXT_TERMINATED: (
        "terminated",
        "terminations",
        "termination",
        "terminals",
        "terminal",
        "terminateds",
        "is_terminal",
        "is_terminals",
        "absorbing",
        "next/terminated",
    ),
    NEXT_TRUNCATED: (
        "truncated",
        "truncations",
        "truncation",
        "timeouts",
        "timeout",
        "truncateds",
        "time_outs",
        "time_out",
        "next/truncated",
    ),
    NEXT_DONE: ("done", "dones", "next/done", "is_done", "dones_float"),
    (NEXT, *OBSERVATION): (
        "next_observation",
        "next_observations",
        "next_obs",
        "next_state",
        "next_states",
        "obs_next",
        "new_obs",
        "next_ob",
        "next_obses",
        "new_observations",
        "observations_next",
        "next/observation",
    ),
    NEXT_COST: ("cost", "costs", "next/cost"),
    NEXT_SUCCESS: ("success", "successes", "is_success", "info_is_success", "next/success"),
    ("goal",): ("goal", "goals"),
    ("desired_goal",): ("desired_goal", "desired_goals"),
    ("achieved_goal",): ("achieved_goal", "achieved_goals"),
    ("language_instruction",): (
        "language_instruction",
        "language_instructions",
        "instruction",
        "instructions",
        "task_description",
        "natural_language_instruction",
    ),
    ("info",): ("info", "infos"),
    IMAGE: (
        "image",
        "images",
        "img",
        "imgs",
        "rgb",
        "pixels",
        # In a table, columns of the paths of images and videos.
        "image_path",
        "image_file",
        "image_name",
        "img_path",
        "frame_path",
        "video",
        "video_path",
        "video_file",
    ),
    ("discount",): ("discount", "discounts"),
    ("timestamp",): ("timestamp", "timestamps", "time", "time_stamp"),
    ("action_logp",): ("action_logp", "action_log_prob", "action_log_probs"),
    ("action_prob",): ("action_prob",),
    ("processed_actions",): ("processed_actions",),
    ("actions_abs",): ("actions_abs",),
}
"""Names of the arrays of each field. Of several names for a field in a file, the first name counts."""
_CORE = frozenset(
    {OBSERVATION, ACTION, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE, (NEXT, *OBSERVATION), ("info",)}
)
"""Keys of arrays that most files have."""
_ENDS = frozenset({NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE})
_MASKS = ("mask", "masks")
OF_EPISODES = frozenset({NEXT_SUCCESS, ("goal",), ("desired_goal",), ("language_instruction",)})
"""Keys that arrays with a row for each episode have, too."""
STATES: Mapping[Key, tuple[str, ...]] = {
    ("info", "states"): ("states", "state", "sim_states", "sim_state"),
    ("info", "qpos"): ("qpos",),
    ("info", "qvel"): ("qvel",),
}
"""Names of the states of a simulator, where another array has the observations."""
DOUBTFUL: Mapping[str, str] = {
    **dict.fromkeys(_MASKS, "1 - terminated, or the steps that are not padding"),
    **dict.fromkeys(("task", "tasks", "task_id", "task_index"), "an instruction, a goal, or a number of the task"),
    **dict.fromkeys(("lang", "language"), "an instruction, or an embedding of the instruction"),
    **dict.fromkeys(
        ("env_infos", "agent_infos"), "info of the state before the action, or of the state after the action"
    ),
    **dict.fromkeys(("qpos", "qvel", "joint_positions", "joint_pos"), "an observation, or a state of the simulator"),
    **dict.fromkeys(("return", "returns", "return_to_go", "returns_to_go", "rtg"), "the reward, or a sum of rewards"),
    **dict.fromkeys(("target", "targets"), "a goal, or an action"),
    **dict.fromkeys(("label", "labels"), "an action, or a class of the observation"),
    **dict.fromkeys(
        ("agent_index", "agent_id", "env_id"), "a number of an agent or an environment: rows of several may alternate"
    ),
    **dict.fromkeys(("o", "x", "s"), "the observation"),
    **dict.fromkeys(("a", "u"), "the action"),
    "step_type": "0 in first rows and 2 in last rows of episodes, as in dm_env",
    "r": "the reward",
    "c": "the cost",
    "d": "done, or a distance",
    "g": "the goal",
    "ag": "the achieved goal",
    **dict.fromkeys(("o2", "s2", "s_next", "next_s", "obs2"), "the next observation"),
}
"""What a name may mean that is never read without a description."""


def usual_keys(arrays: Iterable[str]) -> dict[str, Key]:
    """Return the keys of the arrays with usual names. Of several names for a key, the first name counts."""
    arrays = [*arrays]
    parts = {array: tuple(re.split(r"[./]", name)) for array, name in without_group(arrays).items()}
    parts = _without_common_group({array: names for array, names in parts.items() if all(names)})
    if ENDS in arrays:  # a replay buffer has other names for images and states
        core = {key: names for key, names in NAMES.items() if key in _CORE}
        return with_observations(dict(_matches(parts, core)), arrays)
    keys = dict(_matches(parts, NAMES))
    if any(key[:1] == OBSERVATION and key[:2] != IMAGE for key in keys.values()):
        for name, key in _matches({name: names for name, names in parts.items() if name not in keys}, STATES):
            if not any(overlap(key, other) for other in keys.values()):
                keys[name] = key
    # A vector beside images is a part of the observation, as the images are.
    if any(key[:2] == IMAGE for key in keys.values()):
        vectors = {OBSERVATION, (NEXT, *OBSERVATION)}
        keys = {name: (*key, "state") if key in vectors else key for name, key in keys.items()}
    return keys


def last_name(array: str) -> str:
    """Return the name of an array without the groups that it is in."""
    return array.rpartition("/")[2]


def speaks_of_episodes(array: str) -> bool:
    """Return whether the name of an array says that the array marks episodes."""
    return _SPEAKS.search(last_name(array)) is not None


def bears_on_episodes(array: str) -> bool:
    """Return whether an array, by its name, marks or contradicts ends of episodes: also flags and next observations."""
    name = last_name(array)
    is_mark = speaks_of_episodes(name) or COUNTS_STEPS.search(name) is not None or name.lower() in _MASKS
    return is_mark or any(key in _ENDS or key[:2] == (NEXT, *OBSERVATION) for key in usual_keys([name]).values())


def doubtful_meaning(name: str) -> str:
    """Return what the name of an array may mean, or an empty text for any other name."""
    return DOUBTFUL.get(re.split(r"[./]", name)[-1].lower(), "")


def overlap(left: Key, right: Key) -> bool:
    """Return whether either of two keys is the beginning of the other."""
    common = min(len(left), len(right))
    return left[:common] == right[:common]


def _matches(parts: Mapping[str, Key], table: Mapping[Key, tuple[str, ...]]) -> Iterator[tuple[str, Key]]:
    """Yield the arrays of each key of a table, and the key with the names below the name of the table."""
    below: dict[str, list[str]] = {}
    for array, names in parts.items():
        lower = [name.lower() for name in names]
        for depth in range(1, len(lower) + 1):
            below.setdefault("/".join(lower[:depth]), []).append(array)
    for key, usual_names in table.items():
        if found := next((name for name in usual_names if name in below), None):
            depth = found.count("/") + 1
            yield from ((array, (*key, *parts[array][depth:])) for array in _unlike(below[found]))


def _without_common_group(parts: dict[str, Key]) -> dict[str, Key]:
    """Return the names of arrays without the group that all arrays are in, such as ``data``, unless it is a usual name."""
    usual = {name.partition("/")[0] for table in (NAMES, STATES) for names in table.values() for name in names}
    while parts and all(len(names) > 1 for names in parts.values()):
        groups = {names[0].lower() for names in parts.values()}
        if len(groups) > 1 or groups & usual:
            break
        parts = {array: names[1:] for array, names in parts.items()}
    return parts


def _unlike(arrays: Sequence[str]) -> list[str]:
    """Return the arrays with names that differ not only in the case of letters. Of equal names, the first counts."""
    return [*{name.lower(): name for name in reversed(arrays)}.values()][::-1]
