"""Batches prepared ahead of time, by threads where that is faster."""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from datasets_rl.buffers.read_path import Drawn, ReadPath

Batch = tuple[Any, dict[Any, Any]]
"""A batch and its info."""

_WORTH_A_THREAD = 250e-6
"""Seconds. Batches that are made faster cost more in a thread than without threads, because threads of Python wait for
each other. Measured on two cores: a batch of 256 steps takes 50 us without threads and 80 us with threads, and a batch
of 4096 steps about the same. A batch of 16,384 steps beside a training step of 3 ms takes 740 us without threads and
nothing with threads."""
_RECENT = 8
"""Number of batches with times that decide."""


class _Pending(Protocol):
    """What `Prefetch` needs of a `concurrent.futures.Future`."""

    def result(self) -> Batch:
        """Return the batch, or raise the error of making it."""

    def cancel(self) -> bool:
        """Return whether the batch will not be made."""


class _Done:
    """A batch that was made at once, or the error that occurred, with the methods of a `concurrent.futures.Future`."""

    __slots__ = ("_batch", "_error")

    def __init__(self, batch: Batch | None, error: Exception | None = None) -> None:
        self._batch, self._error = batch, error

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._batch

    def cancel(self) -> bool:
        return False


class Prefetch:
    """Prepares the batches of a buffer ahead of time.

    The caller's thread samples the batches, in order, so that the random sequence is that of a buffer without
    prefetching. Threads read and transform the batches. Where any of the last 8 batches took less than 0.25 ms, the
    caller makes the next batches itself, equally far ahead: that costs less than an exchange with a thread. The batches
    are the same in both cases.

    Args:
        buffer: The buffer. The lock is held while batches are sampled, but not while the caller waits for batches.
        depth: Number of batches in progress, and of threads.
    """

    def __init__(self, buffer: ReadPath, depth: int) -> None:
        self.depth = depth
        self._buffer = buffer
        self._process = os.getpid()
        self._threads: ThreadPoolExecutor | None = None
        self._in_progress: deque[tuple[Drawn, _Pending]] = deque()
        self._times: deque[float] = deque(maxlen=_RECENT)
        """Seconds that the last batches took."""
        self.uses_threads = True
        """Whether the next batch is made in a thread."""

    def next(self) -> tuple[Drawn, Batch]:
        """Return the oldest batch in progress with its sample, and start new batches."""
        buffer = self._buffer
        with buffer.lock.reading if buffer.storage.read_only else buffer.lock:
            self._leave_parent()
            while len(self._in_progress) <= self.depth:
                self.start(buffer.draw(None, ahead=True))
            drawn, batch = self._in_progress.popleft()
        return drawn, batch.result()

    def _leave_parent(self) -> None:
        """Discard, in a forked process, the batches in progress of the parent, whose threads do not exist here."""
        if self._process != os.getpid():
            self._threads, self._process = None, os.getpid()
            self._in_progress.clear()

    def start(self, drawn: Drawn) -> None:
        """Read and transform a sampled batch after the batches in progress, in a thread if that is faster."""
        if not self.uses_threads:
            try:
                done = _Done(self._make(drawn))
            except Exception as error:  # noqa: BLE001 - raised when the batch is taken, as by a future
                done = _Done(None, error)
            self._in_progress.append((drawn, done))
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.depth, thread_name_prefix="rlds-prefetch")
        self._in_progress.append((drawn, self._threads.submit(self._make, drawn)))

    def _make(self, drawn: Drawn) -> Batch:
        start = time.perf_counter()
        batch = self._buffer.make(drawn)
        self._times.append(time.perf_counter() - start)
        # A copy, because other threads append. The least time is that of a batch that waited for nothing.
        times = tuple(self._times)
        self.uses_threads = len(times) < _RECENT or min(times) >= _WORTH_A_THREAD
        return batch

    @property
    def draws_in_progress(self) -> list[Drawn]:
        """The samples of the batches in progress, the oldest first."""
        return [drawn for drawn, _ in self._in_progress]

    def drain(self) -> None:
        """Discard the batches in progress: the sampled data has changed."""
        self._leave_parent()
        while self._in_progress:
            drawn, batch = self._in_progress.popleft()
            if batch.cancel():
                self._buffer.discard(drawn)

    def close(self) -> None:
        """Stop the threads."""
        self.drain()
        if self._threads is not None:
            self._threads.shutdown(wait=True)
            self._threads = None
