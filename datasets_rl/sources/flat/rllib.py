"""RLlib's batches: lines of JSON, each with the columns of some rows, as ``ray.rllib.offline.JsonWriter`` writes them.

    {"type": "SampleBatch", "obs": "BCJNGG...", "actions": [0, 1], "rewards": [1.0, 1.0], "eps_id": [7, 7], "t": [0, 1]}

A column is a list, or a packed array: a pickle, compressed by lz4, as base64. Batches are fragments of episodes, and the
fragments of several environments may alternate.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError, join_names
from datasets_rl.libraries import importing
from datasets_rl.read.pickles import load
from datasets_rl.read.streams import ITEMS_MAX
from datasets_rl.sources.flat.json_tables import LINE_MAX_BYTES, object_of, opened
from datasets_rl.sources.flat.text_tables import is_exact, leaves_of
from datasets_rl.sources.flat.trees import ValuesFile, as_array

_SINGLE, _SEVERAL = "SampleBatch", "MultiAgentBatch"
BATCHES = (_SINGLE, _SEVERAL)
"""Types of a batch."""
_EPISODE, _STEP, _AGENT = "eps_id", "t", "agent_index"
OTHERS = {
    *("t", "unroll_id", "agent_index", "agent_id", "module_id", "infos", "batch_indexes", "weights_seq_no", "weights"),
    *("prev_actions", "prev_rewards", "action_prob", "action_logp", "action_dist_inputs", "vf_preds"),
    *("advantages", "value_targets"),
}
"""Columns that are neither fields nor marks."""
_ARRAYS_MAX_BYTES = 4 << 30
_SPLIT = "write a file for each policy: policy_batches[NAME] of each line, with the type SampleBatch"


def unpack(text: str, name: str, most: int) -> Any:
    """Return the value of a packed array: a pickle, compressed by lz4, as base64.

    Args:
        text: The packed array.
        name: Name of the array in errors.
        most: Maximum number of bytes of the pickle.

    Raises:
        ConversionError: If the text is not a packed array of plain data, or the pickle is larger.
        MissingDependencyError: If pyarrow is not installed.
    """
    with importing("pyarrow", "pyarrow", f"reading packed arrays of {name}"):
        import pyarrow as pa
    try:
        stream = pa.CompressedInputStream(pa.BufferReader(base64.b64decode(text, validate=True)), "lz4")
        data = stream.read(most + 1)
    except (binascii.Error, ValueError, OSError, pa.ArrowException) as error:
        raise ConversionError(name, [f"the packed array is damaged: {error}"]) from error
    if len(data) > most:
        raise ConversionError(name, [f"the packed array has more than {most:,} bytes"])
    return load(data, name)


class RllibFile(ValuesFile):
    """Open file of RLlib's batches. The columns are in memory, with the rows of each episode together.

    Raises:
        ConversionError: If a batch is not valid, has other columns than the first batch, or has several agents, or if
            ``eps_id`` and ``t`` do not order the rows.
        MissingDependencyError: If an array is packed, and pyarrow is not installed.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self._left = _ARRAYS_MAX_BYTES
        parts: dict[str, list[NDArray[Any]]] = {}
        with opened(path, name) as stream:
            for number, line in enumerate(iter(lambda: stream.readline(LINE_MAX_BYTES), b"")):
                if line.strip() and (columns := self._columns(object_of(line, number, name), number)):
                    if parts and parts.keys() != columns.keys():
                        other = join_names(sorted(parts.keys() ^ columns.keys()), ITEMS_MAX)
                        raise self._error(number, f"differs from the first batch in {other}, expected the same columns")
                    for column, values in columns.items():
                        parts.setdefault(column, []).append(values)
        joined = {column: self._joined(column, batches) for column, batches in parts.items()}
        super().__init__(self._in_order(joined), name)
        self.optional = [column for column in self.arrays if column.partition("/")[0] in OTHERS]

    def _columns(self, batch: Mapping[str, Any], number: int) -> dict[str, NDArray[Any]]:
        """Return the columns of a batch, [n, ...] each."""
        if batch.get("type") == _SEVERAL:
            policies = batch.get("policy_batches")
            if not isinstance(policies, dict) or len(policies) != 1:
                names = join_names([*policies], ITEMS_MAX) if isinstance(policies, dict) else "no policies"
                raise self._error(number, f"has the policies {names}, expected the batch of one policy", _SPLIT)
            (batch,) = policies.values()
        elif batch.get("type") != _SINGLE:
            raise self._error(number, f"has the type {batch.get('type')!r}, expected one of {', '.join(BATCHES)}")
        columns: dict[str, NDArray[Any]] = {}
        for column, value in batch.items():
            if column in {"type", "count"}:
                continue
            unpacked = self._unpacked(value, f"{self.name}: {column} in line {number + 1:,}")
            leaves = leaves_of(unpacked, f"{column}/") if isinstance(unpacked, dict) else [(column, unpacked)]
            columns |= {leaf: as_array(values) for leaf, values in leaves}
        rows = {column: len(values) if values.ndim else -1 for column, values in columns.items()}
        if len(set(rows.values())) != 1 or -1 in rows.values():
            stated = ", ".join(f"{column} {list(values.shape)}" for column, values in columns.items())
            raise self._error(number, f"has the columns {stated}, expected equal numbers of rows")
        if not any(rows.values()):
            return {}
        self._left -= sum(values.nbytes for values in columns.values())
        if self._left < 0:
            problem = f"brings the arrays to more than {_ARRAYS_MAX_BYTES:,} bytes, which would not fit into memory"
            raise self._error(number, problem, "split the file between episodes, such as with `split -l`")
        return columns

    def _unpacked(self, value: Any, name: str) -> Any:
        """Return a value, which may be packed."""
        return unpack(value, name, self._left) if isinstance(value, str) else value

    def _joined(self, column: str, parts: list[NDArray[Any]]) -> NDArray[Any]:
        if len({part.shape[1:] for part in parts}) > 1:
            shapes = join_names(sorted({str(list(part.shape[1:])) for part in parts}), ITEMS_MAX)
            raise ConversionError(self.name, [f"{column} has rows of the shapes {shapes}, expected a single shape"])
        joined = np.concatenate(parts)
        if joined.dtype.kind == "f" and not all(part.dtype.kind == "f" or is_exact(part) for part in parts):
            raise ConversionError(self.name, [f"{column} has integers that float64 does not hold exactly"])
        return joined

    def _in_order(self, values: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the columns with the rows of each episode together, in the order of the steps."""
        if _EPISODE not in values:
            return values
        _, firsts, codes = np.unique(values[_EPISODE], return_index=True, return_inverse=True)
        codes = np.argsort(np.argsort(firsts))[codes.reshape(-1)]  # in the order of the first rows
        order = np.argsort(codes, kind="stable")
        is_ordered = bool((order == np.arange(len(order))).all())
        within = np.diff(codes[order]) == 0
        problems = [*self._order_problems(values, order, within, is_ordered=is_ordered)]
        if problems:
            raise ConversionError(self.name, problems)
        self.decisions = {"rows-of-episodes-joined": 0 if is_ordered else int((order != np.arange(len(order))).sum())}
        if values[_EPISODE].dtype.kind == "U":
            values = {**values, _EPISODE: codes}
        values = {column: rows for column, rows in values.items() if column != _STEP}  # which the order says
        return values if is_ordered else {column: rows[order] for column, rows in values.items()}

    def _order_problems(
        self, values: Mapping[str, NDArray[Any]], order: NDArray[Any], within: NDArray[Any], *, is_ordered: bool
    ) -> Iterator[str]:
        """Yield what contradicts an order of the rows. `within` is whether a row and the next one are in an episode."""
        for column, step in ((_AGENT, 0), (_STEP, 1)):
            if column not in values or values[column].dtype.kind not in "iu":
                continue
            rows = values[column][order]
            wrong = np.flatnonzero(within & (np.diff(rows) != step))
            if len(wrong):
                row = wrong[0]
                at = f"{column} is {rows[row + 1]} after {rows[row]} in the episode {values[_EPISODE][order[row]]}"
                yield f"{at}, expected {'consecutive steps' if step else 'a single agent'} ({len(wrong):,} such rows)"
        if not is_ordered and _STEP not in values:
            yield f"the rows of episodes alternate, and no column {_STEP} states their order"

    def _error(self, number: int, problem: str, hint: str = "") -> ConversionError:
        return ConversionError(self.name, [f"line {number + 1:,} {problem}"], hint=hint)
