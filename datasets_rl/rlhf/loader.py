"""The loader of tokenized datasets: texts are tokenized once, stored, and memory-mapped by every later call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from tensordict import TensorDict, TensorDictBase

from datasets_rl import disk
from datasets_rl.build.journal import Journal
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.preprocessing.digests import code_digest
from datasets_rl.progress import report
from datasets_rl.rlhf.stored import FORMAT_VERSION, TOKENS_FILE, TokenWriter, open_tokens, write_tokens
from datasets_rl.rlhf.texts import content_digest, load_texts, source_identity
from datasets_rl.rlhf.tokenizers import load_tokenizer, tokenizer_digest
from datasets_rl.settings import Settings

_BATCH_ROWS = 1000
"""Rows that are tokenized and committed at once: a commit takes a few milliseconds, tokenization some 100."""
_VALID = "valid_sample"


class TokenizedDatasetLoader:
    """Loader of a tokenized dataset, which tokenizes the texts once, and memory-maps the stored result.

    The result is stored in ``<root_dir>/<dataset>/<split>/<max_length>-<digest>``, where the digest identifies
    everything that affects the tokens: the dataset, the tokenizer, the recipe and the hook. With another tokenizer, the
    texts are tokenized again into another folder. If the process dies, the same call continues after the last batch.

    Args:
        split: Name of the split. A split with a name that starts with ``"valid"`` is cut to `valid_size` rows.
        max_length: Maximum number of tokens of a sequence, L.
        dataset_name: Name on the Hugging Face hub, or the path of a Parquet or JSON Lines file, or of a folder with
            files named after the split, such as ``train-00000.parquet`` or ``train.jsonl``.
        tokenizer_fn: Constructor of the recipe, such as `TensorDictTokenizer`. The constructor is called with the
            tokenizer, `max_length`, ``return_tensordict=False`` and, for a ragged dataset, ``padding=False``. The
            recipe maps a batch of rows to token ids by key. Rows with False under ``"valid_sample"`` are dropped.
        pre_tokenization_hook: Applied to the `datasets.Dataset` before tokenization. Returns another dataset.
        root_dir: Folder of the tokenized datasets. By default ``rlhf`` in the folder RLDS_HOME.
        from_disk: Whether `dataset_name` is a folder that `datasets.Dataset.save_to_disk` wrote.
        valid_size: Maximum number of rows of a validation split.
        num_workers: Number of processes that tokenize. The default is 1, because tokenizers written in Rust use all
            cores of the machine in a single process.
        tokenizer_class: Class of the tokenizer, with the method `from_pretrained`. By default transformers'
            AutoTokenizer.
        tokenizer_model_name: Name or folder of the tokenizer. By default ``"gpt2"``.
        ragged: Whether sequences are stored without padding.

    Raises:
        MissingDependencyError: If transformers is required and not installed.
        InvalidArgumentError: If there is no such tokenizer, or `max_length` is not an integer >= 1.
    """

    def __init__(
        self,
        split: str,
        max_length: int,
        dataset_name: str | Path,
        tokenizer_fn: Callable[..., Callable[[Mapping[str, Any]], Any]],
        pre_tokenization_hook: Callable[[Any], Any] | None = None,
        root_dir: str | Path | None = None,
        from_disk: bool = False,
        valid_size: int = 2000,
        num_workers: int | None = None,
        tokenizer_class: Any = None,
        tokenizer_model_name: str | Path | None = None,
        *,
        ragged: bool = False,
    ) -> None:
        if not isinstance(max_length, int) or max_length < 1:  # type: ignore[redundant-expr]  # callers may be untyped
            raise InvalidArgumentError(f"max_length is {max_length!r}, expected an integer >= 1")
        self.split = split
        self.max_length = max_length
        self.dataset_name = str(dataset_name)
        self.tokenizer_fn = tokenizer_fn
        self.pre_tokenization_hook = pre_tokenization_hook
        self.root_dir = root_dir
        self.from_disk = from_disk
        self.valid_size = valid_size
        self.num_workers = 1 if num_workers is None else num_workers
        self.ragged = ragged
        self.make_tokenizer(tokenizer_class=tokenizer_class, tokenizer_model_name=tokenizer_model_name)

    def make_tokenizer(self, *, tokenizer_class: Any, tokenizer_model_name: str | Path | None) -> None:
        """Load the tokenizer, `tokenizer`. The padding token is its end-of-sequence token."""
        self.tokenizer = load_tokenizer(tokenizer_class, tokenizer_model_name)

    def load(self) -> TensorDict:
        """Return the tokenized dataset, which is tokenized and stored first, unless stored.

        Returns:
            A memory-mapped TensorDict [N]: `input_ids` and `attention_mask`, int64 [N, L], what else the recipe
            returns, and the columns of the texts that have a number in each row. The sequences of a ragged dataset are
            nested tensors [N, j].

        Raises:
            MissingDependencyError: If the library datasets is required and not installed.
            InvalidArgumentError: If there is no such split or file, no row is left, or the recipe does not match the
                columns.
            ConversionError: If a local file is damaged.
            FetchError: If the hub does not serve the dataset.
            IntegrityError: If the stored files were changed.
            LockedError: If another process tokenizes the same dataset for more than an hour.
        """
        recipe = self._recipe()
        paths = self._paths(recipe)
        leftovers = (paths.work, paths.lock)
        if not (paths.folder / TOKENS_FILE).is_file() or any(path.exists() for path in leftovers):
            with disk.lock(paths.lock, str(paths.folder)):
                if not (paths.folder / TOKENS_FILE).is_file():
                    self._build(paths, recipe)
                _remove_leftovers(paths)
        return open_tokens(paths.folder)

    def _recipe(self) -> dict[str, Any]:
        """Return everything that the tokens depend on, a JSON value."""
        hook = self.pre_tokenization_hook
        return {
            "format_version": FORMAT_VERSION,
            "source": source_identity(self.dataset_name, self.split, from_disk=self.from_disk),
            "split": self.split,
            "rows": self.valid_size if self.split.startswith("valid") else None,
            "max_length": self.max_length,
            "ragged": self.ragged,
            "tokenizer": tokenizer_digest(self.tokenizer),
            "tokenizer_fn": code_digest(self.tokenizer_fn),
            "pre_tokenization_hook": None if hook is None else code_digest(hook),
        }

    def _paths(self, recipe: Mapping[str, Any]) -> _Paths:
        root = Settings.from_env().home / "rlhf" if self.root_dir is None else Path(self.root_dir)
        path = Path(self.dataset_name)
        names = map(_as_folder_name, ((path.resolve() if path.exists() else path).name, self.split))
        return _Paths(root.joinpath(*names, f"{self.max_length}-{_digest(recipe)[:12]}"), root)

    def _load_dataset(self, cache: Path) -> Any:
        """Return the rows to tokenize, a `datasets.Dataset`."""
        dataset = load_texts(self.dataset_name, self.split, from_disk=self.from_disk, cache=cache)
        if self.split.startswith("valid"):
            dataset = dataset.select(range(min(self.valid_size, len(dataset))))
        read = len(dataset)
        if self.pre_tokenization_hook is not None:
            dataset = self.pre_tokenization_hook(dataset)
        if not len(dataset):
            raise InvalidArgumentError(
                f"no row of {self.dataset_name}, split {self.split!r}, is left to tokenize: {read:,} rows were read",
                hint="check the split, and which rows the pre_tokenization_hook keeps" if read else "check the split",
            )
        return dataset

    def _build(self, paths: _Paths, recipe: Mapping[str, Any]) -> None:
        dataset = self._load_dataset(paths.work / "cache")
        content = content_digest(dataset)
        journal = Journal(paths.journal, _digest([recipe, content]))
        paths.build.mkdir(parents=True, exist_ok=True)
        journal.roll_back(paths.build)
        paths.build.mkdir(exist_ok=True)
        last: Mapping[str, Any] = journal.entries[-1] if journal.entries else {"commit": None, "read": 0}
        writer = TokenWriter(paths.build, ragged=self.ragged, commit=last["commit"])
        try:
            self._tokenize(dataset, writer, journal, last["read"], paths.work / "cache" / f"{content}.arrow")
            if not writer.rows:
                raise InvalidArgumentError(
                    f"no row of {self.dataset_name} is valid: all {len(dataset):,} have {self.max_length} tokens or more",
                    hint="use a larger max_length",
                )
            writer.close(recipe=recipe, content=content, pad_token_id=getattr(self.tokenizer, "pad_token_id", None))
        finally:
            writer.discard()
        disk.publish_folder(paths.build, paths.folder)

    def _tokenize(self, dataset: Any, writer: TokenWriter, journal: Journal, start: int, cache: Path) -> None:
        """Tokenize rows from `start` to the end, and commit each batch. Several processes write to `cache` first."""
        padding = {"padding": False} if self.ragged else {}
        tokenize = self.tokenizer_fn(self.tokenizer, max_length=self.max_length, return_tensordict=False, **padding)
        numbers = [name for name in dataset.column_names if _has_numbers(dataset, name)]
        tokenize = partial(_tokenized_columns, tokenize, numbers)
        rows = len(dataset)
        if self.num_workers > 1:
            dataset = dataset.map(
                tokenize,
                batched=True,
                batch_size=_BATCH_ROWS,
                num_proc=self.num_workers,
                remove_columns=dataset.column_names,
                cache_file_name=str(cache),
                desc="Tokenizing",
            )
            tokenize = dict
        show = Settings.from_env().progress
        with report(f"tokenizing {self.dataset_name}", rows, unit="rows", done=start, show=show) as progress:
            for first in range(start, rows, _BATCH_ROWS):
                batch = dataset[first : first + _BATCH_ROWS]
                _append_valid(writer, tokenize(batch))
                read = min(first + _BATCH_ROWS, rows)
                journal.append({"commit": writer.commit(), "read": read})
                progress(read - first)

    @staticmethod
    def dataset_to_tensordict(
        dataset: Any,
        data_dir: str | Path,
        prefix: str | Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        batch_dims: int = 1,
        valid_mask_key: str | None = None,
    ) -> TensorDict:
        """Store columns of numbers, and return the memory-mapped columns.

        Args:
            dataset: A TensorDict [N, ...], a `datasets.Dataset`, or a mapping from feature to values.
            data_dir: Folder for the data.
            prefix: Path of the data below `data_dir`, which is also the key in the result.
            features: Features to store, if `dataset` is not a TensorDict. By default the attribute `features`.
            batch_dims: Number of leading axes that are the batch axes of the data.
            valid_mask_key: Key of a mask, bool [N]. Rows with False are dropped.

        Returns:
            The stored data under the key `prefix`, or the data themselves without `prefix`.

        Raises:
            InvalidArgumentError: If the target folder has files of the user, or a feature does not hold numbers.
        """
        data = dataset if isinstance(dataset, TensorDictBase) else _features_of(dataset, features)
        names = (prefix,) if isinstance(prefix, str) else tuple(prefix or ())
        columns = {key: values.detach().cpu() for key, values in data.flatten_keys(".").items()}
        if valid_mask_key is not None and valid_mask_key in columns:
            mask = columns[valid_mask_key].bool()
            columns = {key: values[mask] for key, values in columns.items()}
        folder = Path(data_dir).absolute().joinpath(*names)
        _check_replaceable(folder)
        paths = _Paths(folder, folder.parent)
        with disk.lock(paths.lock, str(folder)):
            disk.remove_tree(paths.work)
            paths.build.mkdir(parents=True)
            write_tokens(paths.build, columns)
            disk.publish_folder(paths.build, folder)
            _remove_leftovers(paths)
        stored = open_tokens(folder).auto_batch_size_(batch_dims)
        return TensorDict({names: stored}, batch_size=[]) if names else stored


@dataclass(frozen=True)
class _Paths:
    """The folder of a tokenized dataset, and the hidden paths above during the build."""

    folder: Path
    root: Path
    """A parent folder, which has the hidden paths."""

    @property
    def _hidden(self) -> str:
        name = self.folder.relative_to(self.root).as_posix()
        return f".{hashlib.sha256(name.encode()).hexdigest()[:16]}"

    @property
    def work(self) -> Path:
        return self.root / f"{self._hidden}.work"

    @property
    def build(self) -> Path:
        return self.work / "build"

    @property
    def journal(self) -> Path:
        return self.work / "journal.jsonl"

    @property
    def lock(self) -> Path:
        return self.root / f"{self._hidden}.lock"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _as_folder_name(text: str) -> str:
    """Return a text as the name of a single visible folder."""
    name = quote(text, safe=" ") or "data"
    return f"%2E{name[1:]}" if name.startswith(".") else name


def _remove_leftovers(paths: _Paths) -> None:
    """Delete the unfinished files of a dataset that is complete."""
    disk.remove_tree(paths.work)


def _has_numbers(dataset: Any, name: str) -> bool:
    """Return whether a column has a number or a bool in each row."""
    dtype = str(getattr(dataset.features[name], "dtype", ""))
    if not dtype.startswith(("bool", "int", "uint", "float")):
        return False
    values = dataset.select_columns(name).with_format("arrow")[:].column(name)
    return not values.null_count


def _tokenized_columns(tokenize: Callable[[Any], Any], numbers: Sequence[str], batch: Mapping[str, Any]) -> Any:
    """Return the columns of a tokenized batch, and the columns of the batch that hold numbers."""
    return {name: batch[name] for name in numbers} | dict(tokenize(batch).items())


def _append_valid(writer: TokenWriter, columns: dict[str, Any]) -> None:
    """Append the rows of a batch that are valid."""
    valid = columns.pop(_VALID, None)
    if valid is not None:
        rows = [row for row, keep in enumerate(valid) if keep]
        columns = {key: [values[row] for row in rows] for key, values in columns.items()}
    if len(next(iter(columns.values()))):
        writer.append(columns)


def _features_of(dataset: Any, features: Sequence[str] | None) -> TensorDict:
    names = dataset.features if features is None else features
    columns = {}
    for name in names:
        values = dataset[name]
        try:
            columns[name] = torch.as_tensor(values if hasattr(values, "shape") else list(values))
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"the feature {name!r} does not hold numbers of the same shape: {error}"
            ) from error
    return TensorDict(columns, batch_size=[])


def _check_replaceable(folder: Path) -> None:
    """Check that a folder is new, empty, or a dataset of this module and nothing else."""
    disk.check_outside_versions(folder)
    present = list(folder.iterdir()) if folder.exists() else []
    is_dataset = folder / TOKENS_FILE in present
    if present and not (is_dataset and all(path.name == TOKENS_FILE or path.suffix == ".npy" for path in present)):
        raise InvalidArgumentError(
            f"{folder} has files that are not a tokenized dataset", hint="choose another data_dir or prefix"
        )
