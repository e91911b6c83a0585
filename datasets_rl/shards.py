"""The episodes of shards in their order, read here or in other processes.

A process of its own reads shards and writes what it reads to a pipe; a thread here takes it up, as far as there is
room, so that later shards are read while an earlier one is written:

    shard 0   [ read ][=====>      ]
    shard 1   [ read ][===>        ]  held: at most `_ROOM` bytes a shard
    rows         0 0 0 0 0 0 1 1 1 1

The processes are started as programs, and not by `multiprocessing`, which would run the user's script again. What
goes through the pipes is JSON and the bytes of arrays.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionFailed, DatasetsRLError
from datasets_rl.fetch.ahead import Ahead
from datasets_rl.fetch.asset import Fetched
from datasets_rl.format.part import make_part
from datasets_rl.format.writer import Commit, DatasetWriter
from datasets_rl.sources import Contents, Decision, Recording, Selection, Shard, source
from datasets_rl.ted.episode import Encoded, Episode, Late, Texts, Values
from datasets_rl.ted.episodes import Episodes
from datasets_rl.ted.keys import Key

__all__ = ["Away", "Cluster", "Opening", "Part", "Ready", "in_order", "write"]

_ROOM = 64 << 20
_LENGTH = struct.Struct("<Q")
_PIPE = 1 << 20  # as much as Linux lets a pipe hold


@dataclass(frozen=True, slots=True)
class Opening:
    """How to open the files of a shard, in this process or in another."""

    source: str
    name: str
    contents: Contents

    def open(self, files: Mapping[str, Path]) -> Recording:
        """Open the files of a shard."""
        return source(self.source).open(self.name, files, self.contents.facts)


@dataclass(frozen=True, slots=True)
class Ready:
    """A shard whose files are there."""

    shard: Shard
    files: Mapping[str, Path]
    """Those of the shard, and those that all shards need."""
    fetched: tuple[Fetched, ...]
    """Those that came for this shard."""


@dataclass(frozen=True, slots=True)
class Part:
    """A shard as a part of the dataset."""

    folder: Path
    schema: Sequence[Any]
    """Of the writer, as in a manifest."""
    commit: Commit


class Cluster(Protocol):
    """Where parts are made."""

    @property
    def room(self) -> int:
        """How many tasks should be under way."""
        ...

    def begin(
        self, make: Callable[[Mapping[str, Any]], Mapping[str, Any]], task: Mapping[str, Any]
    ) -> Callable[[], Mapping[str, Any]]:
        """Call a function somewhere, and return what waits for its result."""
        ...


@dataclass(frozen=True, slots=True)
class Away:
    """That shards are read and written by a cluster."""

    cluster: Cluster
    folder: Path
    """Where the parts go; all nodes see it."""
    selection: Mapping[str, Any]
    """Which fields are wanted."""


@dataclass(frozen=True, slots=True)
class End:
    """All pieces of a shard have come."""

    ready: Ready
    decisions: tuple[Decision, ...]


def in_order(
    opening: Opening, shards: Sequence[Shard], ahead: Ahead, jobs: int, away: Away | None = None
) -> Generator[Recording | Episode | Late | Episodes | Part | End, None, None]:
    """Yield the first shard, opened, then the pieces of every shard and an `End` behind each.

    They are the same whatever `jobs` is.

    Args:
        opening: How to open files.
        shards: The shards.
        ahead: The files of each that are not yet there, and before the first one those that all shards need.
        jobs: Shards read at once; with 1, in this process.
        away: Let a cluster read them, and write each as a `Part`.

    Raises:
        ConversionFailed: If files break their own format; that of the first such shard.
        FetchFailed, IntegrityFailed, DiskFull: If files cannot be had.
    """
    known: dict[str, Path] = {}
    waiting = deque(shards)
    running: deque[_Here | _Elsewhere | _Away] = deque()
    idle: list[_Reader] = []

    def start(*, wait: bool) -> None:
        while waiting and len(running) < jobs and (came := ahead.take(wait=wait and not running)) is not None:
            known.update({one.asset.path: one.path for one in came})
            shard = waiting.popleft()
            files = {path: known[path] for path in (*opening.contents.common, *shard.paths)}
            ready = Ready(shard, files, tuple(came))
            if away is not None:
                running.append(_Away(opening, ready, away))
            else:
                running.append(_Here(opening, ready) if jobs == 1 else _Elsewhere(opening, ready, idle))

    first = True
    try:
        start(wait=True)
        while running:
            if first:
                yield running[0].open()
                first = False
            for piece in running[0].pieces():
                yield piece
                start(wait=False)
            end = End(running[0].ready, running[0].decisions)
            # Its files are closed before they are deleted.
            running.popleft().close()
            yield end
            start(wait=True)
    finally:
        for one in (*running, *idle):
            one.close()


class _Reading:
    """A shard that is being read."""

    def __init__(self, opening: Opening, ready: Ready) -> None:
        self.opening = opening
        self.ready = ready
        self.decisions: tuple[Decision, ...] = ()
        self.opened: Recording | None = None

    def open(self) -> Recording:
        """Open the shard in this process."""
        self.opened = self.opening.open(self.ready.files)
        return self.opened

    def close(self) -> None:
        """Close the files, and end what is still at work."""
        if self.opened is not None:
            self.opened.__exit__(None, None, None)
            self.opened = None


class _Here(_Reading):
    """A shard that is read in this process, as its pieces are asked for."""

    def pieces(self) -> Iterator[Episode | Late | Episodes]:
        recording = self.opened or self.open()
        yield from recording.episodes(self.ready.shard.part)
        self.decisions = tuple(recording.decisions)


class _Away(_Reading):
    """A shard that a task of a cluster makes a part of."""

    def __init__(self, opening: Opening, ready: Ready, away: Away) -> None:
        super().__init__(opening, ready)
        task = {
            **_task(opening, ready),
            "selection": away.selection,
            "folder": str(away.folder / f"{opening.contents.shards.index(ready.shard):06}"),
        }
        self._folder = Path(task["folder"])
        self._result = away.cluster.begin(make, task)

    def pieces(self) -> Iterator[Part]:
        said = self._result()
        self.decisions = tuple(Decision(**one) for one in said["decisions"])
        yield Part(self._folder, said["schema"], said["commit"])


def make(task: Mapping[str, Any]) -> dict[str, Any]:
    """Make a part of a shard, unless it is there already.

    Args:
        task: How the shard is opened, where its files are, which fields are wanted, and where the part goes.

    Returns:
        The schema of what was written, the decisions, and what the writer said.
    """
    what = f"{task['source']}/{task['name']}"
    files = {path: Path(place) for path, place in task["files"].items()}
    with source(task["source"]).open(task["name"], files, task["facts"]) as recording:
        kept = Selection.from_json(task["selection"]).kept_keys([column.key for column in recording.columns])

        def fill(writer: DatasetWriter) -> Mapping[str, Any]:
            for piece in recording.episodes(task["part"]):
                write(writer, piece, kept)
            decisions = [asdict(one) for one in recording.decisions]
            return {"schema": writer.schema.to_json(), "decisions": decisions}

        columns = [column for column in recording.columns if column.key in kept]
        return make_part(Path(task["folder"]), columns, what, fill)


def write(writer: DatasetWriter, piece: Episode | Episodes | Late, kept: Collection[Key]) -> int:
    """Write the fields that are wanted of what was read, and return how many steps that was."""
    if isinstance(piece, Late):
        writer.amend(piece)
        return 0
    if isinstance(piece, Episodes):
        writer.extend(piece.only(kept))
        return piece.count
    steps, states = ({key: one for key, one in part.items() if key in kept} for part in (piece.steps, piece.states))
    writer.append(replace(piece, steps=steps, states=states))
    return len(piece)


def _task(opening: Opening, ready: Ready) -> dict[str, Any]:
    return {
        "source": opening.source,
        "name": opening.name,
        "facts": opening.contents.facts,
        "files": {path: str(place) for path, place in ready.files.items()},
        "part": ready.shard.part,
    }


class _Reader:
    """A process that reads one shard behind the other: to start one costs as much as to read 50 MB."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from datasets_rl.shards import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def begin(self, task: Mapping[str, Any]) -> None:
        """Let it read a shard."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it was ended meanwhile, which `next` tells
                self._process.stdin.write(json.dumps(task).encode() + b"\n")
                self._process.stdin.flush()

    def next(self, what: str) -> tuple[int, Any]:
        """Return the next piece and its size in bytes; decisions behind the last one, or an error.

        Args:
            what: The dataset, for messages.
        """
        try:
            return _receive(self._process.stdout) if self._process.stdout is not None else (0, None)
        except EOFError:
            code = self._process.wait()
            return 0, ConversionFailed(what, [f"the process that read its files ended with {code}"])

    def stop(self) -> None:
        """End it wherever it is; what it sends next is its end."""
        self._process.kill()

    def close(self) -> None:
        """End it, and forget it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


