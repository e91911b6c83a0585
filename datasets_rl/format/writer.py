"""Episodes -> the files of a dataset, in blocks, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl import disk
from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.format.manifest import StoredFile, lacking_fields
from datasets_rl.format.npy import NpyStream, begun_blocks, file_sha256
from datasets_rl.format.schema import ROWS_FILE, Column, Field, Schema
from datasets_rl.read.images import header
from datasets_rl.ted.episode import DeferredStates, EncodedImages, Episode, TextStates, Values, known_only
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import (
    EPISODE,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    Key,
    dotted,
)
from datasets_rl.ted.stats import Moments, has_statistics, of_episodes
from datasets_rl.ted.steps import split_states
from datasets_rl.ted.table import EPISODE_DTYPE, EpisodeTable

__all__ = ["EPISODES_FILE", "Commit", "DatasetWriter", "Written"]

Commit = Mapping[str, Any]
"""What `DatasetWriter.commit` returns: a JSON value."""

EPISODES_FILE = "episodes.npy"
_BLOCK_BYTES = 2 << 20  # what the second-level cache holds: the passes over a batch cost half as much
_BLOCK_STEPS = 1 << 16
_COPY_BYTES = 256 << 10  # what a core keeps at hand: to copy a file by larger blocks takes nearly twice as long
_FLAG = np.dtype(np.bool_)
_END = np.dtype(np.int64)
_OWN = (Column(NEXT_DONE, _FLAG, (1,)), Column(EPISODE, np.dtype(np.int32), (), memory_dtype=np.dtype(np.int64)))


@dataclass(frozen=True, slots=True)
class Written:
    """What the writer knows when all episodes are on disk."""

    schema: Schema
    files: tuple[StoredFile, ...]
    steps: int
    episodes: int
    final_unknown: int
    statistics: Mapping[str, Any]


class DatasetWriter:
    """Write episodes into a folder: rows.npy, final.npy, a file for each wide field, episodes.npy.

    ``("next", "done")`` and ``("episode",)`` are added here. The flags are checked: every episode ends with
    ``terminated`` or ``truncated``, and no step inside one has either.

    Args:
        folder: An empty folder.
        columns: What a step consists of.
        what: The dataset's name, for messages.
        steps: Steps that will come, where known.
        commits: What `commit` returned to an earlier process, in order: the folder is gone on with behind it.

    Raises:
        InvalidArgumentError: If the columns exclude each other, or the reward or a flag is missing.
        IntegrityError: If the folder does not hold what was committed.
    """

    def __init__(
        self,
        folder: Path,
        columns: Sequence[Column],
        *,
        what: str,
        steps: int | None = None,
        commits: Sequence[Commit] = (),
    ) -> None:
        self.schema = Schema.layout([*columns, *_OWN])
        lacking = [*lacking_fields(self.schema)]
        if lacking:
            raise InvalidArgumentError(f"{what} cannot be written: {'; '.join(lacking)}")
        self._folder = folder
        self._what = what
        self._carried = [field for field in self.schema if field.shared]
        self._given = [field for field in self.schema if not field.shared and field.key not in {NEXT_DONE, EPISODE}]
        widest = max(self.schema.record_bytes, *(_held_bytes(field) for field in self.schema))
        capacity = max(1, min(_BLOCK_STEPS, _BLOCK_BYTES // widest))
        # Two: one is filled while the other is checked, summed up and written.
        self._batch, self._other = _Batch(self.schema, capacity), _Batch(self.schema, capacity)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rlds-write")
        self._under_way: Future[None] | None = None
        self._moments = self._no_moments()
        # What came since the last commit, so that a commit and what `append_partial` takes add up in the same way.
        self._fresh = self._no_moments()
        self._steps = 0
        self._episode = 0
        self._open_steps = 0
        self._open_return = 0.0
        self._lengths: list[int] = []
        self._known: list[bool] = []
        self._returns: list[NDArray[np.float64]] = []
        self._facts: list[Mapping[str, Any]] = []
        # Zeros, as they stand for a final state that is not known, are then the empty text.
        self._words: dict[Key, dict[str, int]] = {field.key: {"": 0} for field in self.schema if field.text}
        self._committed = (0, dict.fromkeys(self._words, 1))
        for commit in commits:
            self._restore(commit)
        written = (self._steps, self._episode, commits[-1]["rows"]) if commits else None
        self._streams = _streams(folder, self.schema, steps, written)

    def _no_moments(self) -> dict[Key, Moments]:
        return {field.key: Moments(field.shape) for field in self.schema if has_statistics(field)}

    def _merge_moments(self) -> None:
        for key, moments in self._moments.items():
            moments.merge(self._fresh[key].state())
        self._fresh = self._no_moments()

    def _restore(self, commit: Commit) -> None:
        self._steps, self._open_steps, self._open_return = commit["steps"], commit["open_steps"], commit["open_return"]
        self._take_episodes(commit)
        for key, moments in self._moments.items():
            moments.restore(commit["moments"][dotted(key)])
        for key, vocabulary in self._words.items():
            vocabulary.update({word: len(vocabulary) + more for more, word in enumerate(commit["words"][dotted(key)])})
        self._committed = (self._episode, {key: len(vocabulary) for key, vocabulary in self._words.items()})

    def _take_episodes(self, commit: Commit) -> None:
        self._lengths += commit["lengths"]
        self._known += [bool(known) for known in commit["known"]]
        self._returns.append(np.array(commit["returns"], np.float64))
        columns = {name: np.array(values, dtype) for name, (dtype, values) in commit["facts"].items()}
        self._facts += [
            {name: column[row] for name, column in columns.items()} for row in range(len(commit["lengths"]))
        ]
        self._episode = len(self._lengths)

    def commit(self, *, sync: bool = True) -> Commit:
        """Wait until everything so far is on the disk.

        Args:
            sync: False waits until other processes see it, and it may be lost with the machine.

        Returns:
            What another process needs to go on behind it, together with what earlier calls returned: a JSON value,
            with NaN and infinity.
        """
        self._hand_over()
        self._settle()
        self._merge_moments()
        files = {name: stream.flush(sync=sync) for name, stream in self._streams.items()}
        episodes, known_words = self._committed
        self._committed = (self._episode, {key: len(vocabulary) for key, vocabulary in self._words.items()})
        # What was handed over in pieces comes back as one: only the newest pieces are of this commit.
        self._returns = [np.concatenate(self._returns)] if self._returns else []
        returns = self._returns[0][episodes:].tolist() if self._returns else []
        return {
            "files": files,
            "steps": self._steps,
            "open_steps": self._open_steps,
            "open_return": self._open_return,
            "lengths": self._lengths[episodes:],
            "known": self._known[episodes:],
            "returns": returns,
            "facts": {name: (v.dtype.str, v.tolist()) for name, v in _fact_columns(self._facts[episodes:]).items()},
            "moments": {dotted(key): moments.state() for key, moments in self._moments.items()},
            "rows": {name: stream.rows for name, stream in self._streams.items()},
            "words": {dotted(key): [*vocabulary][known_words[key] :] for key, vocabulary in self._words.items()},
        }

    def append(self, piece: Episode) -> None:
        """Write an episode, or the next piece of one.

        Raises:
            ConversionError: If a column is missing or has another length, shape or dtype than at the start, or a flag
                stands where none may, or none where one must.
        """
        piece = self._numbered(piece) if self._words else piece
        steps = self._checked(piece)
        taken = 0
        while taken < steps:
            batch = self._batch
            room = min(batch.capacity - batch.filled, steps - taken)
            self._copy(batch, piece, taken, room)
            taken += room
            if taken == steps and not piece.continues:
                self._end_episode(batch, piece, steps)
            if batch.filled == batch.capacity:
                self._hand_over()

    def amend(self, late: DeferredStates) -> None:
        """Write states in the place of the zeros that stood for them, in a row that came after the last commit."""
        self._hand_over()
        self._settle()
        for key, state in late.states.items():
            self._streams[self.schema[key].file].amend(self._steps - late.back, state)

    def extend(self, block: EpisodeBatch) -> None:
        """Write whole episodes, back to back.

        Raises:
            ConversionError: As `append` does.
        """
        self._check_block(block)
        stops = np.cumsum(block.lengths)
        count, taken = block.count, 0
        vocabulary = {
            key: self._numbers(self._words[key], TextStates(np.arange(len(texts)), tuple(texts)))
            for key, texts in block.vocabulary.items()
            if key in self._words
        }
        while taken < count:
            batch = self._batch
            stop = taken + min(batch.capacity - batch.filled, count - taken)
            first, last = np.searchsorted(stops, [taken, stop - 1], side="right")
            self._copy_block(batch, block, vocabulary, slice(taken, stop), slice(first, last + 1), stops)
            taken = stop
            if batch.filled == batch.capacity:
                self._hand_over()

    def _copy_block(
        self,
        batch: _Batch,
        block: EpisodeBatch,
        vocabulary: Mapping[Key, NDArray[np.int32]],
        rows: slice,
        episodes: slice,
        stops: NDArray[np.int64],
    ) -> None:
        """Copy rows, and the final states of the episodes that end among them."""

        def numbered(key: Key, values: NDArray[Any]) -> NDArray[Any]:
            return vocabulary[key][values] if key in vocabulary else values

        shift = batch.filled - rows.start
        into = slice(batch.filled, rows.stop + shift)
        for fields, values in ((self._given, block.steps), (self._carried, block.states)):
            for field in fields:
                batch.rows.columns[field.key][into] = _items(numbered(field.key, values[field.key][rows]), field)
        begins = np.maximum(stops[episodes] - block.lengths[episodes], rows.start)
        ends = np.minimum(stops[episodes], rows.stop)
        over = stops[episodes] <= rows.stop
        batch.chunks += zip((begins + shift).tolist(), (ends - begins).tolist(), strict=True)
        batch.chunk_episodes += range(self._episode, self._episode + len(begins))
        batch.ends += (ends[over] + shift - 1).tolist()
        closed = slice(episodes.start, episodes.start + int(over.sum()))
        final_states = slice(batch.ended, batch.ended + int(over.sum()))
        for field in self._carried:
            found = numbered(field.key, block.final_states[field.key][closed])
            batch.final_states.columns[field.key][final_states] = _items(
                known_only(found, block.final_known[closed]), field
            )
        batch.ended, batch.filled = final_states.stop, into.stop
        self._steps += rows.stop - rows.start
        if not block.metadata:
            self._facts += [{}] * (closed.stop - closed.start)
        self._lengths += block.lengths[closed].tolist()
        self._known += block.final_known[closed].tolist()
        self._facts += [
            dict(zip(block.metadata, one, strict=True))
            for one in zip(*(block.metadata[name][closed] for name in block.metadata), strict=True)
        ]
        self._episode += final_states.stop - final_states.start
        self._open_steps = 0 if over[-1] else int(ends[-1] - begins[-1]) + (self._open_steps if len(begins) == 1 else 0)

    def _check_block(self, block: EpisodeBatch) -> None:
        problems = []
        if self._open_steps:
            problems.append("the episode before them has no end yet")
        if not len(block) or (block.lengths < 1).any():
            problems.append("there is no episode, or one without a step")
        for kind, fields, arrays, count in (
            ("steps", self._given, block.steps, block.count),
            ("states", self._carried, block.states, block.count),
            ("final_states", self._carried, block.final_states, len(block)),
        ):
            wanted = {field.key: (field.dtype, (count, *field.shape)) for field in fields}
            for key in wanted.keys() | arrays.keys():
                found = (arrays[key].dtype, arrays[key].shape) if key in arrays else None
                if key in wanted and self.schema[key].encoded and not isinstance(arrays.get(key), EncodedImages):
                    problems.append(f"{kind} has {dotted(key)} decoded; expected encoded pictures")
                elif found != wanted.get(key):
                    problems.append(f"{kind} has {dotted(key)} as {_shown(found)}; expected {_shown(wanted.get(key))}")
        if problems:
            where = f"the episodes from {self._episode} (from row {self._steps})"
            raise ConversionError(self._what, [f"{where}: {one}" for one in sorted(problems)])

    def append_partial(self, folder: Path, commit: Commit) -> None:
        """Append what another writer of the same columns wrote: its rows, with this one's numbers for episodes and texts.

        Args:
            folder: That of the other writer.
            commit: What its only `commit` returned.

        Raises:
            IntegrityError: If the folder does not hold what was committed.
        """
        self._hand_over()
        self._settle()
        numbers = {
            key: self._numbers(vocabulary, TextStates(np.arange(len(more) + 1), ("", *more)))
            for key, vocabulary in self._words.items()
            for more in [commit["words"][dotted(key)]]
        }
        self._merge_moments()
        shifts = self._picture_shifts()
        for name, stream in self._streams.items():
            most = max(1, _COPY_BYTES // stream.item_bytes)
            for block in begun_blocks(folder / name, stream.dtype, stream.shape, commit["rows"][name], most):
                self._renumber(block, numbers, shifts.get(name, 0))
                stream.append(block)
        for key, moments in self._moments.items():
            moments.merge(commit["moments"][dotted(key)])
        lengths, returns = list(commit["lengths"]), np.array(commit["returns"], np.float64)
        open_steps, open_return = commit["open_steps"], commit["open_return"]
        # What was open goes on with the first episode of the other one, or still does.
        if lengths:
            lengths[0] += self._open_steps
            returns[0] += self._open_return
        else:
            open_steps, open_return = open_steps + self._open_steps, open_return + self._open_return
        self._take_episodes({**commit, "lengths": lengths, "returns": returns})
        self._steps += commit["steps"]
        self._open_steps, self._open_return = open_steps, open_return

    def _picture_shifts(self) -> dict[str, int]:
        """Return what is added to the ends of pictures that come behind those that are there."""
        encoded = [field for field in self.schema if field.encoded]
        shifts = {field.ends_file: self._streams[field.file].rows for field in encoded}
        return shifts | {one.final_ends_file: self._streams[one.final_file].rows for one in encoded if one.shared}

    def _renumber(self, block: NDArray[Any], numbers: Mapping[Key, NDArray[np.int32]], shift: int) -> None:
        """Put this writer's numbers in the place of those of another one."""
        if shift:
            block += shift
        for name in block.dtype.names or ():
            key = tuple(name.split("."))
            if key == EPISODE:
                block[name] += self._episode
            elif key in numbers:
                block[name] = numbers[key][block[name]]

    def _numbered(self, piece: Episode) -> Episode:
        """Put the dataset's own numbers in the place of texts."""

        def numbered(columns: Mapping[Key, Any]) -> Mapping[Key, Any]:
            return {
                key: self._numbers(self._words[key], one) if key in self._words and isinstance(one, TextStates) else one
                for key, one in columns.items()
            }

        return replace(piece, steps=numbered(piece.steps), states=numbered(piece.states))

    @staticmethod
    def _numbers(vocabulary: dict[str, int], texts: TextStates) -> NDArray[np.int32]:
        numbers = np.array([vocabulary.setdefault(word, len(vocabulary)) for word in texts.vocabulary], np.int32)
        row_numbers: NDArray[np.int32] = numbers[texts.codes]
        return row_numbers

    def _copy(self, batch: _Batch, piece: Episode, taken: int, count: int) -> None:
        start, stop = batch.filled, batch.filled + count
        columns = batch.rows.columns
        for fields, values in ((self._given, piece.steps), (self._carried, piece.states)):
            for field in fields:
                columns[field.key][start:stop] = _array(values[field.key])[taken : taken + count]
        batch.chunks.append((start, count))
        batch.chunk_episodes.append(self._episode)
        batch.filled = stop
        self._open_steps += count
        self._steps += count

    def _end_episode(self, batch: _Batch, piece: Episode, steps: int) -> None:
        for field in self._carried:
            _, final = split_states(_array(piece.states[field.key]), steps)
            unknown = b"" if field.encoded else 0
            batch.final_states.columns[field.key][batch.ended] = unknown if final is None else final
        batch.ended += 1
        batch.ends.append(batch.filled - 1)
        self._lengths.append(self._open_steps)
        self._known.append(piece.final_known)
        self._facts.append(piece.metadata)
        self._open_steps = 0
        self._episode += 1

    def _hand_over(self) -> None:
        """Let the thread write what was filled, and go on with the other batch."""
        batch = self._batch
        self._settle()
        self._under_way = self._thread.submit(self._write, batch, self._episode, self._steps - batch.filled)
        self._batch, self._other = self._other, batch

    def _settle(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def _checked(self, piece: Episode) -> int:
        steps = len(piece) if piece.steps else 0
        problems = list(self._problems(piece, steps))
        if problems:
            where = f"episode {self._episode} (from row {self._steps})"
            raise ConversionError(self._what, [f"{where}: {one}" for one in problems])
        return steps

    def _problems(self, piece: Episode, steps: int) -> Iterator[str]:
        if not steps:
            yield "it has no step"
        if len(piece.steps) != len(self._given) or len(piece.states) != len(self._carried):
            wanted = sorted(field.name for field in (*self._given, *self._carried))
            yield f"its columns are {sorted(map(dotted, (*piece.steps, *piece.states)))}; expected {wanted}"
            return
        # The state after the last action of a piece that goes on is the first state of the next piece.
        most_states = steps if piece.continues else steps + 1
        for fields, arrays, most in ((self._given, piece.steps, steps), (self._carried, piece.states, most_states)):
            for field in fields:
                array = arrays.get(field.key)
                if array is None:
                    yield f"{field.name} is missing"
                elif isinstance(array, EncodedImages) or field.encoded:
                    yield from _picture_problems(field, array, steps, most)
                elif isinstance(array, TextStates):
                    yield f"{field.name} holds texts; expected {field.dtype.name}"
                elif array.dtype != field.dtype or array.shape[1:] != field.shape or not steps <= len(array) <= most:
                    yield (
                        f"{field.name} is {array.dtype.name} {list(array.shape)}; "
                        f"expected {field.dtype.name} {[steps, *field.shape]}"
                    )
        final_states = {len(array) > steps for key, array in piece.states.items() if key[0] == OBSERVATION[0]}
        if len(final_states) > 1:
            yield "one observation has a state after the last action and another has none"

    def _write(self, batch: _Batch, episode: int, first: int) -> None:
        """Check, sum up and write a batch that begins at row `first`, in the thread."""
        if not batch.filled:
            return
        count = batch.filled
        columns = batch.rows.columns
        numbers = np.array(batch.chunk_episodes, np.int32)
        columns[EPISODE][:count] = np.repeat(numbers, [length for _, length in batch.chunks])
        done = columns[NEXT_DONE][:count]
        np.logical_or(columns[NEXT_TERMINATED][:count], columns[NEXT_TRUNCATED][:count], out=done)
        self._check_flags(done[:, 0], batch.ends, first)
        self._sum_rewards(columns[NEXT_REWARD][:count, 0], batch, numbers, episode)
        for key, moments in self._fresh.items():
            moments.update(columns[key][:count])
        for name, block in batch.rows.files(count):
            self._streams[name].append(block)
        for name, block in batch.final_states.files(batch.ended):
            self._streams["final.npy" if name == ROWS_FILE else f"final.{name}"].append(block)
        for field, images in batch.rows.images(count):
            self._append_pictures(field.file, field.ends_file, images)
        for field, images in batch.final_states.images(batch.ended):
            self._append_pictures(field.final_file, field.final_ends_file, images)
        batch.clear()

    def _append_pictures(self, file: str, ends_file: str, images: Sequence[bytes]) -> None:
        ends = self._streams[file].rows + np.cumsum([len(one) for one in images], dtype=np.int64)
        self._streams[file].append(np.frombuffer(b"".join(images), np.uint8))
        self._streams[ends_file].append(ends)

    def _check_flags(self, done: NDArray[np.bool_], ends: list[int], first: int) -> None:
        expected = np.zeros(len(done), np.bool_)
        expected[ends] = True
        wrong = np.flatnonzero(done != expected)
        if len(wrong):
            row = int(wrong[0])
            says = "has no flag at its end" if expected[row] else "has an end flag before its end"
            raise ConversionError(
                self._what, [f"row {first + row}: its episode {says} (and {len(wrong) - 1} more rows)"]
            )

    def _sum_rewards(self, rewards: NDArray[Any], batch: _Batch, numbers: NDArray[np.int32], episode: int) -> None:
        with np.errstate(invalid="ignore", over="ignore"):  # what is no number adds up to what is no number
            sums = np.add.reduceat(rewards.astype(np.float64), [start for start, _ in batch.chunks])
        returns = np.zeros(episode - int(numbers[0]) + 1)
        np.add.at(returns, numbers - numbers[0], sums)
        returns[0] += self._open_return
        # The last entry belongs to the episode that goes on in the next batch, if there is one.
        self._open_return = float(returns[-1])
        self._returns.append(returns[:-1])

    def finish(self) -> Written:
        """Write what is left and the episode table.

        Raises:
            ConversionError: If no step came, or the last episode has no end.
        """
        self._hand_over()
        self._settle()
        self._merge_moments()
        if self._open_steps or not self._steps:
            problem = f"episode {self._episode} has no end" if self._open_steps else "it has no step"
            raise ConversionError(self._what, [problem])
        table = self._table()
        files = [
            stream.close(trailing=self.schema.record_bytes if name == ROWS_FILE else 0)
            for name, stream in self._streams.items()
        ]
        episodes = NpyStream(self._folder / EPISODES_FILE, table.dtype, expected=len(table))
        episodes.append(table)
        files.append(episodes.close())
        files += [self._write_texts(self.schema[key], [*vocabulary]) for key, vocabulary in self._words.items()]
        statistics = {dotted(key): moments.to_json() for key, moments in self._moments.items()}
        statistics |= of_episodes(EpisodeTable(table))
        return Written(
            schema=self.schema,
            files=tuple(sorted(files, key=lambda entry: entry.path)),
            steps=self._steps,
            episodes=len(table),
            final_unknown=int((~table["final_known"]).sum()),
            statistics=statistics,
        )

    def _write_texts(self, field: Field, texts: list[str]) -> StoredFile:
        path = self._folder / field.texts_file
        disk.write_json(path, texts)
        return StoredFile(path.name, path.stat().st_size, file_sha256(path))

    def _table(self) -> NDArray[np.void]:
        metadata = _fact_columns(self._facts)
        extra = [(name, values.dtype) for name, values in metadata.items() if name != "source"]
        table = np.zeros(len(self._lengths), np.dtype([*EPISODE_DTYPE.descr, *extra]))
        table["length"] = self._lengths
        table["start"] = np.cumsum(table["length"]) - table["length"]
        table["return"] = np.concatenate(self._returns)
        table["final_known"] = self._known
        table["source"] = np.arange(len(table))
        for name, values in metadata.items():
            table[name] = values
        return table

    def discard(self) -> None:
        """Close all files, finished or not, and end the thread."""
        self._thread.shutdown(wait=True)
        for stream in self._streams.values():
            stream.discard()


def _array(column: Values) -> Any:
    if isinstance(column, EncodedImages):
        return column.images
    return column.codes if isinstance(column, TextStates) else column


def _items(column: Any, field: Field) -> Any:
    """Return what goes into a batch: pixels where the field has them, and the pictures where they stay encoded."""
    return column.images if field.encoded else column


def _shown(found: tuple[np.dtype[Any], tuple[int, ...]] | None) -> str:
    return "nothing" if found is None else f"{found[0].name} {list(found[1])}"


def _held_bytes(field: Field) -> int:
    # Encoded pictures were seen to have a tenth (JPEG) to a half (PNG) of the bytes of their pixels.
    return field.step_bytes // 8 if field.encoded else field.step_bytes


def _picture_problems(field: Field, column: Any, steps: int, most: int) -> Iterator[str]:
    if not isinstance(column, EncodedImages) or not field.encoded:
        wanted = "encoded pictures" if field.encoded else field.dtype.name
        yield f"{field.name} holds {type(column).__name__}; expected {wanted}"
    elif not steps <= len(column) <= most:
        yield f"{field.name} has {len(column)} pictures; expected {steps}"
    else:
        for number, image in enumerate(column.images):
            try:
                found = header(image)
            except ConversionError as error:
                yield f"{field.name}: picture {number} {error.problems[0]}"
                continue
            if (found.shape, found.dtype) != (field.shape, field.dtype):
                wanted = f"{field.dtype.name} {list(field.shape)}"
                yield f"{field.name}: picture {number} is {found.dtype.name} {list(found.shape)}; expected {wanted}"


def _fact_columns(listed: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    names = dict.fromkeys(name for metadata in listed for name in metadata)
    return {name: np.array([known.get(name, 0) for known in listed]) for name in names}


class _Batch:
    """Room for steps, for the final states of the episodes that end among them, and where the episodes lie."""

    def __init__(self, schema: Schema, capacity: int) -> None:
        shared = [field for field in schema if field.shared]
        self.capacity = capacity
        self.rows = _Block(schema.narrow, schema.wide, schema.record, capacity)
        self.final_states = _Block(
            [field for field in shared if not field.wide],
            [field for field in shared if field.wide],
            schema.final_record,
            capacity,
        )
        self.chunks: list[tuple[int, int]] = []
        self.chunk_episodes: list[int] = []
        self.ends: list[int] = []
        self.filled = self.ended = 0

    def clear(self) -> None:
        """Make room again."""
        self.filled = self.ended = 0
        for listed in (self.chunks, self.chunk_episodes, self.ends):
            listed.clear()


class _Block:
    """Room for a number of records, and for as many items of each wide field."""

    def __init__(
        self, narrow: Sequence[Field], wide: Sequence[Field], record: np.dtype[np.void], capacity: int
    ) -> None:
        self._records = np.zeros(capacity, record)
        plain = [field for field in wide if not field.encoded]
        self._wide = {field.file: np.zeros((capacity, *field.shape), field.dtype) for field in plain}
        self._pictures: dict[Field, list[bytes]] = {field: [b""] * capacity for field in wide if field.encoded}
        self._has_records = bool(narrow)
        self.columns: dict[Key, Any] = {field.key: self._records[field.name] for field in narrow}
        self.columns |= {field.key: self._wide[field.file] for field in plain}
        self.columns |= {field.key: images for field, images in self._pictures.items()}

    def files(self, count: int) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the name of each file and the first `count` items for it."""
        if self._has_records:
            yield ROWS_FILE, self._records[:count]
        for name, items in self._wide.items():
            yield name, items[:count]

    def images(self, count: int) -> Iterator[tuple[Field, list[bytes]]]:
        """Yield each field of encoded pictures, and the first `count` of them."""
        for field, images in self._pictures.items():
            yield field, images[:count]


def _streams(
    folder: Path, schema: Schema, steps: int | None, written: tuple[int, int, Mapping[str, int]] | None
) -> dict[str, NpyStream]:
    """Open all files; `written` says how many rows, episodes and, by file, bytes of pictures stay in them."""
    rows, ended, images = written or (None, None, {})
    with disk.disk_errors(folder):
        streams = {ROWS_FILE: NpyStream(folder / ROWS_FILE, schema.record, expected=steps, written=rows)}
        if any(field.shared for field in schema.narrow):
            streams["final.npy"] = NpyStream(folder / "final.npy", schema.final_record, written=ended)
        for field in schema.wide:
            if field.encoded:
                pairs = (
                    (field.file, field.ends_file, steps, rows),
                    (field.final_file, field.final_ends_file, None, ended),
                )
                for name, ends, expected, there in pairs[: 1 + field.shared]:
                    streams[name] = NpyStream(folder / name, field.dtype, written=images.get(name))
                    streams[ends] = NpyStream(folder / ends, _END, expected=expected, written=there)
                continue
            streams[field.file] = NpyStream(folder / field.file, field.dtype, field.shape, steps, rows)
            if field.shared:
                streams[field.final_file] = NpyStream(
                    folder / field.final_file, field.dtype, field.shape, written=ended
                )
        return streams
