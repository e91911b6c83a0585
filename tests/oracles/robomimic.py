"""Comparison of converted demonstrations with their files, using h5py but none of the code that converted them.

Whether an observation of LIBERO is that after the action is known from the attribute that only its own files have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from oracles.differences import Column, Differences

from datasets_rl.ted.table import EpisodeTable

_FIELDS = {"actions": ("action",), "rewards": ("next", "reward"), "dones": ("dones",), "actions_abs": ("actions_abs",)}


def compare(_dataset_id: str, files: Mapping[str, Path], column: Column, episodes: EpisodeTable) -> list[str]:
    """Compare every number and text of every demonstration.

    Args:
        files: The local raw files, by path.
        column: Returns converted values.
        episodes: The converted episodes: "demo" is the number in the name, "file" the number of the file.

    """
    differences = Differences(column)
    paths = sorted(files)
    order = []
    for row in range(len(episodes.lengths)):
        number = int(episodes["demo"][row])
        path = paths[int(episodes["file"][row]) - int(episodes["file"].min())]
        order.append((path, number))
        with h5py.File(files[path], "r", locking=False) as file:
            demo = next((file["data"][name] for name in file["data"] if int(name.split("_")[1]) == number), None)
            if demo is None:
                differences.add("demo", f"{path} has no demonstration {number}")
                continue
            late = "bddl_file_name" in file["data"].attrs
            first = 1 if late else 0
            start, length = int(episodes.starts[row]), int(episodes.lengths[row])
            if length != len(demo["actions"]) - first:
                differences.add("length", f"{path} {number} has {len(demo['actions'])} rows; {length} were converted")
                continue
            _compare_rows(differences, file, demo, start, length, first)
            _compare_masks(differences, file, demo.name.rpartition("/")[2], episodes, row)
    if order != sorted(order):
        differences.add("order", f"the demonstrations are in the order {order}")
    return differences.texts()


def _compare_rows(
    differences: Differences, file: h5py.File, demo: h5py.Group, start: int, length: int, first: int
) -> None:
    for name, key in _FIELDS.items():
        if name in demo:
            differences.compare(key, start, demo[name][first:])
    for name in demo.get("action_dict", ()):
        differences.compare(("action_dict", name), start, demo["action_dict"][name][first:])
    for name, obs in demo["obs"].items():
        differences.compare(("observation", name), start, obs[:length])
        if "next_obs" in demo:
            following = demo["next_obs"][name][()]
        else:
            following = obs[1:] if first else np.concatenate([obs[1:], obs[:1] * 0])
        differences.compare(("next", "observation", name), start, following)
    if "robot_states" in demo:
        differences.compare(("info", "robot_states"), start, demo["robot_states"][:length])
    if "states" in demo:
        differences.compare(("info", "states"), start, demo["states"][first:])
    ends = np.arange(length) == length - 1
    success = demo["dones"][-1] == 1 and demo["rewards"][-1] > 0
    differences.compare(("next", "terminated"), start, ends & success)
    differences.compare(("next", "truncated"), start, ends & (not success))
    text = _instruction(file, demo)
    if text is not None:
        differences.compare(("language_instruction",), start, np.array([text] * length, object))


def _instruction(file: h5py.File, demo: h5py.Group) -> str | None:
    if "ep_meta" in demo.attrs:
        return str(json.loads(demo.attrs["ep_meta"])["lang"])
    info = file["data"].attrs.get("problem_info")
    return None if info is None else str(json.loads(info)["language_instruction"])


def _compare_masks(differences: Differences, file: h5py.File, name: str, episodes: EpisodeTable, row: int) -> None:
    for mask, names in file.get("mask", {}).items():
        converted: Any = episodes[f"mask.{mask}"][row]
        if bool(converted) != (name.encode() in names[()].tolist()):
            differences.add(f"mask.{mask}", f"episode {row} is {name}, whose mask.{mask} is {converted}")
