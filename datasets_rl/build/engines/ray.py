"""The engine that writes partial datasets by tasks of a Ray cluster with a shared folder of datasets.

If a node dies, Ray runs the node's tasks again on other nodes. Two attempts at a task do not conflict, because each
writes into a separate folder until complete.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from typing_extensions import Self

from datasets_rl.build.engines import TaskFunction, TaskResult, WorkerDiedError
from datasets_rl.errors import Argument, InvalidArgumentError, Remedy
from datasets_rl.format.manifest import converter_version
from datasets_rl.libraries import importing
from datasets_rl.progress import Report

_TASKS_PER_CORE = 2
"""Tasks for each core of the cluster, running or queued."""
_MAX_RETRIES = 3
"""The number of times that a task is run again after its node died."""
_EXIT_TIMEOUT = 10.0
"""Seconds to wait on exit for tasks with results that are no longer needed, so that no task writes after the run."""

_OBJECT_STORE_BYTES = 80 << 20
"""Shared memory of a cluster that is started here. Ray requires at least as much."""


class RayEngine:
    """An engine that writes partial datasets in the processes of a Ray cluster.

    Args:
        address: "auto" for the cluster of this machine, "ray://HOST:10001" for another cluster. By default the cluster
            of RAY_ADDRESS or of this machine, or else a cluster that is started here and shut down on exit.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    def __enter__(self) -> Self:
        """Connect to the cluster.

        Raises:
            MissingDependencyError: If Ray is not installed.
            InvalidArgumentError: If no cluster answers.
        """
        with importing("ray", "ray", "the engine ray"):
            import ray
        self._ray: Any = ray
        self._running: set[Any] = set()
        self._own = not ray.is_initialized()
        if self._own:
            connect(ray, self._address)
            # Ray's messages about nodes that die must not mix with the data on stdout.
            self._redirect = redirect_stdout(sys.stderr)
            self._redirect.__enter__()
        self._remote_call = ray.remote(max_retries=_MAX_RETRIES)(_run_task)
        return self

    def __exit__(self, *details: object) -> None:
        # No task is cancelled: Ray 2.60 crashes if a task ends at that moment. The tasks are few, and a later run uses
        # the partial datasets.
        if self._own:
            self._ray.shutdown()
            self._redirect.__exit__(None, None, None)
        elif self._running:
            self._ray.wait([*self._running], num_returns=len(self._running), timeout=_EXIT_TIMEOUT)

    @property
    def max_in_flight(self) -> int:
        """The number of partial datasets to have at once: two for each core that the cluster has now."""
        return _TASKS_PER_CORE * max(1, int(self._ray.cluster_resources().get("CPU", 0)))

    def submit(self, make: TaskFunction, task: Mapping[str, Any], report: Report) -> TaskResult:  # noqa: ARG002 -- Ray reports no steps
        """Submit a task to the cluster. All nodes must see the paths in `task`.

        If the node of a task dies, the task is run again on another node up to `_MAX_RETRIES` times. The result then
        raises `WorkerDiedError`.
        """
        reference = self._remote_call.remote(make, task, converter_version())
        self._running.add(reference)

        def wait() -> Mapping[str, Any]:
            try:
                result: Mapping[str, Any] = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except self._ray.exceptions.RayError as error:
                raise WorkerDiedError(
                    f"was lost: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
                    hint="repeat the same call to continue after the completed partial datasets. `ray status` shows the nodes",
                ) from error
            self._running.remove(reference)
            return result

        return wait


def connect(ray: Any, address: str | None, object_store_bytes: int = _OBJECT_STORE_BYTES) -> None:
    """Connect this process to a cluster.

    Args:
        ray: The module ``ray``.
        address: As for `RayEngine`.
        object_store_bytes: Shared memory of a cluster that is started here.

    Raises:
        InvalidArgumentError: If no cluster answers.
    """
    quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
    try:
        ray.init(address or "auto", **quiet)
    except (ConnectionError, TimeoutError) as error:
        if address is not None or "RAY_ADDRESS" in os.environ:
            raise InvalidArgumentError(
                f"no Ray cluster answers at {address or os.environ['RAY_ADDRESS']}: {error}",
                hint="start a cluster with `ray start --head`, or leave the address out",
            ) from error
        # Only tasks and results go through Ray: the data is in files. Ray's warnings about access without a password do
        # not apply to a cluster that only this process uses.
        quiet["logging_level"] = logging.ERROR
        ray.init("local", include_dashboard=False, object_store_memory=object_store_bytes, **quiet)


def _run_task(make: TaskFunction, task: Mapping[str, Any], version: str) -> Mapping[str, Any]:
    """Run a task on a node, after checking that the node has the same version and sees the folder."""
    if converter_version() != version:
        raise InvalidArgumentError(
            f"{socket.gethostname()} has datasets-rl {converter_version()}, expected {version}, the version of the process "
            "that submitted the task",
            hint="all nodes need the same version, or the partial datasets would not match",
        )
    folder = Path(task["folder"]).parent
    if not folder.is_dir():
        raise InvalidArgumentError(
            f"{socket.gethostname()} does not see {folder}",
            hint=Remedy("store the datasets in a folder that all nodes share: {} or RLDS_HOME", Argument("root")),
        )
    return make(task, Report())
