"""An HDF5 file in the layout of ``ReplayBuffer.dump`` of d3rlpy 2.1: arrays of each episode.

observations_0 [T, ...] (or observations_0_0, observations_0_1)   actions_0 [T, ...]   rewards_0 [T, 1]   terminated_0
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from typing_extensions import override

from datasets_rl.exporting.base import ExportFormat, dropped_final_losses, metadata_losses, next_losses
from datasets_rl.exporting.content import Content, names_of, pixels
from datasets_rl.progress import Report
from datasets_rl.ted.keys import ACTION, NEXT_REWARD, NEXT_TERMINATED, dotted_name

_VERSION = "2.1"


class D3rlpy(ExportFormat):
    """A file for ``ReplayBuffer.load``. An observation of several parts becomes a tuple."""

    name = "d3rlpy"
    title = "an HDF5 file for ReplayBuffer.load of d3rlpy"
    suffix = ".h5"

    @override
    def problems(self, content: Content) -> Iterator[str]:
        if not content.observations:
            yield "the format needs an observation, and the dataset has none"
        if [field.key for field in content.actions] != [ACTION]:
            yield f"the format needs a single action, and the dataset has {names_of(content.actions) or 'none'}"
        if texts := [field for field in (*content.observations, *content.actions) if field.text]:
            yield f"the format has no texts, and {names_of(texts)} has"

    @override
    def losses(self, content: Content) -> Iterator[str]:
        yield from dropped_final_losses(content)
        if cut := content.count_truncated():
            yield f"{cut:,} episodes are truncated: d3rlpy draws no transition of their last step, which has no next observation there"
        if short := content.count_truncated(1):
            yield f"{short:,} of them have a single step: d3rlpy draws nothing from such episodes"
        if scalars := [field for field in content.observations if not field.shape]:
            yield f"{names_of(scalars)}: single numbers become vectors of a number"
        if content.both_flags:
            yield f"{content.both_flags:,} episodes are terminated and truncated, and become terminated"
        if len(content.observations) > 1:
            names = ", ".join(dotted_name(field.key) for field in content.observations)
            yield f"the observation becomes a tuple without names, in the order {names}"
        if lost := [*content.infos, *content.extras]:
            yield f"{names_of(lost)}: left out"
        reward = content.stored.schema[NEXT_REWARD]
        if reward.read_dtype != np.float32:
            yield f"rewards become float32, from {reward.read_dtype.name}"
        yield from next_losses(content)
        yield from metadata_losses(content)

    @override
    def write(self, content: Content, target: Path, progress: Report) -> None:
        keys = [field.key for field in content.observations]
        with h5py.File(target, "w", libver="latest") as file:
            file["columns"] = ["observations", "actions", "rewards", "terminated"]
            file["num_episodes"] = len(content.lengths)
            file["version"] = _VERSION
            for number, episode in enumerate(content):
                steps = len(episode)
                columns: list[Any] = [{**episode.states, **episode.steps}[key] for key in keys]
                for part, values in enumerate(columns):
                    rows = pixels(values)[:steps]
                    name = f"observations_{number}{f'_{part}' if len(keys) > 1 else ''}"
                    file[name] = rows[:, None] if rows.ndim == 1 else rows  # d3rlpy cannot draw single numbers
                action = pixels(episode.steps[ACTION])
                file[f"actions_{number}"] = action.reshape(steps, -1) if action.ndim == 1 else action
                file[f"rewards_{number}"] = pixels(episode.steps[NEXT_REWARD]).astype(np.float32).reshape(steps, 1)
                file[f"terminated_{number}"] = bool(pixels(episode.steps[NEXT_TERMINATED])[-1, 0])
                progress(steps)
