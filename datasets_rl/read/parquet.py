"""Reader of Parquet and Arrow files as numpy columns, in blocks of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.libraries import importing
from datasets_rl.read.ragged import Ragged
from datasets_rl.read.streams import AGAIN, refuse, unexpected_format

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

TableColumn: TypeAlias = "NDArray[Any] | list[str] | list[bytes] | Ragged"
"""Numbers [N], or [N, k, ...] for lists of fixed size, or N strings or byte strings, or ragged lists of both. Lists of structs
are strings, too: JSON, in which an empty cell is an empty list, and structs have no empty fields."""

_PARQUET_MAGIC = b"PAR1"
_ARROW_MAGIC = b"ARROW1"
_STREAM_MAGIC = b"\xff\xff\xff\xff"
"""First bytes of a stream of Arrow batches, as the package datasets saves tables."""
_RAY_TENSOR, _RAY_TENSORS = b"ray.data.arrow_tensor", b"ray.data.arrow_variable_shaped_tensor"


class TableFile:
    """Open Parquet or Arrow IPC file, depending on the first bytes. A context manager.

    Columns within structs have names with slashes: ``observation/position``.

    Raises:
        ConversionError: If the file has another format, or is truncated.
        MissingDependencyError: If pyarrow is not installed.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        with importing("pyarrow", "pyarrow", f"reading {self.path.name}"):
            import pyarrow as pa
        self._errors: tuple[type[BaseException], ...] = (pa.ArrowException, OSError, UnicodeDecodeError)
        with self.path.open("rb") as stream:
            head = stream.read(64)
        self._parquet = head.startswith(_PARQUET_MAGIC)
        self._is_stream = head.startswith(_STREAM_MAGIC)
        if not head.startswith((_PARQUET_MAGIC, _ARROW_MAGIC, _STREAM_MAGIC)):
            raise ConversionError(self.path.name, [unexpected_format(head, "a Parquet or Arrow file")], hint=AGAIN)
        with ExitStack() as closing:
            try:
                self._file: Any = closing.enter_context(self._open_file())
                schema = self._file.schema_arrow if self._parquet else self._file.schema
                self._group_ends = np.cumsum(self._group_rows(), dtype=np.int64)
                self.rows = int(self._group_ends[-1]) if len(self._group_ends) else 0
                leaves = {"/".join(path): (path, kind) for path, kind in _leaf_columns(schema, ())}
                self.columns: Mapping[str, pa.DataType] = {name: kind for name, (_, kind) in leaves.items()}
                # Names of columns may have slashes, too.
                self._paths = {name: path for name, (path, _) in leaves.items()}
                self.tensors: Mapping[str, tuple[int, ...]] = dict(_tensor_shapes(schema))
                """Shapes of the rows of the columns that are tensors, whose rows are read as flat lists."""
            except self._errors as error:
                raise ConversionError(self.path.name, [f"Arrow reports: {error}"], hint=AGAIN) from error
            self._closing = closing.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._closing.close()

    def blocks(
        self, names: Sequence[str], *, rows: int, start: int = 0, stop: int | None = None
    ) -> Iterator[dict[str, TableColumn]]:
        """Read columns in blocks. At most a row group, or a batch of an Arrow file, is in memory.

        Args:
            names: The columns.
            rows: Maximum number of rows of a block.
            start: First row. Row groups that end before the row are not read.
            stop: Row after the last row, by default the number of rows.

        Yields:
            The columns by name, in order. The values may be read-only views.

        Raises:
            ConversionError: If columns are missing, have empty cells, or cannot be decoded. The error names all columns
                of a block.
        """
        if missing := [name for name in names if name not in self.columns]:
            present = ", ".join(self.columns) or "none"
            raise ConversionError(self.path.name, [f"it has no column {', '.join(missing)}, only {present}"])
        stop = self.rows if stop is None else min(stop, self.rows)
        batches = self._batches(sorted({self._paths[name][0] for name in names}), rows, start, stop)
        while (batch := self._next_batch(batches, start)) is not None:
            yield self._block_from_batch(batch, names, start)
            start += batch.num_rows

    def _open_file(self) -> Any:
        import pyarrow as pa

        if not self._parquet:
            # Memory-mapped, so that only the requested columns are read.
            mapped = pa.memory_map(str(self.path))
            return _Batches(pa.ipc.open_stream(mapped)) if self._is_stream else pa.ipc.open_file(mapped)
        from pyarrow import parquet

        return parquet.ParquetFile(self.path, page_checksum_verification=True)

    def _batches(self, roots: Sequence[str], rows: int, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from `start` to `stop`."""
        ends = self._group_ends
        # The first group with a row after `start`, and the first group that begins at `stop` or later.
        first, last = np.searchsorted(ends, start, "right"), np.searchsorted(ends, stop, "left") + 1
        groups = range(int(first), min(int(last), len(ends))) if start < stop else range(0)
        at = int(ends[first - 1]) if first else 0
        for batch in self._group_batches(roots, rows, groups):
            low, high = max(start - at, 0), min(stop - at, batch.num_rows)
            at += batch.num_rows
            if low < high:
                yield batch.slice(low, high - low)

    def _group_batches(self, roots: Sequence[str], rows: int, groups: range) -> Iterator[pa.RecordBatch]:
        if self._parquet:
            yield from self._file.iter_batches(rows, row_groups=groups, columns=list(roots))
            return
        for number in groups:
            batch = self._file.get_batch(number).select(list(roots))
            batch.validate(full=True)  # an Arrow file has no checksums, and offsets may be invalid
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)

    def _group_rows(self) -> list[int]:
        """Return the number of rows of each row group, or of each batch of an Arrow file."""
        if self._parquet:
            described = self._file.metadata
            return [described.row_group(number).num_rows for number in range(described.num_row_groups)]
        return [self._file.get_batch(number).num_rows for number in range(self._file.num_record_batches)]

    def _next_batch(self, batches: Iterator[pa.RecordBatch], start: int) -> pa.RecordBatch | None:
        try:
            return next(batches, None)
        except self._errors as error:
            problem = f"the rows that begin at {start:,} cannot be decoded: {error}"
            raise ConversionError(self.path.name, [problem], hint=AGAIN) from error

    def _block_from_batch(self, batch: pa.RecordBatch, names: Sequence[str], start: int) -> dict[str, TableColumn]:
        problems: list[str] = []
        columns: dict[str, TableColumn] = {}
        for name in names:
            root, *path = self._paths[name]
            try:
                array = batch.column(root)
                for part in path:
                    _check_not_empty(array)
                    array = array.field(part)
                columns[name] = _json_texts(array) if _has_structs(array.type) else _column_from_arrow(array)
            except ValueError as error:
                problems.append(f"{name} rows {start:,} to {start + batch.num_rows - 1:,}: {error}")
        refuse(self.path.name, problems)
        return columns


class _Batches:
    """Batches of a memory-mapped stream, by number. A context manager."""

    def __init__(self, stream: Any) -> None:
        self.schema = stream.schema
        self._stream = stream
        self._batches = [*stream]
        self.num_record_batches = len(self._batches)

    def get_batch(self, number: int) -> pa.RecordBatch:
        """Return a batch, whose columns are views of the file."""
        return self._batches[number]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._batches = []
        self._stream.close()


def _leaf_columns(fields: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    """Yield the path and the type of each column, and of each field of structs."""
    import pyarrow as pa

    for field in fields:
        path = (*above, field.name)
        if pa.types.is_struct(field.type):
            yield from _leaf_columns(field.type, path)
        else:
            yield path, field.type


def _tensor_shapes(fields: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of a row of each column of tensors, as Arrow and Ray store them."""
    import pyarrow as pa

    for field in fields:
        metadata = field.metadata or {}
        if isinstance(field.type, pa.BaseExtensionType):
            if isinstance(shape := getattr(field.type, "shape", None), (list, tuple)):
                yield field.name, tuple(shape)
        elif metadata.get(b"ARROW:extension:name", b"").startswith(_RAY_TENSORS):
            raise ConversionError(field.name, ["the tensors have several shapes, expected tensors of a single shape"])
        elif metadata.get(b"ARROW:extension:name", b"").startswith(_RAY_TENSOR):
            try:
                shape = json.loads(metadata.get(b"ARROW:extension:metadata", b""))
            except (ValueError, RecursionError):
                shape = None
            if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
                raise ConversionError(
                    field.name, [f"the tensors have the shape {shape!r:.80}, expected a list of sizes"]
                )
            yield field.name, tuple(shape)


def _check_not_empty(array: pa.Array) -> None:
    if array.null_count:
        raise ValueError(f"{array.null_count:,} of {len(array):,} cells are empty, expected values")


def _column_from_arrow(array: pa.Array) -> TableColumn:
    import pyarrow as pa

    _check_not_empty(array)
    array = array.storage if isinstance(array.type, pa.BaseExtensionType) and hasattr(array.type, "shape") else array
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        inner = _column_from_arrow(array.flatten())
        if isinstance(inner, np.ndarray):
            return inner.reshape(len(array), kind.list_size, *inner.shape[1:])
        return Ragged(inner, np.full(len(array), kind.list_size, np.int64))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = np.diff(array.offsets.to_numpy()).astype(np.int64)
        return Ragged(_column_from_arrow(array.flatten()), lengths)
    if pa.types.is_dictionary(kind):
        return _column_from_arrow(array.dictionary_decode())
    if (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        return list(array.to_pylist())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return values
    raise ValueError(f"it has type {kind}, expected numbers, text, bytes, or lists of such values")


def _has_structs(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool((pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_struct(kind.value_type))


def _json_texts(array: pa.Array) -> list[str]:
    """Return the cells as JSON. Consecutive equal cells, which are the most, are converted at once."""
    if len(array) and (len(array) == 1 or array.slice(1).equals(array.slice(0, len(array) - 1))):
        structs = [{name: one for name, one in struct.items() if one is not None} for struct in array[0].as_py() or ()]
        return [json.dumps(structs, ensure_ascii=False)] * len(array)
    half = len(array) // 2
    return [*_json_texts(array.slice(0, half)), *_json_texts(array.slice(half))] if half else []
