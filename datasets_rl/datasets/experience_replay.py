"""A dataset on disk as a replay buffer."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from datasets_rl import downloading, growth, sources, store
from datasets_rl.buffers.display import as_html
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer
from datasets_rl.errors import InvalidArgumentError, ManifestError, UnknownFinalWarning
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.npy import map_npy
from datasets_rl.format.reader import StoredDataset
from datasets_rl.samplers.base import Sampler
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection, read_numbers
from datasets_rl.specs import CompositeSpec, from_manifest
from datasets_rl.storages.aliased import AliasedStorage
from datasets_rl.storages.dataset import DatasetStorage
from datasets_rl.storages.final_states import FinalUnknown, check_final_unknown, select_final_known
from datasets_rl.storages.subset import SubsetStorage
from datasets_rl.storages.trajectories import PaddedTrajectories
from datasets_rl.ted.keys import NEXT, ROOT_FLAGS, Key, as_key
from datasets_rl.ted.table import EpisodeTable
from datasets_rl.writers.base import Writer

if TYPE_CHECKING:
    from datasets_rl.preprocessing import Recipe, Step
    from datasets_rl.preprocessing.functions import Per

__all__ = ["BaseDatasetExperienceReplay", "Download"]

Download = bool | Literal["force"]
Transform = Callable[[Any], Any]

_warned: set[tuple[int, str, str]] = set()
"""Datasets whose unknown final observations this process was warned of: process, folder, view."""


def _stack_level() -> int:
    """Return the level of the first frame outside the package, as `warnings.warn` counts from the caller."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "datasets_rl":
        level, frame = level + 1, frame.f_back
    return level


class _Available:
    """Reads the ids of a class's source, without making an instance."""

    def __get__(self, instance: object, owner: type[BaseDatasetExperienceReplay]) -> tuple[str, ...]:
        return tuple(sources.source(owner.source).ids()) if owner.source else ()


