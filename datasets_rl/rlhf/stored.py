"""Tokenized datasets on disk: a .npy file per field, and tokens.json, which is written last.

    <folder>/tokens.json           fields, number of sequences N, files with digests, and the source and the arguments
    <folder>/<field>.npy           padded: [N, L] for sequences, [N] for numbers
    <folder>/<field>.npy           ragged: int32 [sum of lengths] for sequences, [N] for numbers
    <folder>/ends.npy              ragged: int64 [N], the offset after the last token of each sequence

        input_ids.npy   | sequence 0 | sequence 1       | sequence 2 |
        ends.npy                     ^ 0                ^ 1          ^ 2

A ragged dataset stores no attention mask, because every stored token is real.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor

from datasets_rl import disk
from datasets_rl.errors import IntegrityError, InvalidArgumentError, Remedy
from datasets_rl.format.npy import NpyStream, copy_on_write, map_npy

TOKENS_FILE = "tokens.json"
FORMAT = "datasets-rl/tokens"
FORMAT_VERSION = 1
_ENDS = "ends"
_MASK = "attention_mask"
_PADDED_KEYS = frozenset({"input_ids", "labels"})
"""The fields that are padded with the padding token. All others are padded with 0."""


@dataclass(frozen=True)
class TokenField:
    """A field of a tokenized dataset."""

    key: str
    """The key, for a nested key with dots."""
    dtype: str
    """numpy's name of the stored dtype."""
    shape: tuple[int, ...]
    """Shape of a row, or of a token of a ragged field."""
    ragged: bool = False
    """Whether a row has as many values as the sequence has tokens."""

    @property
    def file(self) -> str:
        """The name of the file."""
        return f"{quote(self.key, safe=' ')}.npy"


class TokenWriter:
    """Writer of a tokenized dataset into a folder, in batches.

    Args:
        folder: An empty folder, or that of `commit`.
        ragged: Whether sequences are stored without padding.
        commit: The last result of `commit` of an earlier process, after which the writer continues.

    Raises:
        IntegrityError: If the folder does not have the committed rows.
    """

    def __init__(self, folder: Path, *, ragged: bool = False, commit: Mapping[str, Any] | None = None) -> None:
        self._folder = folder
        self._ragged = ragged
        self._fields: list[TokenField] = []
        self._streams: dict[str, NpyStream] = {}
        self.rows = 0
        self._tokens = 0
        if commit is not None:
            self.rows, self._tokens = commit["rows"], commit["tokens"]
            self._open([TokenField(**{**field, "shape": tuple(field["shape"])}) for field in commit["fields"]])

    def _open(self, fields: Sequence[TokenField]) -> None:
        self._fields = list(fields)
        for field in fields:
            written = self._tokens if field.ragged else self.rows
            self._streams[field.key] = NpyStream(
                self._folder / field.file, np.dtype(field.dtype), field.shape, written=written or None
            )

    def append(self, columns: Mapping[str, Any]) -> None:
        """Append n rows.

        Args:
            columns: By key, n numbers, n sequences, or an array or tensor [n, ...].

        Raises:
            InvalidArgumentError: If the sequences have different lengths in a padded dataset, a column has another
                dtype or shape than before, or the columns have different numbers of rows.
        """
        arrays = _ragged_arrays(columns) if self._ragged else _padded_arrays(columns)
        ragged = set() if not self._ragged else {key for key in arrays if _is_sequence(columns.get(key))}
        rows = len(next(array for key, array in arrays.items() if key not in ragged))
        fields = [TokenField(key, array.dtype.str, array.shape[1:], key in ragged) for key, array in arrays.items()]
        if not self._fields:
            self._open(fields)
        counts = {key: len(array) for key, array in arrays.items() if key not in ragged}
        where, problems = f"rows {self.rows:,} to {self.rows + rows - 1:,}", []
        if fields != self._fields:
            problems.append(f"have the fields {_field_text(fields)}, expected {_field_text(self._fields)}")
        if len(set(counts.values())) > 1:
            lengths = ", ".join(f"{count:,} of {key}" for key, count in counts.items())
            problems.append(f"have {lengths}, expected the same number of rows of each column")
        if problems:
            raise InvalidArgumentError(f"{where} {', and '.join(problems)}")
        for key, array in arrays.items():
            # The offsets of a batch start at 0.
            self._streams[key].append(array + self._tokens if key == _ENDS and ragged else array)
        self.rows += rows
        self._tokens += int(arrays[_ENDS][-1]) if ragged and rows else 0

    def commit(self) -> Mapping[str, Any]:
        """Flush all rows to the disk, and return the state from which another process can continue, as a JSON value."""
        files = {field.file: self._streams[field.key].flush(sync=True) for field in self._fields}
        fields = [asdict(field) for field in self._fields]
        return {"files": files, "fields": fields, "rows": self.rows, "tokens": self._tokens}

    def close(self, **recorded: Any) -> None:
        """Complete the files and write tokens.json, with these further entries."""
        files = [asdict(self._streams[field.key].close()) for field in self._fields]
        disk.write_json(
            self._folder / TOKENS_FILE,
            {
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                "rows": self.rows,
                "ragged": self._ragged,
                "fields": [asdict(field) for field in self._fields],
                "files": files,
                **recorded,
            },
        )

    def discard(self) -> None:
        """Close the files without completing the headers."""
        for stream in self._streams.values():
            stream.discard()


