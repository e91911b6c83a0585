"""Batches made ahead of time by threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from datasets_rl.errors import BadArgument

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
    """

    def __init__(self, depth: int, draw: Callable[[], Draw], make: Callable[[Draw], Batch]) -> None:
        if depth < 1:
            raise BadArgument(f"prefetch is {depth}; expected at least 1, or None for none")
        self.depth = depth
        self._draw = draw
        self._make = make
        self._process = os.getpid()
        self._threads: ThreadPoolExecutor | None = None
        self._under_way: deque[Future[Batch]] = deque()

    def next(self) -> Batch:
        """Return the oldest batch under way, and start new ones behind it."""
        if self._process != os.getpid():
            # Threads do not come along into a forked process: what they had under way never comes.
            self._threads, self._process = None, os.getpid()
            self._under_way.clear()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.depth, thread_name_prefix="rlds-prefetch")
        while len(self._under_way) <= self.depth:
            self._under_way.append(self._threads.submit(self._make, self._draw()))
        return self._under_way.popleft().result()

    def drain(self) -> None:
        """Forget the batches under way: what they were drawn from has changed."""
        for batch in self._under_way:
            batch.cancel()
        self._under_way.clear()

    def close(self) -> None:
        """End the threads."""
        self.drain()
        if self._threads is not None:
            self._threads.shutdown(wait=True)
            self._threads = None
