"""Batches made ahead of time by threads."""

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
    """Keep batches under way.

    What a batch consists of is drawn in the caller's thread, in order, so that the random sequence is that of a
    buffer without prefetching; only reading and transforming happen in the threads.

    Args:
        depth: Batches under way, and threads.
        draw: Chooses the next batch.
        make: Reads and transforms what was chosen; runs in a thread.
        drop: Called with what was chosen and will not be made.
        lock: Held while batches are drawn, not while they are waited for.
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
            raise InvalidArgumentError(f"prefetch is {depth}; expected at least 1, or None for none")
        self.depth = depth
        self._draw = draw
        self._make = make
        self._drop = drop
        self._lock = lock
        self._process = os.getpid()
        self._threads: ThreadPoolExecutor | None = None
        self._under_way: deque[tuple[Draw, Future[Batch]]] = deque()

    def next(self) -> tuple[Draw, Batch]:
        """Return the oldest batch under way with what was drawn for it, and start new ones behind it."""
        with self._lock:
            self._leave_parent()
            while len(self._under_way) <= self.depth:
                self.start(self._draw())
            drawn, batch = self._under_way.popleft()
        return drawn, batch.result()

    def _leave_parent(self) -> None:
        """Forget, in a forked process, what is under way in its parent: threads do not come along."""
        if self._process != os.getpid():
            self._threads, self._process = None, os.getpid()
            self._under_way.clear()

    def start(self, drawn: Draw) -> None:
        """Have a batch made of what was drawn, behind those under way."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.depth, thread_name_prefix="rlds-prefetch")
        self._under_way.append((drawn, self._threads.submit(self._make, drawn)))

    @property
    def drawn(self) -> list[Draw]:
        """What the batches under way were made of, the oldest first."""
        return [drawn for drawn, _ in self._under_way]

    def drain(self) -> None:
        """Forget the batches under way: what they were drawn from has changed."""
        self._leave_parent()
        while self._under_way:
            drawn, batch = self._under_way.popleft()
            if batch.cancel():
                self._drop(drawn)

    def close(self) -> None:
        """End the threads."""
        self.drain()
        if self._threads is not None:
            self._threads.shutdown(wait=True)
            self._threads = None
