"""Batches prefetched by threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from datasets_rl.errors import InvalidArgumentError

__all__ = ["Prefetch"]

Draw = TypeVar("Draw")
Batch = TypeVar("Batch")


class Prefetch(Generic[Draw, Batch]):
    """Prefetches batches in threads.

    The caller's thread samples the batches, in order, so that the random sequence is that of a buffer without
    prefetching; the threads only read and transform.

    Args:
        depth: Number of batches in progress, and of threads.
        draw: Samples the next batch.
        make: Reads and transforms a sampled batch; runs in a thread.
        drop: Called with a sampled batch that will not be read.
        lock: Held while batches are sampled, but not while the caller waits for them.
    """

    def __init__(
        self,
        depth: int,
        draw: Callable[[], Draw],
        make: Callable[[Draw], Batch],
        drop: Callable[[Draw], None],
        lock: AbstractContextManager[None],
    ) -> None:
        if depth < 1:
            raise InvalidArgumentError(f"prefetch is {depth}; expected an integer >= 1, or None for no prefetching")
        self.depth = depth
        self._draw = draw
        self._make = make
        self._drop = drop
        self._lock = lock
        self._process = os.getpid()
        self._threads: ThreadPoolExecutor | None = None
        self._in_progress: deque[tuple[Draw, Future[Batch]]] = deque()

    def next(self) -> tuple[Draw, Batch]:
        """Return the oldest batch in progress with its sample, and start new ones after it."""
        with self._lock:
            self._leave_parent()
            while len(self._in_progress) <= self.depth:
                self.start(self._draw())
            drawn, batch = self._in_progress.popleft()
        return drawn, batch.result()

    def _leave_parent(self) -> None:
        """Discard, in a forked process, the batches in progress of the parent, whose threads do not exist here."""
        if self._process != os.getpid():
            self._threads, self._process = None, os.getpid()
            self._in_progress.clear()

    def start(self, drawn: Draw) -> None:
        """Read and transform a sampled batch in a thread, after those in progress."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.depth, thread_name_prefix="rlds-prefetch")
        self._in_progress.append((drawn, self._threads.submit(self._make, drawn)))

    @property
    def draws_in_progress(self) -> list[Draw]:
        """The samples of the batches in progress, the oldest first."""
        return [drawn for drawn, _ in self._in_progress]

    def drain(self) -> None:
        """Discard the batches in progress: the data they were sampled from has changed."""
        self._leave_parent()
        while self._in_progress:
            drawn, batch = self._in_progress.popleft()
            if batch.cancel():
                self._drop(drawn)

    def close(self) -> None:
        """Stop the threads."""
        self.drain()
        if self._threads is not None:
            self._threads.shutdown(wait=True)
            self._threads = None