class BaseDatasetExperienceReplay(TensorDictReplayBuffer):
    """A dataset on disk as a replay buffer of TED transitions.

        >>> dataset = D4RLExperienceReplay("hopper-medium-v2", batch_size=256)
        >>> dataset.sample()                      # 256 transitions
        >>> dataset[0], dataset[10:20], dataset["next", "reward"]

    A whole number, a slice, a mask or an index tensor gives transitions; a key, ``"observation"`` or ``("next",
    "reward")``, gives one field of all rows without reading the rest. Nothing that is done to what comes out changes
    the files.

    Where the dataset lacks the final observation of some episodes, every batch carries ``("next", "final_known")``, bool
    [*B, 1], False exactly on the last transition of such an episode: its next observation reads as zeros and belongs in
    no target.

    Args:
        dataset_id: The id within the source.
        batch_size: Steps (with `split_trajs`, episodes) of a batch where `sample` is not told.
        sampler: Chooses the steps; uniform with replacement by default.
        writer: Refuses writes by default; a dataset cannot be written to.
        collate_fn: Applied to what the storage returns.
        pin_memory: Whether batches are copied to page-locked memory.
        prefetch: Batches made ahead of time by as many threads.
        transform: Applied to every batch.
        split_trajs: Elements are whole episodes, [E, T], padded with zeros, with a `mask`.
        root: The source's folder; by default ``<RLDS_HOME>/<source>``.
        download: True makes the dataset where it is not there; False wants it to be there; "force" makes it anew.
        selection: The part that is wanted, `Selection(episodes="0:100")`. Everything that it leaves open is as in the
            stored part; without it, the stored dataset opens, whatever part it is. Of a larger stored part, the buffer
            shows the episodes and the fields that the selection names; a smaller one grows by a download. Where nothing is
            stored, everything left open is downloaded.
        final_unknown: What becomes of transitions whose next observation is unknown. "keep" keeps them; by default that
            comes with one `UnknownFinalWarning` per dataset and process. "drop" leaves them out: the episode ends one
            transition earlier, truncated. "drop_truncated" leaves them out unless they are terminated, where a target
            needs no next observation.

    Raises:
        UnknownIdError: If there is no such id, or it is not there and `download` is False.
        InvalidArgumentError: If a choice contradicts the stored one; or `download` is False and the stored dataset lacks a part of
            the selection.
    """

    source: ClassVar[str]
    available_datasets = _Available()
    """Every id that the class accepts; no network."""

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | Sequence[Transform] | None = None,
        split_trajs: bool = False,
        *,
        root: Path | str | None = None,
        download: Download = True,
        selection: Selection | None = None,
        final_unknown: FinalUnknown | None = None,
    ) -> None:
        check_final_unknown(final_unknown)
        self.final_unknown = final_unknown
        self.dataset_id = dataset_id
        self.split_trajs = split_trajs
        self._asked = selection or Selection()
        self._path = self._folder(dataset_id, root, download)
        self.stored = StoredDataset(self._path)
        steps = self._visible_steps()
        super().__init__(
            storage=PaddedTrajectories(steps) if split_trajs else steps,
            sampler=sampler,
            writer=writer,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            batch_size=batch_size,
        )

    def _folder(self, dataset_id: str, root: Path | str | None, download: Download) -> Path:
        if download not in {True, False, "force"}:
            raise InvalidArgumentError(f"download is {download!r}; expected True, False or 'force'")
        settings = self._settings()
        full_id = f"{self.source}/{dataset_id}"
        if download:
            return downloading.download(
                full_id,
                root=root,
                force=download == "force",
                selection=self._asked,
                as_stored=True,
                from_local=self._local_copy(),
                settings=settings,
            )
        folder = store.locate(full_id, root=root, settings=settings)
        growth.require_part(folder, self._asked)
        return folder

    def _settings(self) -> Settings:
        """Return the settings for the download: those of the environment, unless a source has an argument for one."""
        return Settings.from_env()

    def _local_copy(self) -> Path | None:
        """Name a copy of the upstream's files that the user has, which is then read in its place."""
        return None

    @property
    def selection(self) -> Selection:
        """The part of the dataset that the buffer shows; an empty selection for the whole."""
        part, asked = Selection.from_json(self.stored.manifest.selection), self._asked
        return replace(part, episodes=asked.episodes or part.episodes, keys=asked.keys or part.keys)

    def _steps(self) -> DatasetStorage | SubsetStorage | AliasedStorage:
        """Choose what this replay buffer shows: what is asked for of what is stored, unless a source adds to it."""
        whole = self._whole()
        rows, fields = self._shown(whole)
        unchanged = len(rows) == len(self.stored) and fields == dict.fromkeys(whole.keys())
        return whole if unchanged else SubsetStorage(whole, rows, fields)

    def _whole(self) -> DatasetStorage:
        """Open everything that is stored."""
        return DatasetStorage(self.stored)

    def _shown(self, whole: DatasetStorage) -> tuple[NDArray[np.int64], dict[Key, torch.dtype | None]]:
        """Return the rows that the selection shows, int64 [M], and its fields, each with the dtype it is cast to."""
        stored, shown, part = self.stored, self.selection, Selection.from_json(self.stored.manifest.selection)
        rows = np.arange(len(stored))
        if shown.episodes != part.episodes:
            numbers = stored.episodes["source"]
            chosen = np.isin(numbers, read_numbers(shown.episodes, int(numbers.max()) + 1))
            rows = rows[np.repeat(chosen, stored.episodes.lengths)]
        fields: dict[Key, torch.dtype | None] = dict.fromkeys(whole.keys())
        if shown.keys != part.keys:
            kept = shown.kept_keys([field.key for field in stored.schema])
            shared = {(NEXT, *field.key) for field in stored.schema if field.key in kept and field.shared}
            fields = dict.fromkeys([key for key in fields if key in kept | shared | set(ROOT_FLAGS)])
        return rows, fields

    def _visible_steps(self) -> DatasetStorage | SubsetStorage | AliasedStorage:
        """Return the steps of this buffer, after what was asked for transitions with an unknown next observation."""
        steps = select_final_known(self._steps(), self.final_unknown)
        if steps.masked and self.final_unknown is None:
            self._warn_once(steps.episodes)
        return steps

    def _warn_once(self, table: EpisodeTable) -> None:
        unknown = int((~table["final_known"]).sum())
        key = (os.getpid(), str(self._path), f"{unknown} of {len(table)}")
        if key not in _warned:
            warnings.warn(UnknownFinalWarning(self.manifest.id, unknown, len(table)), stacklevel=_stack_level())
            _warned.add(key)  # after it: a filter that makes an error of the warning does so every time

    def texts(self, key: str | tuple[str, ...]) -> list[str]:
        """Return the texts that the numbers of a text field stand for: ``texts[number]``.

        Raises:
            UnknownKeyError: If there is no such text field; the error names those that there are.
        """
        return self.stored.texts(as_key(key))

    @property
    def episodes(self) -> EpisodeTable:
        """Where each episode starts and stops among the steps, with its return."""
        table: EpisodeTable = self._storage.episodes  # type: ignore[attr-defined]  # all three storages have it
        return table

    @property
    def manifest(self) -> Manifest:
        """What the dataset is and where it came from."""
        return self.stored.manifest

    @property
    def data_path(self) -> Path:
        """The folder of the dataset."""
        return self._path

    @property
    def data_path_root(self) -> Path:
        """The same: nothing else lies in it, so that code written for TorchRL may remove it."""
        return self._path

    @property
    def root(self) -> Path:
        """The source's folder, in which other datasets lie too."""
        return self._path.parents[self.dataset_id.count("/")]

    @cached_property
    def specs(self) -> CompositeSpec:
        """What one transition may hold, from the data: no environment is needed."""
        steps = self._storage.steps if isinstance(self._storage, PaddedTrajectories) else self._storage
        return from_manifest(self.manifest, steps.fields if isinstance(steps, SubsetStorage) else None)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What belongs to no step, nested by name: text and numbers as they are, arrays as tensors."""
        tree: dict[str, Any] = {}
        for name, value in self.manifest.metadata.items():
            *path, leaf = name.split("/")
            node = tree
            for part in path:
                node = node.setdefault(part, {})
                if not isinstance(node, dict):
                    raise ManifestError(str(self.data_path), [f"metadata {name!r} lies below a value"])
            node[leaf] = self._metadata_value(value)
        return tree

    def _metadata_value(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if self.manifest.file(str(value.get("file"))) is None:
            problem = f"metadata names the file {value.get('file')!r}, which is not the dataset's"
            raise ManifestError(str(self.data_path), [problem])
        array = np.array(self.stored.open_file(value["file"], map_npy))
        # torch has neither text nor another byte order.
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="))) if array.dtype.kind in "biufc" else array

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
        """Put every transition through a function, once, and store what comes out.

            >>> dataset.preprocess(lambda step: step.set("norm", step["observation"].norm(dim=-1)), dest="normed")
            >>> dataset.preprocess(fn, batched=True, num_workers=8, dest="mapped")    # takes many steps at once
            >>> dataset.preprocess(drop_failures, per="episode", dest="successes")    # returns a TensorDict or None

        The result goes to the folder `dest`; `derive` makes a dataset with an id of its own instead. With `in_place` the
        dataset is replaced, in one step, when all is done: this buffer, and every later one of the same id, then shows
        the new version. Every version before it is kept (`rlds preprocess --undo`). If the function fails, or the process
        dies, the dataset is as it was; the same call then goes on where it stopped.

        Args:
            fn: Takes a TensorDict and returns one; or a `Recipe`, its name or file, a `Step` or a `Transform`. Fields
                may be added, dropped and changed; reward and ends stay. Where ``next`` comes out as the root one step
                later, it is stored once.
            dim: The axis of steps: 0.
            num_workers: Processes; by default as many as there are cores where the dataset is large. 0 and 1: this one.
            chunksize: Steps that the function is given at once, at most: the dataset is read in blocks of about 8 MB. 0
                gives it single steps.
            num_chunks: The same, as a number of pieces of the whole.
            pool: A pool of processes of the caller's, which then makes the parts; without `num_workers`.
            generator: Seeds what the function draws.
            max_tasks_per_child: Parts after which a process is replaced.
            worker_threads: Threads of torch in each process.
            index_with_generator: Taken because the reference has it; no whole dataset is ever in memory.
            pbar: Whether progress is shown.
            mp_start_method: Taken because the reference has it; the processes are programs of their own, so that
                lambdas work, and the caller's script is not run again.
            num_frames: Only the first steps, to try a function.
            dest: A folder for the result.
            batched: The function takes a batch of steps, [B].
            per: "step", "batch" or "episode": what the function takes.
            max_ram: Bytes that all processes may take for what they work on, about.
            force: Make the result anew although it is there.
            in_place: Let the result take the place of this dataset.

        Returns:
            The storage of the result.

        Raises:
            PreprocessError: If the function fails; it says in which line, at which step of the recipe, for which
                episode and with which fields.
            InvalidArgumentError: If arguments exclude each other.
        """
        from datasets_rl.preprocessing.arguments import PreprocessArguments

        if (dest is None) is not in_place:
            given = "neither" if dest is None else "both"
            raise InvalidArgumentError(
                f"a result goes to a folder, dest=, or replaces the dataset, in_place=True; {given} was given",
                hint="derive() makes a dataset of its own beside this one",
            )
        call = PreprocessArguments(
            fn=fn,
            dim=dim,
            num_workers=num_workers,
            chunksize=chunksize,
            num_chunks=num_chunks,
            pool=pool,
            generator=generator,
            max_tasks_per_child=max_tasks_per_child,
            worker_threads=worker_threads,
            index_with_generator=index_with_generator,
            mp_start_method=mp_start_method,
            num_frames=num_frames,
            batched=batched,
            per=per,
        )
        place = None if dest is None else Path(dest)
        folder = call.run(self._path, place, in_place=in_place, pbar=pbar, max_ram=max_ram, force=force)
        result = DatasetStorage(StoredDataset(folder))
        if in_place:
            self.stored = result.stored
            for name in ("specs", "metadata"):
                self.__dict__.pop(name, None)
            steps = self._visible_steps()
            self.set_storage(PaddedTrajectories(steps) if self.split_trajs else steps)
        return result

    def derive(
        self,
        recipe: Callable[[Any], Any] | Recipe | Step | str,
        *,
        as_: str = "",
        per: Per | None = None,
        batched: bool = False,
        num_workers: int | None = None,
        num_frames: int | None = None,
        max_ram: int | None = None,
        pbar: bool = False,
        force: bool = False,
        **options: Any,
    ) -> BaseDatasetExperienceReplay:
        """Make a dataset of its own from this one, or find the one that was made before, and open it.

            >>> normalized = dataset.derive("td3_bc")               # demo/pendulum@td3_bc
            >>> dataset.derive(fn, per="episode", as_="successes")  # demo/pendulum@successes

        The dataset stays as it is. The derived one has an id, which `load` and the command line take. It is made of
        everything that is stored, also where this buffer shows a part of it, and opens as its class does by default.

        Args:
            recipe: A `Recipe`, its name or file, a `Step`, a `Transform`, or a function as `preprocess` takes it.
            as_: Its name after the ``@``; by default that of the recipe.
            per: "step", "batch" or "episode": what a function takes.
            batched: A function takes a batch of steps, [B].
            num_workers: Processes; see `preprocess`.
            num_frames: Only the first steps.
            max_ram: Bytes that all processes may take for what they work on, about.
            pbar: Whether progress is shown.
            force: Make it anew although another one has its name.
            **options: For the buffer that is opened: `batch_size`, `sampler`, `transform`, ...

        Raises:
            PreprocessError: If a step fails.
            InvalidArgumentError: If another dataset has the name, or arguments exclude each other.
        """
        from datasets_rl.preprocessing.arguments import PreprocessArguments

        call = PreprocessArguments(fn=recipe, per=per, batched=batched, num_workers=num_workers, num_frames=num_frames)
        return self._derived(call.run(self._path, None, as_=as_, pbar=pbar, max_ram=max_ram, force=force), options)

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
        storage: Any = self._storage
        wanted = as_key(key)
        known = storage.keys()
        below = [one for one in known if one[: len(wanted)] == wanted and one != wanted]
        if not below:
            return storage.column(wanted)
        leaves = {one[len(wanted) :]: storage.column(one) for one in below}
        return TensorDict(leaves, batch_size=next(iter(leaves.values())).shape[: 1 + self.split_trajs])

    def __contains__(self, key: object) -> bool:
        """Say whether there is a field, or a group of fields, of this key."""
        if not isinstance(key, (str, tuple)):
            return False
        storage: Any = self._storage
        wanted, known = as_key(key), storage.keys()
        return any(one[: len(wanted)] == wanted for one in known)

    def __repr__(self) -> str:
        shown = f"{len(self.episodes):,} episodes, {self.episodes.steps:,} steps"
        if self.selection != Selection():
            shown += f", a part: {self.selection}"
        return (
            f"{type(self).__name__}({self.dataset_id!r}, {shown}{', split_trajs=True' if self.split_trajs else ''}, "
            f"batch_size={self.batch_size}, data_path={str(self.data_path)!r})"
        )

    def _repr_html_(self) -> str:
        return as_html(self, ("dataset", self.dataset_id), ("part", str(self.selection)))
