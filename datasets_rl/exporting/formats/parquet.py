"""Two Parquet tables: a row per step, with the keys of TED as columns, and a row per episode.

steps.parquet       observation  action  next.reward  next.terminated  next.truncated  episode     [N]
episodes.parquet    length  final_known  final.observation  source                                 [E]
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from datasets_rl.exporting.base import ExportFormat
from datasets_rl.exporting.content import Content, column_of, pixels, vocabulary_list
from datasets_rl.exporting.described import write_description
from datasets_rl.exporting.images import encode_images
from datasets_rl.format.schema import Field
from datasets_rl.progress import Report
from datasets_rl.ted.episode import EncodedImages
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, dotted_name

if TYPE_CHECKING:
    import pyarrow as pa

_SCALARS = frozenset({NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED})


class Parquet(ExportFormat):
    """A folder with two Parquet tables. Images stay encoded, in a column of byte strings."""

    name = "parquet"
    title = "a folder with Parquet tables of the steps and the episodes"
    library = "pyarrow"
    extra = "pyarrow"

    @override
    def write(self, content: Content, target: Path, progress: Report) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        steps = pa.schema(
            [*((dotted_name(field.key), column_type(field)) for field in content.fields), ("episode", pa.int64())]
        )
        finals = [(f"final.{dotted_name(field.key)}", column_type(field)) for field in content.states]
        metadata = {name: content.metadata(name) for name in content.metadata_names}
        known = {"length": content.lengths, "final_known": content.known, **metadata}
        episodes = pa.schema([*((name, pa.from_numpy_dtype(values.dtype)) for name, values in known.items()), *finals])
        texts = [dotted_name(field.key) for field in content.fields if field.text]
        first = 0
        with (
            parquet.ParquetWriter(target / "steps.parquet", steps, use_dictionary=texts or False) as rows,
            parquet.ParquetWriter(target / "episodes.parquet", episodes) as ends,
        ):
            for batch in content.batches():
                stop = first + len(batch)
                columns = [_column(batch, field, column_of(batch, field)) for field in content.fields]
                numbers = np.repeat(np.arange(first, stop), batch.lengths)
                rows.write_table(pa.table([*columns, pa.array(numbers)], schema=steps), batch.count)
                own = [pa.array(values[first:stop]) for values in known.values()]
                last = [_column(batch, field, batch.final_states[field.key]) for field in content.states]
                ends.write_table(pa.table([*own, *last], schema=episodes))
                first = stop
                progress(batch.count)
        marks = {
            "by": "column",
            "array": "episode",
            "table": "episodes.parquet",
            "final": "episodes/final.{}",
            "final_known": "episodes/final_known",
        }
        write_description(target, content, "parquet", "steps.parquet", marks, ".")


def column_type(field: Field) -> pa.DataType:
    """Return the Arrow type of a field: nested lists of fixed size for arrays, bytes for encoded images."""
    import pyarrow as pa

    if field.image_form.holds_files:
        return pa.binary()
    if field.text:
        return pa.string()
    kind = pa.from_numpy_dtype(field.read_dtype)
    for size in reversed(() if field.key in _SCALARS else field.shape):
        kind = pa.list_(kind, size)
    return kind


def _column(batch: EpisodeBatch, field: Field, values: Any) -> pa.Array:
    import pyarrow as pa

    if isinstance(values, EncodedImages):
        return pa.array(encode_images(values), pa.binary())
    if field.text:
        return pa.array(vocabulary_list(batch, field.key, values), pa.string())
    return arrow_array(pixels(values), column_type(field))


def arrow_array(values: Any, kind: pa.DataType) -> pa.Array:
    """Return values, [N, ...], as an Arrow array of nested lists of fixed size, without a copy per row."""
    import pyarrow as pa

    sizes = []
    while pa.types.is_fixed_size_list(kind):
        sizes.append(kind.list_size)
        kind = kind.value_type
    array = pa.array(np.ascontiguousarray(values).reshape(-1), kind)
    for size in reversed(sizes):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
