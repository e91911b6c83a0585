"""Prefetching of groups of files in a thread, while the caller processes the previous groups."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from typing_extensions import Self

from datasets_rl.fetch.parallel import Cancelled, CancelToken

T = TypeVar("T")

_JOIN_TIMEOUT = 5.0
"""Seconds that an early exit waits for a thread that is blocked in the network."""


class Prefetcher(Generic[T]):
    """Context manager that fetches groups of files in order, in a thread, a limited number ahead of the caller.

        group     0 1 2 3 4 5 6
                  |---| |-| |-----
        released    taken  not fetched yet: with max_in_flight 3, group 5 is fetched when group 2 is released

    Args:
        groups: The groups, as arguments of `get`.
        get: Fetches a group and returns the result. Ends early when the token is set.
        max_in_flight: Maximum number of groups that are fetched, or being fetched, and not yet released.
    """

    def __init__(
        self, groups: Sequence[Sequence[Any]], get: Callable[[Sequence[Any], CancelToken], T], max_in_flight: int
    ) -> None:
        self._groups = groups
        self._get = get
        self._limit = max_in_flight
        self._ready: deque[T] = deque()
        self._failure: BaseException | None = None
        self._cancel = CancelToken()
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._fetch_groups, name="rlds-fetch", daemon=True)

    def __enter__(self) -> Self:
        # A single group is fetched in the caller's thread, where Ctrl-C ends the download at once.
        if len(self._groups) > 1:
            self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._cancel.set()
        with self._change:
            self._change.notify_all()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_TIMEOUT)

    def take(self) -> T:
        """Wait for the next group and return the result of `get`.

        Raises:
            FetchError, IntegrityError, DiskFullError: The exception that `get` raised.
        """
        if len(self._groups) == 1:
            return self._get(self._groups[0], self._cancel)
        with self._change:
            self._change.wait_for(lambda: self._ready or self._failure)
            if not self._ready and self._failure is not None:
                raise self._failure
            return self._ready.popleft()

    def release(self) -> None:
        """Release a processed group, so that another group can be fetched."""
        with self._change:
            self._limit += 1
            self._change.notify_all()

    def _fetch_groups(self) -> None:
        try:
            for number, group in enumerate(self._groups):
                with self._change:
                    self._change.wait_for(lambda number=number: number < self._limit or self._cancel.is_set())  # type: ignore[misc]
                self._cancel.check()
                result = self._get(group, self._cancel)
                with self._change:
                    self._ready.append(result)
                    self._change.notify_all()
        except Cancelled:
            return
        except BaseException as error:  # noqa: BLE001 - passed to the caller's thread, which raises it
            with self._change:
                self._failure = error
                self._change.notify_all()
