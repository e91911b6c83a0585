"""Acting: functions that take an open dataset and make a figure, a dict, an environment or another dataset of the steps.

The methods of `BaseDatasetExperienceReplay` with the same names have the descriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.datasets.flat import FlatLayout, Framework, flat_dict
from datasets_rl.datasets.metadata import metadata_value
from datasets_rl.errors import Argument, InvalidArgumentError, Remedy
from datasets_rl.format.reader import StoredDataset
from datasets_rl.look import StepReader, describe
from datasets_rl.preprocessing.arguments import PreprocessArguments
from datasets_rl.settings import Settings
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.device import DeviceStorage
from datasets_rl.storages.final_states import select_final_known, select_without_timeouts
from datasets_rl.storages.trajectories import PaddedTrajectories
from datasets_rl.storages.view import View
from datasets_rl.ted.keys import ACTION, NEXT_REWARD

if TYPE_CHECKING:
    import gymnasium
    from matplotlib.figure import Figure

    from datasets_rl.adapters.d3rlpy import D3rlpyOptions
    from datasets_rl.adapters.lerobot import LeRobotFrames
    from datasets_rl.adapters.robomimic import RobomimicOptions, RobomimicSequences
    from datasets_rl.datasets.experience_replay import BaseDatasetExperienceReplay
    from datasets_rl.exporting import ExportFormat
    from datasets_rl.hub.push import Pushed


def step_reader(dataset: BaseDatasetExperienceReplay) -> StepReader:
    """Return a reader of the stored fields of the steps that a dataset shows."""
    steps: Any = dataset.storage
    while not isinstance(steps, (DatasetStorage, View)):
        steps = steps.steps
    if isinstance(steps, DatasetStorage):
        return StepReader(dataset.stored)
    return StepReader(dataset.stored, steps.rows, steps.episodes, [*steps.fields])


def plot(dataset: BaseDatasetExperienceReplay) -> Figure:
    """Return a figure with histograms of a dataset."""
    from datasets_rl.look.plot import draw

    steps = step_reader(dataset)
    shown = [field.key for field in steps.fields if field.key[0] == ACTION[0] or field.key == NEXT_REWARD]
    return draw(describe(steps, keys=shown))


def as_dict(
    dataset: BaseDatasetExperienceReplay,
    layout: FlatLayout,
    framework: Framework,
    device: Any,
    *,
    timeouts: bool,
    compact: bool,
) -> dict[str, Any]:
    """Return all transitions of a dataset as a flat dict of arrays."""
    steps = single_steps(dataset)
    if layout != "d4rl" and dataset.final_unknown is None:
        steps = select_final_known(steps, "drop_truncated")
    if not timeouts:
        steps = select_without_timeouts(steps)
    return flat_dict(steps, layout, framework, device, compact=compact)


def single_steps(dataset: BaseDatasetExperienceReplay) -> DatasetStorage | View:
    """Return the storage of the steps that a dataset shows, in the files.

    Raises:
        InvalidArgumentError: If the elements are whole episodes.
    """
    steps: Any = dataset.storage.steps if isinstance(dataset.storage, DeviceStorage) else dataset.storage
    if isinstance(steps, PaddedTrajectories):
        raise InvalidArgumentError("the elements are whole episodes", hint="open the dataset without split_trajs")
    return steps  # type: ignore[no-any-return]  # of two classes


def as_lerobot(
    dataset: BaseDatasetExperienceReplay,
    delta_timestamps: Mapping[str, Sequence[float]] | None,
    *,
    episodes: Sequence[int] | None,
    image_transforms: Callable[[Any], Any] | None,
    fps: float | None,
    tolerance_s: float,
) -> LeRobotFrames:
    """Return the steps of a dataset with the interface of ``LeRobotDataset``."""
    from datasets_rl.adapters.lerobot import LeRobotFrames
    from datasets_rl.exporting import Content

    steps = View.of(single_steps(dataset))
    content = Content(dataset.stored, _shown_episodes(dataset, steps), steps.fields, fps)
    if delta_timestamps is not None and not content.frame_rate:
        raise InvalidArgumentError(
            f"{dataset.manifest.id} does not state its steps per second, which delta_timestamps need",
            hint=Remedy("pass {}, the number of steps per second", Argument("fps")),
        )
    options: dict[str, Any] = {"episodes": episodes, "image_transforms": image_transforms, "tolerance_s": tolerance_s}
    return LeRobotFrames(content, steps, delta_timestamps, **options)


def as_robomimic(
    dataset: BaseDatasetExperienceReplay,
    obs_keys: Sequence[str],
    dataset_keys: Sequence[str],
    options: RobomimicOptions,
) -> RobomimicSequences:
    """Return the steps of a dataset with the interface of robomimic's ``SequenceDataset``."""
    from datasets_rl.adapters.robomimic import WITHOUT_EFFECT, RobomimicSequences

    if options.get("lang") is not None:
        raise InvalidArgumentError(
            f"lang is {options['lang']!r}, expected None", hint="embed the instruction, and add it to the batches"
        )
    given: dict[str, Any] = {name: value for name, value in options.items() if name not in WITHOUT_EFFECT}
    return RobomimicSequences(View.of(single_steps(dataset)), obs_keys, dataset_keys, **given)