class _Elsewhere(_Reading):
    """A shard that is read in another process, of those that are idle if there is one."""

    def __init__(self, opening: Opening, ready: Ready, idle: list[_Reader]) -> None:
        super().__init__(opening, ready)
        self._idle = idle
        self._what = f"{opening.source}/{opening.name}"
        self._came: deque[tuple[int, Any]] = deque()
        self._held = 0
        self._change = threading.Condition()
        self._closed = False
        self._reader = idle.pop() if idle else _Reader()
        self._reader.begin(_task(opening, ready))
        self._done = False
        self._thread = threading.Thread(target=self._take_up, name="rlds-read", daemon=True)
        self._thread.start()

    def close(self) -> None:
        super().close()
        with self._change:
            self._closed = True
            self._change.notify_all()
        if not self._done:
            self._reader.stop()
        self._thread.join()
        if self._done:
            self._idle.append(self._reader)
        else:
            self._reader.close()

    def pieces(self) -> Iterator[Episode | Late | Episodes]:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._came)
                size, piece = self._came.popleft()
                self._held -= size
                self._change.notify_all()
            if isinstance(piece, BaseException):
                raise piece
            if isinstance(piece, tuple):
                self.decisions, self._done = piece, True
                return
            yield piece

    def _take_up(self) -> None:
        while True:
            size, piece = self._reader.next(self._what)
            with self._change:
                self._change.wait_for(lambda: self._held < _ROOM or self._closed)
                self._held += size
                self._came.append((size, piece))
                self._change.notify_all()
                if self._closed or not isinstance(piece, Episode | Late | Episodes):
                    return


