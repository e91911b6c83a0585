"""The base class of stored datasets that are opened as replay buffers."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from tensordict import TensorDict
from typing_extensions import Self, Unpack

from datasets_rl import downloading, sources, store
from datasets_rl.buffers.display import as_html
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer
from datasets_rl.datasets.flat import FlatLayout, Framework, flat_dict
from datasets_rl.datasets.options import BufferOptions, Download, NamedOptions
from datasets_rl.datasets.seconds import windows_by_seconds
from datasets_rl.downloading import DownloadOptions, stored_selection
from datasets_rl.errors import IntegrityError, InvalidArgumentError, ManifestError, UnknownFinalWarning, WrongTypeError
from datasets_rl.format.current import version_folder
from datasets_rl.format.manifest import Manifest, array_file
from datasets_rl.format.npy import map_npy
from datasets_rl.format.reader import StoredDataset
from datasets_rl.look import Description, StepReader, describe, distribution
from datasets_rl.look.histograms import BINS
from datasets_rl.notebook import Markup, histogram_svg
from datasets_rl.preprocessing.arguments import PreprocessArguments
from datasets_rl.samplers.base import Sampler
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection, select_episodes
from datasets_rl.specs import CompositeSpec, from_manifest
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.device import DeviceStorage
from datasets_rl.storages.final_states import (
    FinalUnknown,
    check_final_unknown,
    select_final_known,
    select_without_timeouts,
)
from datasets_rl.storages.trajectories import PaddedTrajectories
from datasets_rl.storages.view import View
from datasets_rl.store.find import locate, shown_id
from datasets_rl.taking import taking
from datasets_rl.ted.keys import ACTION, NEXT, NEXT_FINAL_KNOWN, NEXT_REWARD, ROOT_FLAGS, Key, as_key, dotted_name
from datasets_rl.ted.row_ranges import RowRanges
from datasets_rl.ted.table import EpisodeTable

if TYPE_CHECKING:
    import gymnasium
    from matplotlib.figure import Figure

    from datasets_rl.hub.push import Pushed
    from datasets_rl.preprocessing import Recipe, Step
    from datasets_rl.preprocessing.functions import Per

_ATTEMPTS = 20
"""The maximum number of attempts to open a dataset that other processes replace."""
_warned: set[tuple[int, str, str]] = set()
"""The warnings about unknown final observations that were issued: process, folder, number of episodes."""


def _stack_level() -> int:
    """Return the `stacklevel` for `warnings.warn` at which the first frame outside the package is."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "datasets_rl":
        level, frame = level + 1, frame.f_back
    return level


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

    An integer, a slice, a mask or an index tensor selects transitions; a key, ``"observation"`` or ``("next",
    "reward")``, selects one field of all rows without reading the others. Writing to the returned tensors does not
    change the files.

    If the dataset lacks the final observation of some episodes, every batch has the field ``("next", "final_known")``,
    bool [*B, 1]. It is False exactly on the last transition of such an episode: its next observation consists of zeros
    and must not be used in a target.

    Args:
        dataset_id: The id within the source.
        batch_size: The default number of steps (with `split_trajs`, episodes) of a batch.
        sampler: The sampler of the steps; uniform with replacement by default.
        split_trajs: Whether elements are whole episodes, [E, T], padded with zeros, with a `mask`.
        delta_timestamps: Fields to replace by windows, and the steps of each window in seconds from the step of the batch,
            as in LeRobot: ``{"observation.images.top": [-0.1, 0], "action": [0, 0.1, 0.2]}``. Names may be LeRobot's.
            The windows come before the other transforms, see `WindowTransform.delta_timestamps`.
        fps: Steps per second for `delta_timestamps`, instead of those that the manifest states.
        tolerance_s: Largest difference between the seconds of `delta_timestamps` and those of a step.
        root: The folder of the source; by default ``<RLDS_HOME>/<source>``.
        download: True downloads a dataset that is not stored; False requires a stored one; "force" downloads and
            converts the dataset again.
        selection: The selection to open, `Selection(episodes="0:100")`. The stored selection decides everything that it
            leaves open; without it, the stored dataset is opened, whatever its selection. Of a larger stored selection,
            the buffer shows the requested episodes and fields; a smaller one grows by a download. If no dataset is
            stored, everything left open is downloaded.
        storage: Not supported, because the storage of a dataset is its files; expected None.
        final_unknown: The treatment of transitions whose next observation is unknown. "keep" keeps them; None, the
            default, keeps them with one `UnknownFinalWarning` per dataset and process. "drop" drops them: the episode
            ends one transition earlier, truncated. "drop_truncated" drops them unless they are terminated, because the
            target of a terminated transition needs no next observation.
        **options: Arguments of `TensorDictReplayBuffer`. A dataset is read-only and its files are shared by all
            processes: the default `writer` raises an error, and `dim_extend`, `shared` and `compilable` have no effect.

    Raises:
        UnknownIdError: If there is no such id, or the dataset is not stored and `download` is False.
        InvalidArgumentError: If a choice contradicts the stored one; if `download` is False and the stored dataset lacks
            a part of the selection; or if `delta_timestamps` are not those of steps, or no frame rate is known.
        FetchError: If no upstream serves the files of a dataset that is to be downloaded.
    """

    source: ClassVar[str]
    streaming: ClassVar[bool] = False
    __signature__ = NamedOptions()
    _shown_keys: tuple[Key, ...] | None = None
    """Names of the fields of batches, see `load`; None for all."""
    _device: torch.device | None = None
    """The device that has a copy of the steps; None if they are read from the files."""
    available_datasets = _Available()
    """The ids that the class accepts; no network."""

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
        **options: Unpack[BufferOptions],
    ) -> None:
        if unknown := options.keys() - BufferOptions.__annotations__:  # before any download
            raise WrongTypeError(
                f"{type(self).__name__} has no argument {min(unknown)!r}",
                hint=f"help({type(self).__name__}) shows all arguments",
            )
        if storage is not None:
            raise InvalidArgumentError(
                f"storage is {storage!r}; expected None: the storage of a dataset is its files",
                hint="write the steps that dataset[:] returns to a ReplayBuffer with this storage",
            )
        check_final_unknown(final_unknown)
        self.final_unknown = final_unknown
        self.dataset_id = dataset_id
        self.split_trajs = split_trajs
        self._asked = selection or Selection()
        self._path = self._folder(dataset_id, root, download)
        steps = self._open()
        super().__init__(
            storage=PaddedTrajectories(steps) if split_trajs else steps,
            sampler=sampler,
            batch_size=batch_size,
            delayed_init=False,
            **options,
        )
        if delta_timestamps is not None:
            self.insert_transform(
                0, windows_by_seconds(self.manifest, steps.keys(), delta_timestamps, fps, tolerance_s)
            )
        elif fps is not None:
            raise InvalidArgumentError(f"fps is {fps}, but there are no delta_timestamps, which it is for")

    def _open(self) -> DatasetStorage | View | DeviceStorage:
        """Open the dataset; open it again if another process replaces it before all of its files are open."""
        attempt = 0
        while True:
            attempt += 1
            self.stored = StoredDataset(self._path)
            try:
                return self._visible_steps()
            except IntegrityError:
                if attempt == _ATTEMPTS or version_folder(self._path.resolve()) == self.stored.folder:
                    raise

    def _folder(self, dataset_id: str, root: Path | str | None, download: Download) -> Path:
        if download not in {True, False, "force"}:
            raise InvalidArgumentError(f"download is {download!r}; expected True, False or 'force'")
        settings = self._settings()
        full_id = f"{self.source}/{dataset_id}"
        if download:
            options = DownloadOptions(
                root=root,
                force=download == "force",
                from_local=self._local_copy(),
                selection=self._asked,
                as_stored=True,
                settings=settings,
            )
            # A stored dataset is only read: what a killed process left of it is not touched.
            stored = None if options.force else downloading.stored_folder(full_id, options)
            return stored or downloading.run_download(full_id, options).folder
        folder = locate(full_id, root=root, settings=settings)
        stored_selection.check_contains(Manifest.read(folder), folder, self._asked)
        return folder

    def _settings(self) -> Settings:
        """Return the settings of the download; sources with arguments for settings override this."""
        return Settings.from_env()

    def _local_copy(self) -> Path | None:
        """Return the path of a local copy of the upstream files to read instead of a download; None to download."""
        return None

    @property
    def selection(self) -> Selection:
        """The selection that the buffer shows; an empty selection stands for the whole dataset."""
        part, asked = Selection.from_json(self.stored.manifest.selection), self._asked
        return replace(part, episodes=asked.episodes or part.episodes, keys=asked.keys or part.keys)

    def _steps(self) -> DatasetStorage | View:
        """Return the storage of the selected steps and fields; a source may add names to it."""
        whole = self._stored_steps()
        rows, fields = self._visible_part(whole)
        if whole.masked:
            fields[NEXT_FINAL_KNOWN] = None
        if rows is not None:
            return View(whole, rows, fields)
        return whole if fields == dict.fromkeys(whole.keys()) else View(whole, None, fields)

    def _stored_steps(self) -> DatasetStorage:
        """Return the storage of the whole stored dataset."""
        return DatasetStorage(self.stored)

    def _visible_part(self, storage: DatasetStorage) -> tuple[RowRanges | None, dict[Key, torch.dtype | None]]:
        """Return the rows that the selection shows, and its fields, each with the dtype it is cast to.

        The rows are None if they are all rows.
        """
        stored, shown, part = self.stored, self.selection, Selection.from_json(self.stored.manifest.selection)
        rows = None
        if shown.episodes != part.episodes:
            selected = select_episodes(shown.episodes, stored.episodes.numbers)
            if not selected.all():
                rows = RowRanges(stored.episodes.starts[selected], stored.episodes.lengths[selected])
        fields: dict[Key, torch.dtype | None] = dict.fromkeys(storage.keys())
        if shown.keys != part.keys:
            kept = shown.kept_keys([field.key for field in stored.schema])
            shared = {(NEXT, *field.key) for field in stored.schema if field.key in kept and field.shared}
            fields = dict.fromkeys([key for key in fields if key in kept | shared | set(ROOT_FLAGS)])
        return rows, fields

    def _visible_steps(self) -> DatasetStorage | View | DeviceStorage:
        """Return the storage of the buffer, with `final_unknown` and the choice of fields applied."""
        steps = select_final_known(self._steps(), self.final_unknown)
        if self._shown_keys is not None:
            steps = View.of(steps).with_keys(steps.keys_named(self._shown_keys))
        if steps.masked and self.final_unknown is None:
            self._warn_once(steps.episodes)
        return steps if self._device is None else DeviceStorage(steps, self._device)

    def _warn_once(self, table: EpisodeTable) -> None:
        unknown = int((~table["final_known"]).sum())
        key = (os.getpid(), str(self._path), f"{unknown} of {len(table)}")
        if key not in _warned:
            name = shown_id(self._path, self.manifest.id)
            warnings.warn(UnknownFinalWarning(name, unknown, len(table)), stacklevel=_stack_level())
            _warned.add(key)  # after the call: if a filter turns the warning into an error, it is raised every time

    def select(self, keys: str | Iterable[str | Key]) -> Self:
        """Limit batches to some fields, in place: the others are not read. An epoch of the sampler starts anew.

            >>> dataset = load("demo/pendulum").select(["observation", "action"])

        A batch with a next observation keeps ``("next", "final_known")``, if the dataset has it. Samplers still find the
        episodes, whatever the fields are.

        Args:
            keys: Fields, each as a dotted name or a tuple of names; a name of several fields, "next", stands for all of
                them.

        Returns:
            This buffer.

        Raises:
            UnknownKeyError: If the dataset has no such field; nothing has changed.
        """
        given: Any = keys
        names = [given] if isinstance(given, str) or not isinstance(given, Iterable) else given
        return self._shown_with(_shown_keys=tuple(as_key(name) for name in names))

    def to(self, device: torch.device | str | None) -> Self:
        """Copy the steps to the memory of a device, in place, and draw and gather batches there.

            >>> dataset = load("d4rl/hopper-medium-v2", batch_size=256).to("cuda")
            >>> batch = dataset.sample()                    # on the device; no step waits for it

        The copy contains the fields that batches have, the final states included; it takes about as many bytes as the
        files. A uniform sampler with replacement, the default, draws on the device, with its generator, and all shapes
        are static. Other samplers choose rows in main memory, which are then moved. An epoch of the sampler starts anew.

        Args:
            device: The device; "cpu" copies the steps to main memory, and None reads them from the files again.

        Returns:
            This buffer.

        Raises:
            InvalidArgumentError: If there is no such device, elements are whole episodes, or a field consists of encoded
                images; nothing has changed.
        """
        if device is not None and self.split_trajs:
            raise InvalidArgumentError(
                f"the elements are whole episodes, which cannot be kept on {device}",
                hint="open the dataset without split_trajs; a SliceSampler draws parts of episodes",
            )
        try:
            found = None if device is None else torch.empty(0, device=device).device
        except (AssertionError, RuntimeError) as error:
            raise InvalidArgumentError(f"device is {device!r}, which torch cannot use here: {error}") from error
        return self._shown_with(_device=found)

    def _shown_with(self, **attributes: Any) -> Self:
        """Set attributes that decide which steps are shown, and where they are; after an error, nothing has changed."""
        previous = {name: getattr(self, name) for name in attributes}
        vars(self).update(attributes)
        try:
            self._replace_steps()
        except BaseException:
            vars(self).update(previous)
            raise
        return self

    def _replace_steps(self) -> None:
        """Replace the storage by one of the steps that the buffer now shows."""
        steps = self._visible_steps()
        self.set_storage(PaddedTrajectories(steps) if self.split_trajs else steps, self._components.collate_fn)
        self.__dict__.pop("specs", None)

    def texts(self, key: str | tuple[str, ...]) -> list[str]:
        """Return the vocabulary of a text field: ``texts[number]`` is the text for a stored number.

        Raises:
            UnknownKeyError: If there is no such text field; the error names the existing ones.
        """
        return self.stored.texts(as_key(key))

    @property
    def episodes(self) -> EpisodeTable:
        """The table of the episodes: where each starts and stops among the steps, and its return."""
        table: EpisodeTable = self.storage.episodes  # type: ignore[attr-defined]  # all three storages have it
        return table

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset, with its description and its origin."""
        return self.stored.manifest

    @property
    def data_path(self) -> Path:
        """The folder of the dataset."""
        return self._path

    @property
    def data_path_root(self) -> Path:
        """The same folder: it has only files of this dataset, so that code written for TorchRL may remove it."""
        return self._path

    @property
    def root(self) -> Path:
        """The folder of the source, which contains its other datasets, too."""
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
        tree: dict[str, Any] = {}
        for name, value in self.manifest.metadata.items():
            *path, leaf = name.split("/")
            node = tree
            for part in path:
                node = node.setdefault(part, {})
                if not isinstance(node, dict):
                    raise ManifestError(str(self.data_path), [f"metadata {name!r} is nested below a value"])
            node[leaf] = self._metadata_value(value)
        return tree

    def _metadata_value(self, value: Any) -> Any:
        file = array_file(value)
        if file is None:
            return value
        if self.manifest.file(file) is None:
            problem = f"metadata names the file {file!r}, which is not a file of the dataset"
            raise ManifestError(str(self.data_path), [problem])
        array = np.array(self.stored.open_file(file, map_npy))
        # torch supports neither text nor foreign byte orders.
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="))) if array.dtype.kind in "biufc" else array

    @property
    def statistics(self) -> Mapping[str, Mapping[str, Any]]:
        """The statistics of the whole stored dataset, by dotted key: min, max, mean, std and quantiles, q01 to q99.

        ``dataset.statistics["action"]["q99"]`` has a number for each element, ``"return"`` and ``"length"`` describe the
        episodes. They are in the manifest. Float fields have statistics; `describe` describes all fields.
        """
        return self.stored.manifest.statistics

    def describe(self, keys: Sequence[str | tuple[str, ...]] | None = None, *, bins: int = BINS) -> Description:
        """Return the distributions of the returns, the lengths and the fields, and how episodes end.

            >>> found = dataset.describe()
            >>> found.issues()                                  # "observation has 3 values that are NaN, in ..."
            >>> found.field("action").elements[0].histogram.counts
            >>> found.ends.timed_out.episodes, found.ends.correlation["return"]

        The visible steps are read twice, in blocks. Of fields with their own file, such as images, at most 256 steps
        are read.

        Args:
            keys: The fields; by default all but the flags.
            bins: Maximum number of bins of a histogram.

        Raises:
            UnknownKeyError: If a field does not exist; the error names the existing ones.
        """
        return describe(self._step_reader(), keys=None if keys is None else [as_key(key) for key in keys], bins=bins)

    def plot(self) -> Figure:
        """Return a figure with the histograms of the returns, the lengths, the rewards and each element of the actions.

            >>> dataset.plot()                                  # in a notebook
            >>> dataset.plot().savefig("hopper.png")

        Raises:
            MissingDependencyError: If matplotlib is not installed.
        """
        from datasets_rl.look.plot import draw

        steps = self._step_reader()
        shown = [field.key for field in steps.fields if field.key[0] == ACTION[0] or field.key == NEXT_REWARD]
        return draw(describe(steps, keys=shown))

    def export(
        self,
        to: str,
        out: Path | str | None = None,
        *,
        force: bool = False,
        lossy: bool = False,
        fps: float | None = None,
        images: str = "",
    ) -> Path:
        """Write the episodes and fields that the dataset shows in the format of another project.

            >>> dataset.export("hdf5", "./pendulum")

        Transforms of batches are not applied. The arguments, the result and the errors are those of `datasets_rl.export`.

        Raises:
            InvalidArgumentError: If the dataset shows transitions instead of whole episodes, too.
        """
        from datasets_rl.exporting import Content, run_export
        from datasets_rl.settings import Settings

        if self.final_unknown in {"drop", "drop_truncated"}:
            raise InvalidArgumentError(
                f"final_unknown is {self.final_unknown!r}: whole episodes are exported, not the transitions that it shows",
                hint="open the dataset without final_unknown, or preprocess it with the step drop_unknown_final",
            )
        rows, fields = self._visible_part(self._stored_steps())
        table = self.stored.episodes
        shown = None if rows is None else np.unique(table.episode_of(rows.split_at(table.starts).starts))
        content = Content(self.stored, shown, fields, fps, images)
        return run_export(content, to, out, force=force, lossy=lossy, show=Settings.from_env().progress)

    def make_env(self, *, steps: bool = True, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        """Return the Gymnasium environment of the dataset, to evaluate a policy in.

            >>> env = load("demo/pendulum").make_env()              # gymnasium.make("Pendulum-v1")
            >>> env = load("demo/pendulum@td3_bc").make_env()       # the same, with normalized observations
            >>> env = load("minari/D4RL/door/human-v2").make_env(render_mode="human")

        The name is that of the stored specification (Minari, `RecordEpisodes`), of the metadata (``environment`` in
        ``dataset.toml``), or of the catalog. A specification also states arguments and wrappers; of the wrappers, those
        of Gymnasium are applied, and a warning names the others. Where D4RL names an environment of mujoco-py, its
        successor with the same observations, actions and rewards takes its place, with a warning.

        Observations and actions are those of the dataset: the steps of the recipes that made it are applied to each
        observation, and their inverses to each action, with the parameters that were fitted to the dataset. The spaces
        change accordingly. Rewards are those of the environment, so that returns and scores compare.

        Args:
            steps: Whether the steps of the recipes are applied; if not, the environment is that of the raw data.
            **kwargs: Arguments of `gymnasium.make`; they come before those of the specification.

        Raises:
            InvalidArgumentError: If the dataset names no environment, or nothing registers it; if a step cannot be
                applied to an environment, such as a function or `frame_skip`. The error names the step.
            MissingDependencyError: If Gymnasium, or the library with the environment, is not installed; the error names
                the extra.
        """
        from datasets_rl.preprocessing.environment import make_env

        return make_env(self.describe_env(), steps=steps, **kwargs)

    def describe_env(self) -> dict[str, Any]:
        """Return the environment of the dataset and the steps of its recipes as plain data, which JSON can hold.

            >>> description = dataset.describe_env()
            >>> env = datasets_rl.make_env(description)             # elsewhere, without the dataset

        It has the name, the arguments and the wrappers of the environment, each step with its fitted parameters, and the
        dtypes and shapes of the fields. A checkpoint that holds it can be evaluated without the dataset.

        Raises:
            InvalidArgumentError: If the dataset names no environment, or is a merge of datasets with different steps.
        """
        from datasets_rl.preprocessing.environment import describe_env

        return describe_env(self.manifest, self._metadata_value)

    def iterate_episodes(self, numbers: Iterable[int] | None = None) -> Iterator[TensorDict]:
        """Yield episodes as TensorDicts, [T] each, one at a time.

            >>> for episode in dataset.iterate_episodes():
            ...     episode["next", "reward"].sum()

        Transforms are not applied.

        Args:
            numbers: Numbers of the episodes in `episodes`, in any order; by default all. Negative ones count from the
                end.

        Raises:
            IndexError: If there is no such episode.
        """
        storage: Any = self.storage
        steps = storage.steps if isinstance(storage, PaddedTrajectories) else storage
        for number in range(len(self.episodes)) if numbers is None else numbers:
            yield steps.get(self.episodes.rows(number))

    def _step_reader(self) -> StepReader:
        """Return a reader of the stored fields of the visible steps."""
        steps: Any = self.storage
        while not isinstance(steps, (DatasetStorage, View)):
            steps = steps.steps
        if isinstance(steps, DatasetStorage):
            return StepReader(self.stored)
        return StepReader(self.stored, steps.rows, steps.episodes, [*steps.fields])

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
        "corl"    the keys of `d4rl.qlearning_dataset`: observations, actions, rewards, next_observations, terminals
        "ogbench" as `ogbench.load_dataset`: the same, but terminals are the ends of trajectories; masks are 1 -
                  terminated
        "rlpd"    as RLPD's `D4RLDataset`: actions are clipped to 1 - 1e-5; masks, and dones (bool), the ends of
                  trajectories
        ========= ================================================================================================

        Arrays are [N, ...], rewards and flags [N]. Floating-point values are float32, and so are flags unless the table
        says otherwise. An observation of several parts is a nested dict. Transforms are not applied.

        With numpy and with torch on the CPU, the observations, actions and rewards of the whole dataset, and the flags
        of "d4rl", are views of the files, mapped copy-on-write: no memory is used until they are read, and writing to
        them changes neither the files nor this buffer. Copies are: next_observations, masks, float32 flags, clipped
        actions, fields that are not stored as float32, and every array of a part of a dataset.

        Layouts with next_observations leave out transitions whose next observation is unknown, unless they are
        terminated, as `final_unknown="drop_truncated"` does; `final_unknown="keep"` keeps them.

        Args:
            layout: The keys and dtypes.
            framework: The type of the arrays: "numpy", "torch" or "jax".
            device: The device of the arrays of torch or jax; by default the CPU, or the default device of jax.
            compact: Whether to return the compact form of "ogbench", as `compact_dataset=True` of OGBench: no
                next_observations, but a row for the final observation of each episode, [N + E, ...]. `valids` is 0 in
                these rows, whose action, reward and mask are those of the last step.
            timeouts: Whether to keep the last transition of each truncated episode. `d4rl.qlearning_dataset`, and with it
                CORL, IQL and RLPD, leave it out, because D4RL's files lack its next observation; if False, the rows are
                theirs, except that D4RL also leaves out the last row of a file if it is terminated.

        Raises:
            InvalidArgumentError: If the arguments do not exist, no transition remains, jax is not installed, elements are
                whole episodes, or a compact form does not exist.
            UnknownKeyError: If the dataset has no observation or action.
        """
        steps: Any = self.storage.steps if isinstance(self.storage, DeviceStorage) else self.storage
        if isinstance(steps, PaddedTrajectories):
            raise InvalidArgumentError("the elements are whole episodes", hint="open the dataset without split_trajs")
        if layout != "d4rl" and self.final_unknown is None:
            steps = select_final_known(steps, "drop_truncated")
        if not timeouts:
            steps = select_without_timeouts(steps)
        return flat_dict(steps, layout, framework, device, compact=compact)

    def push(self, address: str, *, private: bool = False, message: str = "") -> Pushed:
        """Publish the stored dataset on the Hugging Face hub.

            >>> dataset.push("hf://me/hopper")

        The arguments, the result and the errors are those of `datasets_rl.push`.
        """
        from datasets_rl.hub.push import push

        return push(self.data_path, address, private=private, message=message)

    @taking(PreprocessArguments)
    def preprocess(self, given: PreprocessArguments) -> DatasetStorage:  # noqa: D417 -- its fields are the arguments
        """Apply a function to every transition, once, and store the result.

            >>> dataset.preprocess(lambda step: step.set("norm", step["observation"].norm(dim=-1)), dest="normed")
            >>> dataset.preprocess(fn, batched=True, num_workers=8, dest="mapped")    # takes many steps at once
            >>> dataset.preprocess(drop_failures, per="episode", dest="successes")    # returns a TensorDict or None

        The result is stored in the folder `dest`; use `derive` for a dataset with a separate id. With `in_place`, the
        dataset is replaced atomically at the end: this buffer, and all later ones with the same id, then show the new
        version. All earlier versions are kept (`restore`). If the function fails, or the process dies, the dataset is
        unchanged, and the same call resumes.

        Args:
            fn: A function from a TensorDict to a TensorDict; or a `Recipe`, its name or file, a `Step` or a
                `Transform`. It may add, drop and change fields, but must keep the reward and the flags of episode ends.
                Fields under ``next`` that equal the root one step later are stored once.
            dim: The axis of the steps: 0.
            num_workers: The number of processes; by default the number of cores if the dataset is large. 0 and 1 use
                this process.
            chunksize: The maximum number of steps that are passed to the function at once; the dataset is read in
                batches of about 8 MB. 0 passes single steps.
            num_chunks: The same as a number of chunks of the whole dataset.
            pool: A process pool of the caller, which writes the partial datasets; without `num_workers`.
            generator: The generator that seeds the random numbers of the function.
            max_tasks_per_child: The number of partial datasets after which a process is replaced.
            worker_threads: The number of torch threads in each process.
            index_with_generator: Accepted for compatibility with TorchRL; the whole dataset is never in memory.
            pbar: Whether progress is shown.
            mp_start_method: Accepted for compatibility with TorchRL; the processes are separate programs, so that
                lambdas work, and the script of the caller is not run again.
            num_frames: The number of steps to read, from the first, to try a function.
            dest: A folder for the result, as TorchRL names it.
            batched: Whether the function takes a batch of steps, [B].
            per: "step", "batch" or "episode": the input of the function.
            max_ram: The approximate memory in bytes that all processes may use for data.
            force: Replace an existing result.
            in_place: Replace this dataset by the result.

        Returns:
            The storage of the result.

        Raises:
            PreprocessError: If the function fails; the error names the line, the step of the recipe, the episode and
                its fields.
            InvalidArgumentError: If arguments exclude each other.
        """
        if (given.dest is None) is not given.in_place:
            number = "neither" if given.dest is None else "both"
            raise InvalidArgumentError(
                f"a result is stored in a folder, dest=, or replaces the dataset, in_place=True; {number} was given",
                hint="derive() stores the result as a separate dataset",
            )
        folder = given.run(self._path)
        if given.in_place:
            self._reopen()
        return DatasetStorage(StoredDataset(folder))

    def restore(self, version: str | int = "parent") -> Self:
        """Make another version of the dataset the current one, which this buffer then shows; see `datasets_rl.restore`.

            >>> dataset.preprocess(fn, in_place=True)
            >>> dataset.restore()                               # the version before

        Args:
            version: The number or the name of a version; "parent" is the version that the current one was made of.

        Raises:
            InvalidArgumentError: If there is no such version.
        """
        store.restore(self._path, version)
        return self._reopen()

    def _reopen(self) -> Self:
        """Show the current version of the dataset."""
        self.stored = StoredDataset(self._path)
        self.__dict__.pop("metadata", None)
        self._replace_steps()
        return self

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
        """Derive a separate dataset from this one, unless it exists already, and open it.

            >>> normalized = dataset.derive("td3_bc")               # demo/pendulum@td3_bc
            >>> dataset.derive(fn, per="episode", name="successes")  # demo/pendulum@successes

        This dataset is unchanged. The derived one has an id, which `load` and the command line accept. It is computed
        from the whole stored dataset, even if this buffer shows only a selection, and is opened with the defaults of
        its class.

        Args:
            recipe: A `Recipe`, its name or file, a `Step`, a `Transform`, or a function as for `preprocess`.
            name: The name after the ``@``; by default that of the recipe.
            per: "step", "batch" or "episode": the input of a function.
            batched: Whether a function takes a batch of steps, [B].
            num_workers: The number of processes; see `preprocess`.
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
        """Open a dataset that was derived from this one."""
        name = f"{self.dataset_id}{folder.name[len(self._path.name) :]}"
        return type(self)(name, root=self.root, **{"download": True, **options})

    def delete(self) -> None:
        """Remove the dataset from the disk; this buffer must not be used afterwards."""
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
        if self._shown_keys is not None:
            shown += f", fields: {', '.join(map(dotted_name, self.storage.keys()))}"  # type: ignore[attr-defined]  # all have it
        if self._device is not None:
            shown += f", on {self._device}"
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
        """Return the range of the returns, with their histogram as an image."""
        found = distribution(self.episodes["return"])
        if found.histogram is None or found.min is None or found.max is None:
            return Markup("not finite")
        text = f"returns from {found.min:.6g} to {found.max:.6g}"
        image = histogram_svg(found.histogram.counts, text)
        return Markup(f"{found.min:.6g} {image} {found.max:.6g}")
