"""An audit uses one thread for each product of matrices, and leaves the threads of the process as they were."""

from __future__ import annotations

import pytest
from stored_data import trajectory, write_dataset
from threadpoolctl import threadpool_info, threadpool_limits

from datasets_rl import audit
from datasets_rl.auditing._threads import one_matrix_thread
from datasets_rl.auditing.checks.not_finite import NotFinite


def of_numpy() -> list[int]:
    """Return the number of threads of each copy of OpenBLAS that numpy uses, by another package."""
    return [one["num_threads"] for one in threadpool_info() if "numpy" in one["filepath"]]


@pytest.fixture
def three():
    """Three threads in the process, whatever the tests have set."""
    with threadpool_limits(3, "blas"):
        if of_numpy() != [3]:
            pytest.skip("numpy is linked with another library, or with a system's")
        yield


@pytest.mark.usefixtures("three")
def test_audits_at_the_same_time_use_one_thread_until_the_last_one_ends():
    first, second = one_matrix_thread(), one_matrix_thread()
    with first:
        assert of_numpy() == [1]
        second.__enter__()
    assert of_numpy() == [1]
    second.__exit__(None, None, None)
    assert of_numpy() == [3]


@pytest.mark.usefixtures("three")
def test_an_audit_uses_one_thread_and_gives_the_others_back_after_an_error_too(tmp_path, monkeypatch):
    folder = write_dataset(tmp_path / "toy", [trajectory(20, seed=one) for one in range(4)]).folder
    seen = []

    def fail(*_):
        seen.extend(of_numpy())
        raise RuntimeError("no")

    audit(folder)
    assert of_numpy() == [3]
    monkeypatch.setattr(NotFinite, "measure", fail)
    with pytest.raises(RuntimeError, match="no"):
        audit(folder, checks=["not_finite"])
    assert seen[:1] == [1]
    assert of_numpy() == [3]
