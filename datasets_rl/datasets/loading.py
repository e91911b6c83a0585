"""Opening a dataset by an id or a folder, after a download if the dataset is not stored."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from datasets_rl import sources, store
from datasets_rl.datasets import BaseDatasetExperienceReplay, StoredExperienceReplay, dataset_class
from datasets_rl.datasets.options import Download
from datasets_rl.datasets.prefixes import resolve_prefix
from datasets_rl.datasets.streamed import StreamedExperienceReplay, is_remote_address
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.manifest import Manifest
from datasets_rl.samplers import Sampler
from datasets_rl.settings import Settings
from datasets_rl.sources import Selection
from datasets_rl.ted.keys import Key
from datasets_rl.writers import Writer

_Buffer = TypeVar("_Buffer", BaseDatasetExperienceReplay, StreamedExperienceReplay)


def load(  # noqa: D417 -- the class describes the others
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
    keys: str | Iterable[str | Key] | None = None,
    device: torch.device | str | None = None,
    streaming: bool | None = None,
    lock: Path | str | bool | None = None,
    **options: Any,
) -> BaseDatasetExperienceReplay:
    """Open a dataset as a replay buffer, after a download if the dataset is not stored.

        >>> from datasets_rl import load
        >>> dataset = load("demo/pendulum", batch_size=256)     # or the folder of any stored dataset
        >>> dataset.sample()["observation"].shape
        torch.Size([256, 3])
        >>> some = load("demo/pendulum", keys=["observation", "action"], device="cpu")     # "cuda": on the GPU
        >>> sorted(some.sample(8).keys())
        ['action', 'index', 'observation']

    `BaseDatasetExperienceReplay` describes the other arguments and errors.

    Args:
        dataset_id: An id with the name of a source, ``d4rl/hopper-medium-v2``, which can also be written as in TorchRL,
            ``d4rl:hopper-medium-v2``, or an id with a prefix of `register_dataset`, or the address of a published dataset,
            ``hf://user/name@revision``, or the folder of a stored dataset. A folder in the working directory never
            hides an id.
        batch_size: The number of steps (with `split_trajs`, episodes) of a batch, for calls of `sample` without a size.
        download: True downloads a dataset that is not stored. False never downloads. "force" downloads and converts the
            dataset again. By default True, but a dataset of openx that is not stored is streamed.
        keys: The fields of batches. Other fields are not read, see `BaseDatasetExperienceReplay.select`. Unlike
            `Selection(keys=...)`, this choice does not change what is downloaded.
        device: The device to copy the steps to, where batches are then drawn and gathered, see
            `BaseDatasetExperienceReplay.to`. By default the steps are read from the files.
        streaming: True samples the dataset without a download, by `StreamedExperienceReplay`, and the arguments of this
            class are then valid, too. A dataset in the stored format may also be named by the address of a folder in a
            bucket or on a web server: ``s3://bucket/folder``, ``gs://bucket/folder``, ``https://host/folder``.
        lock: The lock that the dataset must fit byte for byte, see `write_lock`: a file, or True for the lock of the
            project. A dataset that is not stored is made as for `sync`. False opens any data. By default the setting
            ``lock``, or RLDS_LOCK, and without these no lock.
        **options: Additional arguments of the class of the source in `datasets_rl.datasets`, such as `from_env` of
            d4rl.

    Returns:
        The buffer, of the class of the source. A stream is a `StreamedExperienceReplay`, which has the methods of a buffer
        and not the methods of a stored dataset.

    Raises:
        UnknownIdError: If there is no such id. `NotADatasetError`, which is a subclass, if the folder is not a dataset.
        InvalidArgumentError: If the class of the source has no such argument (the error names similar arguments), or an
            option of the selection contradicts the stored dataset, or `dataset_id` is the file of a mixture.
        UnknownKeyError: If the dataset has no field of `keys`.
        LockMismatchError: If the stored dataset is not the dataset of the lock. The error names the differences.
        OutdatedLockError: If the lock does not have the dataset.
        FetchError: If a file cannot be fetched from any address.
    """
    registered, dataset_id = resolve_prefix(dataset_id) if isinstance(dataset_id, str) else (None, dataset_id)
    # An argument that is left out has the default of the class: the defaults differ, and not every class has all arguments.
    arguments = options | _without_none(
        batch_size=batch_size,
        sampler=sampler,
        writer=writer,
        collate_fn=collate_fn,
        pin_memory=pin_memory or None,
        prefetch=prefetch,
        transform=transform,
        split_trajs=split_trajs or None,
        root=root,
        download=download,
        selection=selection,
    )
    if registered is not None:
        registered_buffer = registered(
            dataset_id, **arguments, **_without_none(keys=keys, device=device, streaming=streaming, lock=lock)
        )
        return cast("BaseDatasetExperienceReplay", registered_buffer)
    is_remote = streaming and is_remote_address(dataset_id)
    dataset = str(dataset_id) if is_remote else store.id_or_path(dataset_id)
    check_lock = _prepare_lock(lock, dataset, arguments, streaming=streaming)
    if isinstance(dataset, Path):
        _check_folder(dataset, arguments, streaming=streaming)
        return _shown(_opened(StoredExperienceReplay, str(dataset), arguments), keys, device, check_lock)
    if streaming and not dataset.startswith("openx/"):
        if keys is not None or device is not None:
            raise InvalidArgumentError(
                "streaming=True reads whole episodes into main memory, and keys and device need a downloaded dataset",
                hint="leave keys and device out, or leave out streaming",
            )
        return cast("BaseDatasetExperienceReplay", _opened(StreamedExperienceReplay, dataset, arguments))
    if streaming is not None and dataset.startswith("openx/"):
        arguments["streaming"] = streaming
    dataset, addressed = sources.split_address(dataset, selection or Selection())
    if addressed != Selection():
        arguments["selection"] = addressed
    source, name = sources.split_id(dataset)
    return _shown(_opened(dataset_class(source), name, arguments), keys, device, check_lock)


def _prepare_lock(
    lock: Path | str | bool | None, dataset: str | Path, arguments: dict[str, Any], *, streaming: bool | None
) -> Callable[[Manifest], None] | None:
    """Make the dataset of a lock if nothing is stored. Return the check of what is opened, or None without a lock."""
    settings = Settings.from_env()
    if lock is False or (lock is None and settings.lock is None):
        return None
    from datasets_rl.lockfile.opened import check_opened, find_locked, lock_of, refuse_other_reading

    opened = lock_of(lock, settings)
    if streaming:
        raise refuse_other_reading(opened, dataset, "streaming=True", "reads only parts of the dataset")
    if (download := arguments.get("download", True)) == "force":
        raise refuse_other_reading(opened, dataset, "download='force'", "replaces the dataset")
    locked = find_locked(opened, dataset, make=bool(download) and "root" not in arguments, settings=settings)
    if not isinstance(dataset, Path):
        arguments["download"] = False  # the dataset must neither be replaced nor grow
    return partial(check_opened, opened, locked)


def _without_none(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _shown(
    dataset: BaseDatasetExperienceReplay, keys: Any, device: Any, check: Callable[[Manifest], None] | None
) -> BaseDatasetExperienceReplay:
    if check is not None:
        check(dataset.manifest)
    if keys is not None:
        dataset.select(keys)
    return dataset if device is None else dataset.to(device)


def _check_folder(folder: Path, arguments: Mapping[str, Any], *, streaming: bool | None) -> None:
    if folder.is_file() and folder.suffix == ".toml":
        raise InvalidArgumentError(
            f"{folder} is a file, expected an id or a folder", hint=f'load_mixture("{folder}") opens a mixture'
        )
    if "root" in arguments or arguments.get("download") == "force":
        raise InvalidArgumentError(
            f"{folder} is a folder, which is opened in place, and root and download='force' need an id",
            hint="leave these arguments out, or give the id",
        )
    if streaming:
        raise InvalidArgumentError(f"{folder} is a folder, which is opened in place", hint="leave streaming out")


def _opened(cls: type[_Buffer], dataset: str, arguments: Mapping[str, Any]) -> _Buffer:
    """Return the buffer of a class, which must have the arguments."""
    # Without the id, and with the arguments that `load` itself adds.
    parameters = list(dict.fromkeys([*inspect.signature(cls).parameters, "keys", "device", "streaming", "lock"]))[1:]
    for name in arguments:
        if name not in parameters:
            similar = difflib.get_close_matches(name, parameters, n=3)
            raise InvalidArgumentError(
                f"{cls.__name__} has no argument {name!r}, expected {', '.join(parameters)}",
                hint=f"did you mean {', '.join(similar)}?" if similar else "",
            )
    return cls(dataset, **arguments)
