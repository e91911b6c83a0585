"""The balance between inserting and sampling."""

import pickle
import threading

import pytest

from datasets_rl import SamplesPerInsert
from datasets_rl.errors import InvalidArgumentError, TimedOutError


def insert(limiter, steps, timeout=0.0):
    """Insert steps, if the limiter allows it at once."""
    with limiter.insertion(steps, timeout):
        pass


def sample(limiter, steps, timeout=0.0):
    """Sample steps, if the limiter allows it at once."""
    with limiter.sample(steps, timeout):
        pass


def test_sampling_waits_for_the_first_steps_and_then_for_the_ratio():
    limiter = SamplesPerInsert(2.0, min_size=10, tolerance=4)
    insert(limiter, 9)
    with pytest.raises(TimedOutError, match="9 steps were inserted and 0 sampled"):
        sample(limiter, 4)
    insert(limiter, 1)
    sample(limiter, 4)  # the tolerance
    with pytest.raises(TimedOutError):
        sample(limiter, 1)
    insert(limiter, 1)
    sample(limiter, 2)
    with pytest.raises(TimedOutError):
        sample(limiter, 1)


def test_inserting_waits_for_the_samplers_after_the_tolerance():
    limiter = SamplesPerInsert(2.0, min_size=10, tolerance=4)
    insert(limiter, 10)
    insert(limiter, 3)  # exceeds the tolerance by its own steps
    with pytest.raises(TimedOutError, match="inserting waited"):
        insert(limiter, 1)
    sample(limiter, 2)
    insert(limiter, 1)


def test_threads_keep_the_ratio():
    limiter = SamplesPerInsert(3.0, min_size=20)
    stop = threading.Event()
    drift = []

    def fill():
        while not stop.is_set():
            try:
                insert(limiter, 5, 0.05)
            except TimedOutError:
                continue

    threads = [threading.Thread(target=fill) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        sample(limiter, 8, 10.0)
        drift.append(3.0 * (limiter.inserted - 20) - limiter.sampled)
    stop.set()
    for thread in threads:
        thread.join()

    # The tolerance is 16, and each of three threads may insert 5 steps beyond it.
    assert min(drift) >= -16
    assert max(drift) <= 16 + 3 * 3 * 5


def test_a_failed_insertion_is_not_counted():
    limiter = SamplesPerInsert(1.0)
    with pytest.raises(ZeroDivisionError), limiter.insertion(5):
        1 / 0  # noqa: B018 - it raises

    assert limiter.inserted == 0


def test_impossible_settings_and_batches_are_refused():
    with pytest.raises(InvalidArgumentError, match="expected positive numbers"):
        SamplesPerInsert(0.0)
    with pytest.raises(InvalidArgumentError, match="a batch of 9 steps never fits a tolerance of 4"):
        sample(SamplesPerInsert(1.0, tolerance=4), 9)


def test_counts_survive_pickling():
    limiter = SamplesPerInsert(1.0)
    insert(limiter, 3)

    assert pickle.loads(pickle.dumps(limiter)).inserted == 3
