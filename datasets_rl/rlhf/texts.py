"""Tables of texts: datasets of the Hugging Face hub, of `save_to_disk`, and local Parquet and JSON Lines files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets_rl.errors import ConversionError, FetchError, InvalidArgumentError, MissingDependencyError, OfflineError
from datasets_rl.libraries import importing
from datasets_rl.settings import Settings

_FORMATS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".ndjson": "json"}
_HASHED_ROWS = 10_000
_OLDEST_LIBRARY = (5, 2)


def load_texts(dataset_name: str, split: str, *, from_disk: bool, cache: Path) -> Any:
    """Open a split of a dataset of texts.

    Code of a repository is never run, and pickles are never loaded: the library datasets supports neither since 5.2.

    Args:
        dataset_name: A name on the hub, or the path of a file or a folder.
        split: Name of the split, which may have a slice: ``"train[:1000]"``.
        from_disk: Whether `datasets.Dataset.save_to_disk` wrote the folder.
        cache: Folder for the converted local files, which must exist as long as the result is used.

    Returns:
        A `datasets.Dataset`.

    Raises:
        MissingDependencyError: If the library datasets is not installed.
        InvalidArgumentError: If there are no such files, or no such split.
        ConversionError: If a local file is damaged.
        FetchError: If the hub does not serve the dataset. `OfflineError` if RLDS_OFFLINE forbids requests.
    """
    datasets = _library(dataset_name)
    if from_disk:
        return _saved_split(datasets.load_from_disk(dataset_name), dataset_name, split)
    if Path(dataset_name).exists():
        files = _local_files(Path(dataset_name), split)
        try:
            return datasets.load_dataset(
                _FORMATS[files[0].suffix],
                data_files={split.partition("[")[0]: [str(file) for file in files]},
                split=split,
                cache_dir=str(cache),
            )
        except datasets.exceptions.DatasetsError as error:
            raise ConversionError(dataset_name, [str(error.__cause__ or error)]) from error
    if Settings.from_env().offline and not datasets.config.HF_HUB_OFFLINE:
        raise OfflineError(
            f"the split {split!r} of {dataset_name!r}",
            hint="unset RLDS_OFFLINE, or also set HF_HUB_OFFLINE=1, which reads the cache of the Hugging Face hub",
        )
    try:
        return datasets.load_dataset(dataset_name, split=split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise FetchError(
            f"the split {split!r} of {dataset_name!r}",
            [("Hugging Face hub", str(error))],
            hint="check the name and the split, or give the path of a local Parquet or JSON Lines file",
        ) from error


def _library(dataset_name: str) -> Any:
    """Import the library datasets, in a version that runs no code of repositories and loads no pickles."""
    purpose = f"the dataset {dataset_name!r}"
    with importing("datasets", "rlhf", purpose):
        import datasets
    if tuple(map(int, datasets.__version__.split(".")[:2])) < _OLDEST_LIBRARY:
        raise MissingDependencyError("datasets 5.2 or newer", "rlhf", purpose)
    return datasets


def _saved_split(saved: Any, dataset_name: str, split: str) -> Any:
    if not isinstance(saved, Mapping):
        return saved
    if split not in saved:
        raise InvalidArgumentError(f"{dataset_name} has no split {split!r}, expected {', '.join(map(str, saved))}")
    return saved[split]


def _local_files(path: Path, split: str) -> list[Path]:
    """Return the files of a split: the path itself, or the files of a folder that begin with the name of the split."""
    base = split.partition("[")[0]
    if path.is_file():
        files = [path]
    else:
        files = sorted(file for file in path.glob(f"{base}*") if file.is_file() and file.suffix in _FORMATS)
        if len({_FORMATS[file.suffix] for file in files}) != 1:
            present = ", ".join(sorted(file.name for file in path.iterdir())[:10]) or "no files"
            raise InvalidArgumentError(
                f"{path} has {len(files)} files of the split {base!r} in Parquet or JSON Lines, expected at least 1, "
                f"all in the same format, and the folder has {present}",
                hint=f"name the files of the split {base}*.parquet or {base}*.jsonl, or give the path of a file",
            )
    if files[0].suffix not in _FORMATS:
        raise InvalidArgumentError(
            f"{path} is not a file of texts, expected the suffix {', '.join(_FORMATS)}",
            hint="convert the file to JSON Lines, with an object with the texts per line",
        )
    return files


def source_identity(dataset_name: str, split: str, *, from_disk: bool) -> Any:
    """Return the identity of a dataset of texts, a JSON value, without a read: of files, size and time of change.

    Raises:
        InvalidArgumentError: If there are no such files.
    """
    path = Path(dataset_name)
    if not from_disk and not path.exists():
        return {"hub": dataset_name}
    if from_disk and not path.is_dir():
        raise InvalidArgumentError(
            f"{path} is not a folder, expected a folder from datasets.Dataset.save_to_disk",
            hint="name a dataset of the hub, or local files, without from_disk",
        )
    files = sorted(file for file in path.rglob("*") if file.is_file()) if from_disk else _local_files(path, split)
    states = [(file, file.stat()) for file in files]
    return {
        "path": str(path.resolve()),
        "from_disk": from_disk,
        "files": [[str(file.relative_to(path)), state.st_size, state.st_mtime_ns] for file, state in states],
    }


def content_digest(dataset: Any) -> str:
    """Return a digest of all rows of a `datasets.Dataset`, in blocks of rows."""
    digest = hashlib.sha256()
    table = dataset.with_format("arrow")
    for start in range(0, len(dataset), _HASHED_ROWS):
        for batch in table[start : start + _HASHED_ROWS].combine_chunks().to_batches():
            digest.update(batch.serialize())
    return digest.hexdigest()
