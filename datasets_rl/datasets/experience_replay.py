"""The base class of stored datasets that are opened as replay buffers.

`opening` finds and opens the dataset, `selecting` has what the buffer shows, and `acting` what is made of the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import TensorDict
from typing_extensions import Self, Unpack

from datasets_rl import sources, store
from datasets_rl.buffers.arguments import Transform
from datasets_rl.buffers.display import as_html
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer
from datasets_rl.datasets import acting
from datasets_rl.datasets.flat import FlatLayout, Framework
from datasets_rl.datasets.metadata import metadata_tree
from datasets_rl.datasets.opening import find_folder, open_current
from datasets_rl.datasets.options import Download, with_base_arguments
from datasets_rl.datasets.seconds import windows_by_seconds
from datasets_rl.datasets.selecting import Shown, key_names, select_part, usable_device, warn_of_unknown_finals
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.look import Description, describe, distribution
from datasets_rl.look.histograms import BINS
from datasets_rl.notebook import Markup, histogram_svg
from datasets_rl.preprocessing.arguments import PreprocessArguments
from datasets_rl.samplers.base import Sampler
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.specs import CompositeSpec, from_manifest
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.device import DeviceStorage
from datasets_rl.storages.final_states import FinalUnknown, check_final_unknown
from datasets_rl.storages.trajectories import PaddedTrajectories
from datasets_rl.storages.view import View
from datasets_rl.store.find import shown_id
from datasets_rl.ted.keys import Key, as_key, dotted_name
from datasets_rl.ted.table import EpisodeTable
from datasets_rl.writers.base import Writer

if TYPE_CHECKING:
    import gymnasium
    from matplotlib.figure import Figure

    from datasets_rl.adapters.d3rlpy import D3rlpyOptions
    from datasets_rl.adapters.lerobot import LeRobotFrames
    from datasets_rl.adapters.robomimic import RobomimicOptions, RobomimicSequences
    from datasets_rl.exporting import ExportFormat
    from datasets_rl.hub.push import Pushed
    from datasets_rl.preprocessing import Recipe, Step
    from datasets_rl.preprocessing.functions import Per


class _Available:
    """A descriptor that returns the ids of the source of a class, also without an instance."""

    def __get__(self, instance: object, owner: type[BaseDatasetExperienceReplay]) -> tuple[str, ...]:
        return tuple(sources.get_source(owner.source).ids()) if owner.source else ()


class BaseDatasetExperienceReplay(TensorDictReplayBuffer):
    """A stored dataset as a replay buffer of TED transitions.

        >>> from datasets_rl import DemoExperienceReplay
        >>> dataset = DemoExperienceReplay("pendulum", batch_size=256)
        >>> dataset.sample()["next", "reward"].shape
        torch.Size([256, 1])
        >>> dataset[10:20].shape, dataset["observation"].shape
        (torch.Size([10]), torch.Size([15000, 3]))

    An integer, a slice, a mask or an index tensor selects transitions. A key, ``"observation"`` or ``("next", "reward")``,
    selects a field of all rows without reading other fields. Writing to the returned tensors does not change the files.

    If the dataset lacks the final observation of some episodes, every batch has the field ``("next", "final_known")``,
    bool [*B, 1]. The field is False exactly on the last transition of such an episode, where the next observation consists
    of zeros and must not be used in a target.

    Args:
        dataset_id: The id within the source.
        batch_size: The default number of steps (with `split_trajs`, episodes) of a batch.
        sampler: The sampler of the steps. By default, steps are drawn uniformly with replacement.
        split_trajs: Whether elements are whole episodes, [E, T], padded with zeros, with a `mask`.
        delta_timestamps: Fields to replace by windows, and the steps of each window in seconds from the step of the batch,
            as in LeRobot: ``{"observation.images.top": [-0.1, 0], "action": [0, 0.1, 0.2]}``. Names may be LeRobot's.
            The windows come before the other transforms, see `WindowTransform.delta_timestamps`.
        fps: Steps per second for `delta_timestamps`, instead of the number in the manifest.
        tolerance_s: Largest difference between the seconds of `delta_timestamps` and the time of a step.
        root: The folder of the source, ``<RLDS_HOME>/<source>`` by default.
        download: True downloads a dataset that is not stored. False requires a stored dataset. "force" downloads and
            converts the dataset again.
        selection: The selection to open, `Selection(episodes="0:100")`. What this selection leaves
            open, the stored selection decides: without a selection, the stored dataset is opened as a whole. Of a larger
            stored selection, the buffer shows the requested episodes and fields. A smaller stored selection grows by a
            download. If no dataset is stored, everything left open is downloaded.
        storage: Not supported, because the files are the storage of a dataset. Only None is accepted.
        final_unknown: The treatment of transitions with an unknown next observation. "keep" keeps such transitions. None,
            the default, does so with a single `UnknownFinalWarning` per dataset and process. "drop" drops such
            transitions: the episode ends a transition earlier, truncated. "drop_truncated" does so unless a transition
            is terminated, because the target of a terminated transition needs no next observation.

    `TensorDictReplayBuffer` describes `writer` and the arguments after it. A dataset is read-only, and all processes share
    the files: the default `writer` raises an error, and `dim_extend`, `shared` and `compilable` have no effect.

    Raises:
        UnknownIdError: If there is no such id, or the dataset is not stored and `download` is False.
        InvalidArgumentError: If a choice contradicts the choice of the stored dataset, or `download` is False and the stored
            dataset lacks a part of the selection, or `delta_timestamps` are not times of steps, or no frame rate is known.
        FetchError: If no upstream serves the files of a dataset that is to be downloaded.
    """

    source: ClassVar[str]
    streaming: ClassVar[bool] = False
    available_datasets = _Available()
    """The ids that the class accepts, without a request."""

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        sampler: Sampler | None = None,
        *,
        split_trajs: bool = False,
        delta_timestamps: Mapping[Any, Sequence[float]] | None = None,
        fps: float | None = None,
        tolerance_s: float = 1e-4,
        root: Path | str | None = None,
        download: Download = True,
        selection: Selection | None = None,
        final_unknown: FinalUnknown | None = None,
        storage: None = None,
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | Sequence[Transform] | None = None,
        transform_factory: Callable[[], Transform | Sequence[Transform]] | None = None,
        dim_extend: int | None = None,
        generator: torch.Generator | None = None,
        priority_key: str = "td_error",
        shared: bool = False,
        compilable: bool | None = None,
    ) -> None:
        if storage is not None:
            raise InvalidArgumentError(
                f"storage is {storage!r}, expected None: the storage of a dataset is its files",
                hint="write the steps that dataset[:] returns to a ReplayBuffer with this storage",
            )
        check_final_unknown(final_unknown)
        self.dataset_id = dataset_id
        self._shown = Shown(final_unknown=final_unknown, split_trajs=split_trajs)
        self._asked = selection or Selection()
        self._path = self._folder(dataset_id, root, download)
        steps = open_current(self._path, self._open)
        super().__init__(
            storage=self._shown.stored_where(steps),
            sampler=sampler,
            batch_size=batch_size,
            delayed_init=False,
            writer=writer,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            transform_factory=transform_factory,
            dim_extend=dim_extend,
            generator=generator,
            priority_key=priority_key,
            shared=shared,
            compilable=compilable,
        )
        if delta_timestamps is not None:
            self.insert_transform(
                0, windows_by_seconds(self.manifest, steps.keys(), delta_timestamps, fps, tolerance_s)
            )
        elif fps is not None:
            raise InvalidArgumentError(f"fps is {fps}, which needs delta_timestamps")

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Give a constructor that passes `**options` on a signature with the arguments of this class, for `help`."""
        super().__init_subclass__(**keywords)
        if constructor := vars(cls).get("__init__"):
            base = vars(BaseDatasetExperienceReplay)["__init__"]
            cls.__signature__ = with_base_arguments(constructor, base)  # type: ignore[attr-defined]  # not for mypy

    def _folder(self, dataset_id: str, root: Path | str | None, download: Download) -> Path:
        return find_folder(
            f"{self.source}/{dataset_id}",
            self._asked,
            root=root,
            download=download,
            from_local=self._local_copy(),
            settings=self._settings(),
        )

    def _open(self, stored: StoredDataset) -> DatasetStorage | View:
        """Return the visible steps of a version of the dataset, which this buffer then shows."""
        self.stored = stored
        return self._visible(self._shown)

    def _settings(self) -> Settings:
        """Return the settings of the download. Sources with arguments for settings override this method."""
        return Settings.from_env()

    def _local_copy(self) -> Path | None:
        """Return the path of a local copy of the upstream files, which is read instead of a download, or None."""
        return None

    @property
    def selection(self) -> Selection:
        """The selection that the buffer shows. An empty selection stands for the whole dataset."""
        part, asked = Selection.from_json(self.stored.manifest.selection), self._asked
        return replace(part, episodes=asked.episodes or part.episodes, keys=asked.keys or part.keys)

    @property
    def final_unknown(self) -> FinalUnknown | None:
        """The treatment of transitions with an unknown next observation."""
        return self._shown.final_unknown

    @property
    def split_trajs(self) -> bool:
        """Whether elements are whole episodes."""
        return self._shown.split_trajs

    def stored_steps(self) -> DatasetStorage:
        """Return the storage of the whole stored dataset."""
        return DatasetStorage(self.stored)

    def selected_steps(self) -> DatasetStorage | View:
        """Return the storage of the selected episodes and fields. A source may add names, or choose rows."""
        return select_part(self.stored_steps(), self.selection)

    def _visible(self, shown: Shown) -> DatasetStorage | View:
        steps = shown.visible(self.selected_steps())
        if steps.masked and shown.final_unknown is None:
            warn_of_unknown_finals(self._path, self.manifest.id, steps.episodes)
        return steps

    def _show(self, shown: Shown) -> Self:
        """Replace the storage by a storage of other steps. After an error, nothing has changed."""
        self.set_storage(shown.stored_where(self._visible(shown)), self._components.collate_fn)
        self._shown = shown
        self.__dict__.pop("specs", None)
        return self

    def select(self, keys: str | Iterable[str | Key]) -> Self:
        """Limit batches to some fields, in place: other fields are not read. An epoch of the sampler starts anew.

            >>> dataset = load("demo/pendulum").select(["observation", "action"])

        A batch with a next observation keeps ``("next", "final_known")``, if the dataset has this key. Samplers still
        find the episodes, whatever the fields are.

        Args:
            keys: Fields, each as a dotted name or a tuple of names. A name of several fields, "next", stands for all these
                fields.

        Returns:
            This buffer.

        Raises:
            UnknownKeyError: If the dataset has no such field. Nothing has changed then.
        """
        return self._show(replace(self._shown, keys=key_names(keys)))

    def to(self, device: torch.device | str | None) -> Self:
        """Copy the steps to the memory of a device, in place, and draw and gather batches there.

            >>> dataset = load("d4rl/hopper-medium-v2", batch_size=256).to("cuda")
            >>> batch = dataset.sample()                    # on the device, and no step waits for it

        The copy contains the fields that batches have, the final states included, and takes about as many bytes as the
        files. A uniform sampler with replacement, the default, draws on the device by a generator there, and all shapes
        are static. Other samplers choose rows in main memory, which are then moved. An epoch of the sampler starts anew.

        Args:
            device: The device. "cpu" copies the steps to main memory, and None reads the steps from the files again.

        Returns:
            This buffer.

        Raises:
            InvalidArgumentError: If there is no such device, elements are whole episodes, or a field consists of encoded
                images. Nothing has changed then.
        """
        if device is not None and self.split_trajs:
            raise InvalidArgumentError(
                f"the elements are whole episodes, which cannot be kept on {device}",
                hint="open the dataset without split_trajs: a SliceSampler draws parts of episodes",
            )
        return self._show(replace(self._shown, device=usable_device(device)))

    def texts(self, key: str | tuple[str, ...]) -> list[str]:
        """Return the vocabulary of a text field: ``texts[number]`` is the text for a stored number.

        Raises:
            UnknownKeyError: If there is no such text field. The error names the existing text fields.
        """
        return self.stored.texts(as_key(key))

    @property
    def episodes(self) -> EpisodeTable:
        """The table of the episodes: the start, the stop and the return of each episode."""
        table: EpisodeTable = self.storage.episodes  # type: ignore[attr-defined]  # all three storages have episodes
        return table

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset, with the description and the origin."""
        return self.stored.manifest

    @property
    def data_path(self) -> Path:
        """The folder of the dataset."""
        return self._path

    @property
    def data_path_root(self) -> Path:
        """The same folder, which has only files of this dataset: code written for TorchRL may remove the folder."""
        return self._path

    @property
    def root(self) -> Path:
        """The folder of the source, which contains the other datasets of the source, too."""
        return self._path.parents[self.dataset_id.count("/")]

    @cached_property
    def specs(self) -> CompositeSpec:
        """The spec of a transition, from the manifest: no environment is needed."""
        steps: Any = self.storage
        if isinstance(steps, (PaddedTrajectories, DeviceStorage)):
            steps = steps.steps
        if not isinstance(steps, View):
            return from_manifest(self.manifest, None)
        specs = from_manifest(self.manifest, steps.fields)
        for name, key in steps.names.items():
            specs[name] = specs[key].clone()
        return specs

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the dataset, nested by name: text and numbers unchanged, arrays as tensors."""
        return metadata_tree(self.stored)

    @property
    def statistics(self) -> Mapping[str, Mapping[str, Any]]:
        """The statistics of the whole stored dataset, by dotted key: min, max, mean, std and quantiles, q01 to q99.

        ``dataset.statistics["action"]["q99"]`` has a number for each element, ``"return"`` and ``"length"`` describe the
        episodes. The statistics are in the manifest. Float fields have statistics. `describe` describes all fields.
        """
        return self.stored.manifest.statistics

    def describe(self, keys: Sequence[str | tuple[str, ...]] | None = None, *, bins: int = BINS) -> Description:
        """Return the distributions of the returns, the lengths and the fields, and how episodes end.

            >>> found = dataset.describe()
            >>> found.issues()                                  # "observation has 3 values that are NaN, in ..."
            >>> found.field("action").elements[0].histogram.counts
            >>> found.ends.timed_out.episodes, found.ends.correlation["return"]

        The visible steps are read twice, in blocks. Of fields with a separate file, such as images, at most 256 steps
        are read.

        Args:
            keys: The fields. By default, all fields but the flags are described.
            bins: Maximum number of bins of a histogram.

        Raises:
            UnknownKeyError: If a field does not exist. The error names the existing fields.
        """
        return describe(
            acting.step_reader(self), keys=None if keys is None else [as_key(key) for key in keys], bins=bins
        )

    def plot(self) -> Figure:
        """Return a figure with the histograms of the returns, the lengths, the rewards and each element of the actions.

            >>> dataset.plot()                                  # in a notebook
            >>> dataset.plot().savefig("hopper.png")

        Raises:
            MissingDependencyError: If matplotlib is not installed.
        """
        return acting.plot(self)

    def export(
        self,
        to: str | ExportFormat,
        out: Path | str | None = None,
        *,
        force: bool = False,
        lossy: bool = False,
        fps: float | None = None,
        images: str = "",
    ) -> Path:
        """Write the episodes and fields that the dataset shows in the format of another project.

            >>> dataset.export("hdf5", "./pendulum")

        Transforms of batches are not applied. `datasets_rl.export` describes the arguments, the result and the errors.

        Raises:
            InvalidArgumentError: If the dataset shows transitions instead of whole episodes, too.
        """
        return acting.export(self, to, out, force=force, lossy=lossy, fps=fps, images=images)

    def make_env(self, *, steps: bool = True, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        """Return the Gymnasium environment of the dataset, to evaluate a policy in.

            >>> env = load("demo/pendulum").make_env()              # gymnasium.make("Pendulum-v1")
            >>> env = load("demo/pendulum@td3_bc").make_env()       # the same, with normalized observations
            >>> env = load("minari/D4RL/door/human-v2").make_env(render_mode="human")

        The name is that of the stored specification (Minari, `RecordEpisodes`), of the metadata (``environment`` in
        ``dataset.toml``), or of the catalog. A specification also states arguments and wrappers. Wrappers of
        Gymnasium are applied, and a warning names other wrappers. Where D4RL names an environment of mujoco-py, its
        successor with the same observations, actions and rewards takes its place, with a warning.

        Observations and actions are as in the dataset: the steps of the recipes that made the dataset are applied to each
        observation, and the inverse steps to each action, with the parameters that were fitted to the dataset. The
        spaces change accordingly. Rewards are unchanged, so that returns and scores compare.

        Args:
            steps: Whether the steps of the recipes are applied. If not, the environment fits the raw data.
            **kwargs: Arguments of `gymnasium.make`, which take precedence over the specification.

        Raises:
            InvalidArgumentError: If the dataset names no environment, or nothing registers the name, or a step cannot be
                applied to an environment, such as a function or `frame_skip`. The error names the step.
            MissingDependencyError: If Gymnasium, or the library with the environment, is not installed. The error
                names the extra.
        """
        return acting.make_env(self, steps=steps, **kwargs)

    def describe_env(self) -> dict[str, Any]:
        """Return the environment of the dataset and the steps of its recipes as plain data, which JSON can hold.

            >>> description = dataset.describe_env()
            >>> env = datasets_rl.make_env(description)             # elsewhere, without the dataset

        The description has the name, the arguments and the wrappers of the environment, each step with the fitted
        parameters, and the dtypes and shapes of the fields. A checkpoint with the description can be evaluated without the
        dataset.

        Raises:
            InvalidArgumentError: If the dataset names no environment, or is a merge of datasets with different steps.
        """
        return acting.describe_env(self)

    def iterate_episodes(self, numbers: Iterable[int] | None = None) -> Iterator[TensorDict]:
        """Yield episodes as TensorDicts, [T] each, in order.

            >>> for episode in dataset.iterate_episodes():
            ...     episode["next", "reward"].sum()

        Transforms are not applied.

        Args:
            numbers: Numbers of the episodes in `episodes`, in any order. By default, all are yielded. Negative numbers
                count from the end.

        Raises:
            IndexError: If there is no such episode.
        """
        storage: Any = self.storage
        steps = storage.steps if isinstance(storage, PaddedTrajectories) else storage
        for number in range(len(self.episodes)) if numbers is None else numbers:
            yield steps.get(self.episodes.rows(number))

    def as_dict(
        self,
        layout: FlatLayout,
        framework: Framework = "numpy",
        device: Any = None,
        *,
        timeouts: bool = True,
        compact: bool = False,
    ) -> dict[str, Any]:
        """Return all transitions as a flat dict of arrays, with the keys and dtypes that training programs expect.

            >>> data = dataset.as_dict("corl")
            >>> replay_buffer.load_d4rl_dataset(data)                          # of CORL
            >>> data = dataset.as_dict("ogbench", framework="jax")             # arrays on the default device of jax

        ========= ================================================================================================
        "d4rl"    as `env.get_dataset()`: observations, actions, rewards, terminals and timeouts (bool). Where the
                  conversion marked an end that the file does not mark, such as its last row, timeouts is False
        "corl"    the keys of `d4rl.qlearning_dataset`: observations, actions, rewards, next_observations, terminals. Where
                  the dataset has masks, such as a single task of OGBench, terminals are 1 - masks
        "ogbench" as `ogbench.load_dataset`: the same, but terminals are the ends of trajectories, and masks are 1 -
                  terminated
        "rlpd"    as RLPD's `D4RLDataset`: actions are clipped to 1 - 1e-5. Further masks, and dones (bool), the ends of
                  trajectories
        ========= ================================================================================================

        Arrays are [N, ...], rewards and flags [N], and so are discrete actions of "ogbench". Floating-point values are
        float32, and so are flags unless the table says otherwise. An observation of several parts is a nested dict. Transforms are not applied.

        With numpy and with torch on the CPU, the observations, actions and rewards of the whole dataset, and the flags
        of "d4rl", are views of the files, mapped copy-on-write: no memory is used until an array is read, and writing to
        an array changes neither the files nor this buffer. Copies are: next_observations, masks, float32 flags, clipped
        actions, fields that are not stored as float32, and every array of a part of a dataset.

        Layouts with next_observations leave out transitions with an unknown next observation that are not terminated, as
        `final_unknown="drop_truncated"` does. `final_unknown="keep"` keeps these transitions.

        Args:
            layout: The keys and dtypes.
            framework: The type of the arrays: "numpy", "torch" or "jax".
            device: The device of the arrays of torch or jax: the CPU, or the default device of jax, by default.
            compact: Whether to return the compact form of "ogbench", as `compact_dataset=True` of OGBench: no
                next_observations, but a row for the final observation of each episode, [N + E, ...]. `valids` is 0 in
                these rows, which repeat the action, the reward and the mask of the last step.
            timeouts: Whether to keep the last transition of each truncated episode. `d4rl.qlearning_dataset`, and with
                this function CORL, IQL and RLPD, leave this transition out, because D4RL's files lack the next observation.
                With False, the rows are the same as there, except that D4RL also leaves out a terminated last row of a file.

        Raises:
            InvalidArgumentError: If the arguments do not exist, no transition remains, jax is not installed, elements are
                whole episodes, or a compact form does not exist.
            UnknownKeyError: If the dataset has no observation or action.
        """
        return acting.as_dict(self, layout, framework, device, timeouts=timeouts, compact=compact)

    def as_lerobot(
        self,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        *,
        episodes: Sequence[int] | None = None,
        image_transforms: Callable[[Any], Any] | None = None,
        fps: float | None = None,
        tolerance_s: float = 1e-4,
    ) -> LeRobotFrames:
        """Return the steps with the interface of ``LeRobotDataset``, for the training programs of LeRobot.

            >>> frames = dataset.as_lerobot({"action": [0, 0.1, 0.2]}, fps=10)
            >>> frames[0]["action"].shape, frames.meta.stats["action"]["mean"]
            >>> train, held_out = frames.split(0.1)

        Nothing is exported. The features have the names of an export to LeRobot: ``observation.state``,
        ``observation.images.top``, ``action``, ``next.reward``. Transforms of this buffer are not applied. As in LeRobot,
        there is no observation after the last action of an episode.

        Args:
            delta_timestamps: Seconds from each frame by the name of a feature, [W] each.
            episodes: Numbers of the episodes to read. All by default.
            image_transforms: Function of an image, uint8 [..., C, H, W], for the images of each item.
            fps: Steps per second, instead of the number in the manifest. If neither is known, timestamps count steps.
            tolerance_s: Largest difference between a number of seconds and the time of its frame.

        Raises:
            InvalidArgumentError: If an episode or a feature does not exist, seconds are not those of a frame, the steps
                per second are not known and seconds are given, or elements are whole episodes.
        """
        return acting.as_lerobot(
            self,
            delta_timestamps,
            episodes=episodes,
            image_transforms=image_transforms,
            fps=fps,
            tolerance_s=tolerance_s,
        )

    def as_robomimic(
        self,
        obs_keys: Sequence[str],
        dataset_keys: Sequence[str] = ("actions", "rewards", "dones"),
        **options: Unpack[RobomimicOptions],
    ) -> RobomimicSequences:
        """Return the steps with the interface of ``SequenceDataset``, for the training programs of robomimic.

            >>> sequences = dataset.as_robomimic(["robot0_eef_pos", "object"], seq_length=10, frame_stack=2)
            >>> sequences[0]["obs"]["object"].shape, sequences[0]["actions"].shape

        The items have the values of a robomimic file with the same demonstrations. Transforms of this buffer are not applied.

        Args:
            obs_keys: Names of observations, below the key ``observation``.
            dataset_keys: Names of other fields: ``actions``, ``rewards``, ``dones``, ``states``, or dotted keys. A field that
                the dataset does not have consists of zeros.
            **options: Arguments of ``SequenceDataset``: `seq_length`, `frame_stack`, `pad_seq_length`, `pad_frame_stack`,
                `get_pad_mask`, `goal_mode`, `load_next_obs`, `hdf5_normalize_obs`, `filter_by_attribute`, `action_keys`,
                `action_config` and `demo_limit`. Those about the file have no effect: `hdf5_path`, `hdf5_cache_mode` and
                `hdf5_use_swmr`.

        Raises:
            InvalidArgumentError: If an argument is invalid, an episode is too short for a sequence without padding, next
                observations are not known, or elements are whole episodes. The message lists all problems.
            UnknownKeyError: If the dataset has no such observation.
        """
        return acting.as_robomimic(self, obs_keys, dataset_keys, options)

    def as_d3rlpy(self, **options: Unpack[D3rlpyOptions]) -> Any:
        """Return the steps as a ``ReplayBuffer`` of d3rlpy, without a copy, for d3rlpy's algorithms.

            >>> buffer = load("d4rl/hopper-medium-v2").as_d3rlpy()
            >>> TD3PlusBCConfig().create().fit(buffer, n_steps=100_000)

        The transitions and the random numbers are those of ``MDPDataset`` with the arrays of ``as_dict("d4rl")``: d3rlpy
        leaves the last step of an episode out that is not terminated. The buffer is read-only. Transforms of this buffer are
        not applied.

        Args:
            **options: Arguments of ``MDPDataset``: `transition_picker`, `trajectory_slicer`, `action_space` and
                `action_size`.

        Raises:
            InvalidArgumentError: If elements are whole episodes, or no transition remains.
            MissingDependencyError: If d3rlpy is not installed.
        """
        return acting.as_d3rlpy(self, options)

    def push(self, address: str, *, private: bool = False, message: str = "") -> Pushed:
        """Publish the stored dataset on the Hugging Face hub.

            >>> dataset.push("hf://me/hopper")

        `datasets_rl.push` describes the arguments, the result and the errors.
        """
        return acting.publish(self, address, private=private, message=message)

    def preprocess(
        self,
        fn: Callable[[Any], Any] | Recipe | Step | str,
        dim: int = 0,
        num_workers: int | None = None,
        *,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Any = None,
        generator: torch.Generator | None = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = False,
        pbar: bool = False,
        mp_start_method: str | None = None,
        num_frames: int | None = None,
        dest: Path | str | None = None,
        batched: bool = False,
        per: Per | None = None,
        max_ram: int | None = None,
        force: bool = False,
        in_place: bool = False,
    ) -> DatasetStorage:
        """Apply a function to every transition, once, and store the result.

            >>> dataset.preprocess(lambda step: step.set("norm", step["observation"].norm(dim=-1)), dest="normed")
            >>> dataset.preprocess(fn, batched=True, num_workers=8, dest="mapped")    # takes many steps at once
            >>> dataset.preprocess(drop_failures, per="episode", dest="successes")    # returns a TensorDict or None

        The result is stored in the folder `dest`. Use `derive` for a dataset with a separate id. With `in_place`, the
        dataset is replaced atomically at the end: this buffer, and all later buffers with the same id, then show the
        new version. All earlier versions are kept (`restore`). If the function fails, or the process dies, the dataset
        is unchanged, and the same call resumes.

        Args:
            fn: A function from a TensorDict to a TensorDict, or a `Recipe`, the name or file of a recipe, a `Step` or a
                `Transform`. The function may add, drop and change fields, but must keep the reward and the flags of
                episode ends. Fields under ``next`` that equal the root a step later are stored once.
            dim: The axis of the steps: 0.
            num_workers: The number of processes, for a large dataset the number of cores by default. 0 and 1 use
                this process.
            chunksize: The maximum number of steps that are passed to the function at once. The dataset is read in
                batches of about 8 MB. 0 passes single steps.
            num_chunks: The same as a number of chunks of the whole dataset.
            pool: A process pool of the caller, which writes the partial datasets. Excludes `num_workers`.
            generator: The generator that seeds the random numbers of the function.
            max_tasks_per_child: The number of partial datasets after which a process is replaced.
            worker_threads: The number of torch threads in each process.
            index_with_generator: Accepted for compatibility with TorchRL. The whole dataset is never in memory.
            pbar: Whether progress is shown.
            mp_start_method: Accepted for compatibility with TorchRL. The processes are separate programs, so that
                lambdas work, and the script of the caller is not run again.
            num_frames: The number of steps to read, from the first, to try a function.
            dest: A folder for the result.
            batched: Whether the function takes a batch of steps, [B].
            per: "step", "batch" or "episode": the input of the function.
            max_ram: The approximate memory in bytes that all processes may use for data.
            force: Replace an existing result.
            in_place: Replace this dataset by the result.

        Returns:
            The storage of the result.

        Raises:
            PreprocessError: If the function fails. The error names the line, the step of the recipe, the episode and
                the fields.
            InvalidArgumentError: If arguments exclude each other.
        """
        arguments = PreprocessArguments(
            fn,
            dim,
            num_workers,
            chunksize=chunksize,
            num_chunks=num_chunks,
            pool=pool,
            generator=generator,
            max_tasks_per_child=max_tasks_per_child,
            worker_threads=worker_threads,
            index_with_generator=index_with_generator,
            pbar=pbar,
            mp_start_method=mp_start_method,
            num_frames=num_frames,
            dest=dest,
            batched=batched,
            per=per,
            max_ram=max_ram,
            force=force,
            in_place=in_place,
        )
        return acting.preprocess(self, arguments)

    def restore(self, version: str | int = "parent") -> Self:
        """Make another version of the dataset current, and show this version, see `datasets_rl.restore`.

            >>> dataset.preprocess(fn, in_place=True)
            >>> dataset.restore()                               # the version before

        Args:
            version: The number or the name of a version. "parent" is the version that the current version was made of.

        Raises:
            InvalidArgumentError: If there is no such version.
        """
        store.restore(self._path, version)
        return self.reopen()

    def reopen(self) -> Self:
        """Show the current version of the dataset."""
        self.stored = StoredDataset(self._path)
        self.__dict__.pop("metadata", None)
        return self._show(self._shown)

    def derive(
        self,
        recipe: Callable[[Any], Any] | Recipe | Step | str,
        *,
        name: str = "",
        per: Per | None = None,
        batched: bool = False,
        num_workers: int | None = None,
        num_frames: int | None = None,
        max_ram: int | None = None,
        pbar: bool = False,
        force: bool = False,
        **options: Any,
    ) -> BaseDatasetExperienceReplay:
        """Derive a separate dataset from this dataset, unless the separate dataset exists already, and open the result.

            >>> normalized = dataset.derive("td3_bc")               # demo/pendulum@td3_bc
            >>> dataset.derive(fn, per="episode", name="successes")  # demo/pendulum@successes

        This dataset is unchanged. The result has an id, which `load` and the command line accept. The result is computed
        from the whole stored dataset, even if this buffer shows only a selection, and is opened with the defaults of
        the class.

        Args:
            recipe: A `Recipe`, the name or file of a recipe, a `Step`, a `Transform`, or a function as for `preprocess`.
            name: The name after the ``@``, the name of the recipe by default.
            per: "step", "batch" or "episode": the input of a function.
            batched: Whether a function takes a batch of steps, [B].
            num_workers: The number of processes, see `preprocess`.
            num_frames: The number of steps to read, from the first.
            max_ram: The approximate memory in bytes that all processes may use for data.
            pbar: Whether progress is shown.
            force: Replace an existing dataset with the same name.
            **options: Arguments for the opened buffer: `batch_size`, `sampler`, `transform`, ...

        Raises:
            PreprocessError: If a step fails.
            InvalidArgumentError: If another dataset has the name, or arguments exclude each other.
        """
        call = PreprocessArguments(
            recipe,
            num_workers=num_workers,
            pbar=pbar,
            num_frames=num_frames,
            batched=batched,
            per=per,
            max_ram=max_ram,
            force=force,
        )
        return self._derived(call.run(self._path, name=name), options)

    def _derived(self, folder: Path, options: dict[str, Any]) -> BaseDatasetExperienceReplay:
        """Open a dataset that was derived from this dataset."""
        name = f"{self.dataset_id}{folder.name[len(self._path.name) :]}"
        return type(self)(name, root=self.root, **{"download": True, **options})

    def delete(self) -> None:
        """Remove the dataset from the disk. This buffer must not be used afterwards."""
        store.remove(f"{self.source}/{self.dataset_id}", root=self.root)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str) or (isinstance(index, tuple) and index and all(isinstance(i, str) for i in index)):
            return self._column(index)
        return super().__getitem__(index)

    def _column(self, key: Any) -> Any:
        storage: Any = self.storage
        prefix, keys = as_key(key), storage.keys()
        nested = [field for field in keys if field[: len(prefix)] == prefix and field != prefix]
        if not nested:
            return storage.column(prefix)
        leaves = {field[len(prefix) :]: storage.column(field) for field in nested}
        return TensorDict(leaves, batch_size=next(iter(leaves.values())).shape[: 1 + self.split_trajs])

    def __contains__(self, key: object) -> bool:
        """Return whether the dataset has a field, or fields nested below this key."""
        if not isinstance(key, (str, tuple)):
            return False
        storage: Any = self.storage
        prefix, keys = as_key(key), storage.keys()
        return any(field[: len(prefix)] == prefix for field in keys)

    def __repr__(self) -> str:
        shown = f"{len(self.episodes):,} episodes, {self.episodes.steps:,} steps"
        if self.selection != Selection():
            shown += f", a part: {self.selection}"
        if self._shown.keys is not None:
            shown += f", fields: {', '.join(map(dotted_name, self.storage.keys()))}"  # type: ignore[attr-defined]  # all storages have keys
        if self._shown.device is not None:
            shown += f", on {self._shown.device}"
        return (
            f"{type(self).__name__}({self.dataset_id!r}, {shown}{', split_trajs=True' if self.split_trajs else ''}, "
            f"batch_size={self.batch_size}, data_path={str(self.data_path)!r})"
        )

    def _repr_html_(self) -> str:
        counts = f"{len(self.episodes):,} episodes, {self.episodes.steps:,} steps"
        return as_html(
            self,
            ("dataset", shown_id(self._path, self.manifest.id)),
            ("environment", self.manifest.environment),
            ("size", counts),
            ("part", str(self.selection)),
            ("returns", self._returns_html()),
        )

    def _returns_html(self) -> Markup:
        """Return the range of the returns, with a histogram as an image."""
        found = distribution(self.episodes["return"])
        if found.histogram is None or found.min is None or found.max is None:
            return Markup("not finite")
        text = f"returns from {found.min:.6g} to {found.max:.6g}"
        image = histogram_svg(found.histogram.counts, text)
        return Markup(f"{found.min:.6g} {image} {found.max:.6g}")