def as_d3rlpy(dataset: BaseDatasetExperienceReplay, options: D3rlpyOptions) -> Any:
    """Return the steps of a dataset with the interface of d3rlpy's ``ReplayBuffer``."""
    from datasets_rl.adapters.d3rlpy import replay_buffer

    arrays = as_dict(dataset, "d4rl", "numpy", None, timeouts=True, compact=False)

    def count_actions() -> int | None:
        return getattr(dataset.specs["action"], "n", None)

    return replay_buffer(arrays, single_steps(dataset).episodes, count_actions, **options)


def _shown_episodes(dataset: BaseDatasetExperienceReplay, steps: View) -> NDArray[np.int64] | None:
    """Return the indices of the stored episodes with rows in a view, or None for all."""
    table = dataset.stored.episodes
    return None if steps.rows is None else np.unique(table.episode_of(steps.rows.split_at(table.starts).starts))


def export(
    dataset: BaseDatasetExperienceReplay,
    to: str | ExportFormat,
    out: Path | str | None,
    *,
    force: bool,
    lossy: bool,
    fps: float | None,
    images: str,
) -> Path:
    """Write the selected episodes and fields of a dataset in the format of another project."""
    from datasets_rl.exporting import Content, run_export

    if dataset.final_unknown in {"drop", "drop_truncated"}:
        raise InvalidArgumentError(
            f"final_unknown is {dataset.final_unknown!r}: whole episodes are exported, not the visible transitions",
            hint="open the dataset without final_unknown, or preprocess it with the step drop_unknown_final",
        )
    steps = View.of(dataset.selected_steps())
    content = Content(dataset.stored, _shown_episodes(dataset, steps), steps.fields, fps, images)
    return run_export(content, to, out, force=force, lossy=lossy, show=Settings.from_env().progress)


def publish(dataset: BaseDatasetExperienceReplay, address: str, *, private: bool, message: str) -> Pushed:
    """Publish the stored dataset on the Hugging Face hub."""
    from datasets_rl.hub.push import push

    return push(dataset.data_path, address, private=private, message=message)


def describe_env(dataset: BaseDatasetExperienceReplay) -> dict[str, Any]:
    """Return the environment of a dataset and the steps of its recipes as plain data."""
    from datasets_rl.preprocessing.environment import describe_env

    return describe_env(dataset.manifest, partial(metadata_value, dataset.stored))


def make_env(dataset: BaseDatasetExperienceReplay, *, steps: bool, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return the Gymnasium environment of a dataset."""
    from datasets_rl.preprocessing.environment import make_env

    return make_env(dataset.describe_env(), steps=steps, **kwargs)


def preprocess(dataset: BaseDatasetExperienceReplay, arguments: PreprocessArguments) -> DatasetStorage:
    """Apply a function to every transition, store the result in a folder or in place, and open the result."""
    if (arguments.dest is None) is not arguments.in_place:
        number = "neither" if arguments.dest is None else "both"
        raise InvalidArgumentError(
            f"a result is stored in a folder, dest=, or replaces the dataset, in_place=True, and {number} was given",
            hint="derive() stores the result as a separate dataset",
        )
    folder = arguments.run(dataset.data_path)
    if arguments.in_place:
        dataset.reopen()
    return DatasetStorage(StoredDataset(folder))
