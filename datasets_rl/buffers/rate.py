"""The balance between inserting and sampling of a buffer that several processes use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from datasets_rl.errors import InvalidArgumentError, TimedOutError


class SamplesPerInsert:
    """Limit on how often each step is sampled on average: the faster side waits for the other side.

    After the first `min_size` steps, with i further inserted and s sampled steps:

        sampling n steps waits until    s + n <= ratio * i + tolerance
        inserting waits until           ratio * i <= s + tolerance

    The rule is that of Reverb's rate limiter `SampleToInsertRatio`, for calls that insert or sample many steps at once:
    an insertion may exceed the limit by its own steps.

    Args:
        ratio: Number of sampled steps for each inserted step.
        min_size: Number of steps that are inserted before the first sample.
        tolerance: Sampled steps by which either side may be ahead. By default twice the largest batch so far.

    Raises:
        InvalidArgumentError: If an argument is out of range.
    """

    def __init__(self, ratio: float, min_size: int = 1, tolerance: float | None = None) -> None:
        if not ratio > 0 or min_size < 0 or (tolerance is not None and not tolerance > 0):
            raise InvalidArgumentError(
                f"ratio, min_size and tolerance are {ratio}, {min_size} and {tolerance}, expected positive numbers"
            )
        self.ratio = ratio
        self.min_size = min_size
        self.tolerance = tolerance
        self.inserted = 0
        """Number of inserted steps."""
        self.sampled = 0
        """Number of sampled steps."""
        self._largest = 0
        self._changed = threading.Condition()

    def __getstate__(self) -> dict[str, float | None]:
        return {name: value for name, value in self.__dict__.items() if name != "_changed"}

    def __setstate__(self, state: dict[str, float | None]) -> None:
        self.__dict__.update(state)
        self._changed = threading.Condition()

    @property
    def _margin(self) -> float:
        return 2 * self._largest if self.tolerance is None else self.tolerance

    @property
    def _credit(self) -> float:
        return self.ratio * (self.inserted - self.min_size)

    @contextmanager
    def insertion(self, steps: int, timeout: float | None = None) -> Iterator[None]:
        """Wait until steps may be inserted. The steps count when the block ends without an error.

        Raises:
            TimedOutError: If the samplers did not catch up within `timeout` seconds.
        """
        self._wait(lambda: self._credit <= self.sampled + self._margin, "inserting", timeout)
        yield
        with self._changed:
            self.inserted += steps
            self._changed.notify_all()

    @contextmanager
    def sample(self, steps: int, timeout: float | None = None) -> Iterator[None]:
        """Wait until steps may be sampled, and count the steps.

        Raises:
            InvalidArgumentError: If a batch of this size could never be sampled.
            TimedOutError: If too few steps were inserted within `timeout` seconds.
        """
        self._largest = max(self._largest, steps)
        if steps > 2 * self._margin:
            raise InvalidArgumentError(
                f"a batch of {steps:,} steps never fits a tolerance of {self._margin:,}",
                hint=f"raise tolerance to {-(-steps // 2):,} or more",
            )
        self._wait(
            lambda: self.inserted >= self.min_size and self.sampled + steps <= self._credit + self._margin,
            "sampling",
            timeout,
            sampled=steps,
        )
        yield

    def _wait(self, is_allowed: Callable[[], bool], what: str, timeout: float | None, sampled: int = 0) -> None:
        with self._changed:
            if not self._changed.wait_for(is_allowed, timeout):
                raise TimedOutError(
                    f"{what} waited for {timeout} seconds: {self.inserted:,} steps were inserted and {self.sampled:,} "
                    f"sampled, at {self.ratio} samples for each insertion"
                )
            self.sampled += sampled  # under the same lock, or two threads could take the same credit
            self._changed.notify_all()
