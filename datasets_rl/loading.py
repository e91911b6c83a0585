"""From an id or a folder to a dataset: resolve, fetch, convert, open."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets_rl import sources, store
from datasets_rl.datasets import BaseDatasetExperienceReplay, StoredExperienceReplay, dataset_class
from datasets_rl.datasets.experience_replay import Download
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers import Sampler
from datasets_rl.sources import Selection
from datasets_rl.writers import Writer

__all__ = ["load"]


def load(
    dataset_id: str | Path,
    batch_size: int | None = None,
    *,
    sampler: Sampler | None = None,
    writer: Writer | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    pin_memory: bool = False,
    prefetch: int | None = None,
    transform: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] | None = None,
    split_trajs: bool = False,
    root: Path | str | None = None,
    download: Download | None = None,
    selection: Selection | None = None,
    **options: Any,
) -> BaseDatasetExperienceReplay:
    """Open a dataset as a replay buffer, after downloading it if it is not stored.

        >>> from datasets_rl import load
        >>> batch = load("demo/pendulum").sample(256)
        >>> load("d4rl/hopper-medium-v2", batch_size=256, selection=Selection(keys=("observation", "action")))
        >>> load("./hopper-td3")                                # the folder of any stored dataset

    Args:
        dataset_id: An id with its source, ``d4rl/hopper-medium-v2``, or the folder of a stored dataset. A folder of the
            working directory never hides an id.
        batch_size: Steps (with `split_trajs`, episodes) of a batch, for calls of `sample` without a size.
        sampler: Chooses the steps; by default that of the class, uniform with replacement for most.
        writer: Refuses writes by default; a dataset is read-only.
        collate_fn: Applied to what the storage returns.
        pin_memory: Whether batches are copied to page-locked memory.
        prefetch: Batches made ahead of time by as many threads.
        transform: Applied to every batch.
        split_trajs: Elements are whole episodes, [E, T], padded with zeros, with a `mask`.
        root: The source's folder; by default ``<RLDS_HOME>/<source>``.
        download: True downloads what is not stored; False never downloads; "force" downloads and converts the dataset
            again. By default True, but a dataset of openx that is not stored is streamed.
        selection: The part that is wanted, `Selection(episodes="0:100")`. Everything that it leaves open is as in the
            stored part; without it, the stored dataset opens, whatever part it is. A larger stored part shows the
            selection, and a smaller one grows by a download.
        **options: Further arguments of the source's class in `datasets_rl.datasets`, as `from_env` of d4rl.

    Raises:
        UnknownIdError: If there is no such id; `NotADatasetError` if the folder holds no dataset.
        InvalidArgumentError: If an argument is unknown to the source's class, the error names the nearest one; if a choice of the
            selection contradicts the stored one; or if `dataset_id` is the file of a mixture.
        FetchError: If no address gives a file.
    """
    found = store.id_or_path(dataset_id)
    given: dict[str, Any] = {
        "batch_size": batch_size,
        "sampler": sampler,
        "writer": writer,
        "collate_fn": collate_fn,
        "pin_memory": pin_memory or None,
        "prefetch": prefetch,
        "transform": transform,
        "split_trajs": split_trajs or None,
        "root": root,
        "download": download,
        "selection": selection,
    }
    # A class knows its own defaults, and not every class has every argument.
    arguments = {name: value for name, value in given.items() if value is not None} | options
    if isinstance(found, Path):
        _check_folder(found, arguments)
        _check_arguments(StoredExperienceReplay, arguments)
        return StoredExperienceReplay(str(found), **arguments)
    head, name = sources.split_id(found)
    sources.find(found)
    kind = dataset_class(head)
    _check_arguments(kind, arguments)
    return kind(name, **arguments)


def _check_folder(folder: Path, arguments: Mapping[str, Any]) -> None:
    if folder.is_file() and folder.suffix == ".toml":
        raise InvalidArgumentError(
            f"{folder} is a file; expected an id or a folder", hint=f'load_mixture("{folder}") opens a mixture'
        )
    if "root" in arguments or arguments.get("download") == "force":
        raise InvalidArgumentError(
            f"{folder} is a folder, which opens where it lies; root and download='force' need an id",
            hint="leave them out, or give the id",
        )


def _check_arguments(kind: type[BaseDatasetExperienceReplay], arguments: Mapping[str, Any]) -> None:
    known = list(dict.fromkeys(_parameters(kind)))
    for name in arguments:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            raise InvalidArgumentError(
                f"{kind.__name__} has no argument {name!r}; it has {', '.join(known)}",
                hint=f"did you mean {', '.join(near)}?" if near else "",
            )


def _parameters(kind: type[BaseDatasetExperienceReplay]) -> Iterator[str]:
    """Yield the names of the arguments that may follow the id, those of the base class too if they are passed on."""
    for base in kind.__mro__:
        if "__init__" in vars(base):
            _self, _id, *rest = inspect.signature(vars(base)["__init__"]).parameters.values()
            yield from (one.name for one in rest if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY})
            if all(one.kind is not one.VAR_KEYWORD for one in rest):
                return
