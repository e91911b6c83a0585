"""Groups of files, fetched one behind the other while somebody works on those that are there."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from datasets_rl.fetch.asset import Asset
from datasets_rl.fetch.parallel import Cancelled, CancelToken

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Prefetcher"]

T = TypeVar("T")

_GRACE = 5.0
"""Seconds that an end before its time waits for a thread that is blocked in the network."""


class Prefetcher(Generic[T]):
    """Fetches groups in their order, in a thread, and no more of them than there is room for. A context manager.

        group     0 1 2 3 4 5 6
                  |---| |-| |-----
        released    taken  still to come; with room 3, group 5 is fetched when group 2 is released

    Args:
        groups: The files of each group.
        get: Fetches a group, and says what came of it; ends when the flag goes up.
        max_in_flight: Groups that may be there, or on their way, and not released.
    """

    def __init__(
        self, groups: Sequence[Sequence[Asset]], get: Callable[[Sequence[Asset], CancelToken], T], max_in_flight: int
    ) -> None:
        self._groups = groups
        self._get = get
        self._room = max_in_flight
        self._there: deque[T] = deque()
        self._failure: BaseException | None = None
        self._halt = CancelToken()
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="rlds-fetch", daemon=True)

    def __enter__(self) -> Self:
        # A single group has nothing to be ahead of: fetched in the caller's thread, Ctrl-C ends it at once.
        if len(self._groups) > 1:
            self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._halt.set()
        with self._change:
            self._change.notify_all()
        if self._thread.ident is not None:
            self._thread.join(_GRACE)

    def take(self) -> T:
        """Wait for the next group.

        Raises:
            FetchError, IntegrityError, DiskFullError: Whatever fetching it raised.
        """
        if len(self._groups) == 1:
            return self._get(self._groups[0], self._halt)
        with self._change:
            self._change.wait_for(lambda: self._there or self._failure)
            if not self._there and self._failure is not None:
                raise self._failure
            return self._there.popleft()

    def release(self) -> None:
        """Say that a group is used up."""
        with self._change:
            self._room += 1
            self._change.notify_all()

    def _work(self) -> None:
        try:
            for number, group in enumerate(self._groups):
                with self._change:
                    self._change.wait_for(lambda number=number: number < self._room or self._halt.is_set())  # type: ignore[misc]
                self._halt.check()
                came = self._get(group, self._halt)
                with self._change:
                    self._there.append(came)
                    self._change.notify_all()
        except Cancelled:
            return
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
            with self._change:
                self._failure = error
                self._change.notify_all()