def main() -> None:
    """Read the shards that the lines of stdin describe, and write their pieces to stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one, which ends it
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints must not come between
    _widen(out)
    for line in sys.stdin:
        _read_shard(json.loads(line), out)


def _read_shard(task: Mapping[str, Any], out: IO[bytes]) -> None:
    try:
        files = {path: Path(place) for path, place in task["files"].items()}
        with source(task["source"]).open(task["name"], files, task["facts"]) as recording:
            for piece in recording.episodes(task["part"]):
                _send(out, *_packed(piece))
        # The files are closed now, and may be deleted.
        _send(out, {"end": [asdict(one) for one in recording.decisions]})
    except ConversionFailed as error:
        _send(out, {"problems": error.problems, "what": error.what, "hint": error.hint})
    except DatasetsRLError as error:
        _send(out, {"problems": [error.message], "what": f"{task['source']}/{task['name']}", "hint": error.hint})
    except BrokenPipeError:
        os._exit(1)


def _widen(out: IO[bytes]) -> None:
    try:
        import fcntl

        fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, _PIPE)  # type: ignore[attr-defined,unused-ignore]  # Linux has it
    except (ImportError, AttributeError, OSError):  # another system: the pipe is narrower, and all the same works
        return


def _packed(piece: Episode | Late | Episodes) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    arrays: list[NDArray[Any]] = []

    def described(columns: Mapping[tuple[str, ...], Values]) -> list[Any]:
        entries: list[Any] = []
        for key, column in columns.items():
            if isinstance(column, Encoded):
                joined = b"".join(column.pictures)
                arrays.append(np.frombuffer(joined, np.uint8))
                entries.append([key, "|u1", [len(joined)], None, [len(one) for one in column.pictures]])
                continue
            array = np.ascontiguousarray(column.codes if isinstance(column, Texts) else column)
            arrays.append(array)
            words = column.words if isinstance(column, Texts) else None
            entries.append([key, array.dtype.str, array.shape, words, None])
        return entries

    if isinstance(piece, Episodes):
        parts = {"steps": piece.steps, "states": piece.states, "finals": piece.finals}
        return {
            "block": {name: described(part) for name, part in parts.items()},
            "lengths": described({("lengths",): piece.lengths, ("known",): piece.known}),
            "facts": described({(name,): values for name, values in piece.facts.items()}),
            "words": [[key, list(words)] for key, words in piece.words.items()],
        }, arrays
    if isinstance(piece, Late):
        return {"late": described(piece.states), "back": piece.back}, arrays
    facts = {name: (np.asarray(value).dtype.str, np.asarray(value).item()) for name, value in piece.facts.items()}
    header = {
        "steps": described(piece.steps),
        "states": described(piece.states),
        "continues": piece.continues,
        "facts": facts,
    }
    return header, arrays


def _send(out: IO[bytes], header: Mapping[str, Any], arrays: Sequence[NDArray[Any]] = ()) -> None:
    text = json.dumps(header).encode()
    for view in (
        memoryview(_LENGTH.pack(len(text)) + text),
        *(array.reshape(-1).view(np.uint8).data for array in arrays),
    ):
        sent = 0
        while sent < len(view):
            sent += out.write(view[sent:])


def _receive(stream: IO[bytes]) -> tuple[int, Any]:
    header = json.loads(_read(stream, _LENGTH.unpack(_read(stream, _LENGTH.size))[0]))
    if "end" in header:
        return 0, tuple(Decision(**one) for one in header["end"])
    if "problems" in header:
        return 0, ConversionFailed(header["what"], header["problems"], hint=header["hint"])
    size = 0

    def columns(entries: Sequence[Any]) -> dict[tuple[str, ...], Any]:
        nonlocal size
        found: dict[tuple[str, ...], Any] = {}
        for key, dtype, shape, words, lengths in entries:
            array: NDArray[Any] = np.empty(shape, dtype)
            _fill(stream, array.reshape(-1).view(np.uint8).data)
            size += array.nbytes
            if lengths is not None:
                found[tuple(key)] = Encoded(_cut(array.data, lengths))
            else:
                found[tuple(key)] = array if words is None else Texts(array, tuple(words))
        return found

    if "block" in header:
        parts = {name: columns(entries) for name, entries in header["block"].items()}
        own = columns(header["lengths"])
        known_facts = {name: values for (name,), values in columns(header["facts"]).items()}
        words = {tuple(key): listed for key, listed in header["words"]}
        return size, Episodes(
            own["lengths",], parts["steps"], parts["states"], parts["finals"], own["known",], known_facts, words
        )
    if "late" in header:
        return size, Late(columns(header["late"]), header["back"])
    steps, states = columns(header["steps"]), columns(header["states"])
    facts = {name: np.dtype(dtype).type(value) for name, (dtype, value) in header["facts"].items()}
    return size, Episode(steps, states, header["continues"], facts)


def _cut(joined: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    ends = [0, *accumulate(lengths)]
    return [joined[start:stop] for start, stop in pairwise(ends)]


def _read(stream: IO[bytes], size: int) -> bytearray:
    block = bytearray(size)
    _fill(stream, memoryview(block))
    return block


def _fill(stream: IO[bytes], view: memoryview) -> None:
    readinto: Callable[[memoryview], int] = stream.readinto  # type: ignore[attr-defined]  # every binary stream has it
    while len(view):
        count = readinto(view)
        if not count:
            raise EOFError
        view = view[count:]