def _field_text(fields: Sequence[TokenField]) -> str:
    return ", ".join(f"{field.key} {field.dtype} {list(field.shape)}" for field in fields)


def _is_sequence(column: Any) -> bool:
    return column is not None and len(column) > 0 and np.ndim(column[0]) == 1


def _padded_arrays(columns: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    arrays = {}
    for key, column in columns.items():
        try:
            array = np.asarray(column)
        except ValueError as error:
            raise InvalidArgumentError(
                f"{key} is not an array: {error}",
                hint="pad the sequences to the same length, or store them as a ragged dataset",
            ) from error
        if array.dtype.kind not in "biuf":
            raise InvalidArgumentError(f"{key} holds {array.dtype}, expected numbers")
        # Python's floats become torch's default floats.
        arrays[key] = array.astype(np.float32) if isinstance(column, list) and array.dtype == np.float64 else array
    return arrays


def _ragged_arrays(columns: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the sequences without padding, joined, with their `ends`, and the other columns unchanged."""
    sequences = {key: column for key, column in columns.items() if _is_sequence(column)}
    if "input_ids" not in sequences:
        raise InvalidArgumentError(f"the columns are {', '.join(columns)}, expected sequences under 'input_ids'")
    masks = sequences.pop(_MASK, None)
    lengths = [len(row) for row in sequences["input_ids"]]
    real = np.ones(sum(lengths), np.bool_) if masks is None else np.concatenate(masks).astype(np.bool_)
    starts = np.cumsum([0, *lengths])
    kept = np.append(0, np.cumsum(real))[starts]
    arrays: dict[str, NDArray[Any]] = {
        key: np.concatenate([np.asarray(row, np.int32) for row in rows])[real] for key, rows in sequences.items()
    }
    arrays[_ENDS] = kept[1:].astype(np.int64)
    return arrays | _padded_arrays({key: column for key, column in columns.items() if not _is_sequence(column)})


def write_tokens(folder: Path, columns: Mapping[str, Any], **recorded: Any) -> None:
    """Write a padded tokenized dataset of columns that are in memory into an empty folder."""
    writer = TokenWriter(folder)
    try:
        writer.append(columns)
        writer.close(**recorded)
    finally:
        writer.discard()


def open_tokens(folder: Path) -> TensorDict:
    """Memory-map a tokenized dataset.

    Writing to the tensors changes memory of this process, and never the files.

    Args:
        folder: The folder with tokens.json.

    Returns:
        A TensorDict [N] of tensors [N, ...]. The sequences of a ragged dataset are nested tensors [N, j] (layout
        jagged) of int32, and the attention mask is a nested tensor of ones, which takes no memory.

    Raises:
        IntegrityError: If the files differ from the description in tokens.json.
    """
    path = folder / TOKENS_FILE
    try:
        document = json.loads(path.read_bytes())
        rows, ragged = int(document["rows"]), bool(document["ragged"])
        fields = [TokenField(**{**field, "shape": tuple(field["shape"])}) for field in document["fields"]]
        sizes = {file["path"]: file["bytes"] for file in document["files"]}
        version = (document["format"], document["format_version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"the file cannot be read: {error!r}") from error
    if version != (FORMAT, FORMAT_VERSION):
        raise _damaged(path, f"its format is {version}, expected {(FORMAT, FORMAT_VERSION)}")
    arrays = {field.key: _mapped(folder, field, rows, sizes.get(field.file)) for field in fields}
    if not ragged:
        return _tree(arrays, rows)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), arrays.pop(_ENDS)])
    count = int(offsets[-1])
    sequences = {field.key for field in fields if field.ragged}
    if any(len(arrays[key]) != count for key in sequences):
        raise _damaged(path, f"the sequences do not have the {count:,} tokens that {_ENDS}.npy states")
    nested = {
        key: torch.nested.nested_tensor_from_jagged(value, offsets) if key in sequences else value
        for key, value in arrays.items()
    }
    nested[_MASK] = torch.nested.nested_tensor_from_jagged(torch.ones((), dtype=torch.int64).expand(count), offsets)
    return _tree(nested, rows)


def _mapped(folder: Path, field: TokenField, rows: int, size: int | None) -> Tensor:
    path = folder / field.file
    if not path.is_file() or path.stat().st_size != size:
        raise _damaged(path, f"expected a file of {size} bytes")
    array = map_npy(path)
    if (
        array.dtype != np.dtype(field.dtype)
        or array.shape[1:] != field.shape
        or not (field.ragged or len(array) == rows)
    ):
        raise _damaged(
            path, f"the array is {array.dtype} {list(array.shape)}, expected {_field_text([field])}, {rows:,} rows"
        )
    return torch.from_numpy(copy_on_write(path, array))


def _damaged(path: Path, problem: str) -> IntegrityError:
    return IntegrityError(
        str(path),
        [problem],
        hint=Remedy("delete {}, and make the same call again to tokenize the dataset again", path.parent),
    )


def _tree(tensors: Mapping[str, Tensor], rows: int) -> TensorDict:
    tree = TensorDict({}, batch_size=[rows])
    for key, tensor in sorted(tensors.items()):
        tree.set(tuple(key.split(".")), tensor)
    return tree


def rows_between(data: TensorDict, start: int, stop: int) -> TensorDict:
    """Return some rows of an opened dataset, [stop - start], without copying any token."""

    def part(values: Any) -> Any:
        if not values.is_nested:
            return values[start:stop]
        offsets = values.offsets()[start : stop + 1]
        return torch.nested.nested_tensor_from_jagged(values.values()[offsets[0] : offsets[-1]], offsets - offsets[0])

    rows: TensorDict = data.apply(part, batch_size=[stop - start])  # type: ignore[assignment]  # None only with out=
    return rows


def pad_rows(data: Any, rows: Tensor, pad_token_id: int) -> Any:
    """Gather rows of a ragged dataset, and pad the sequences on the right to the longest of these sequences.

    Args:
        data: A TensorDict or tensorclass [N] with nested tensors.
        rows: Rows, int64 [B].
        pad_token_id: The padding of `input_ids` and `labels`. Other fields are padded with 0.

    Returns:
        A batch [B] of dense tensors. Sequences are int64 [B, longest of the batch].
    """

    def gather(key: Any, values: Any) -> Any:
        if not values.is_nested:
            return values.index_select(0, rows)
        offsets, flat = values.offsets(), values.values()
        starts = offsets[rows].unsqueeze(1)
        lengths = offsets[rows + 1].unsqueeze(1) - starts
        columns = torch.arange(int(lengths.max()))
        real = columns < lengths
        places = (starts + columns).clamp_(max=max(len(flat) - 1, 0))
        # index_select uses one thread for so few elements. Indexing uses several threads, which wait for each other.
        tokens = flat.index_select(0, places.view(-1)).view(places.shape).to(torch.int64)
        name = key[-1] if isinstance(key, tuple) else key
        return tokens.masked_fill_(~real, pad_token_id if name in _PADDED_KEYS else 0)

    return data.named_apply(gather, nested_keys=True, batch_size=rows.shape)
