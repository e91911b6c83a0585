"""Parts made by the tasks of a Ray cluster, whose nodes share the folder of the datasets.

A node that dies loses the parts that it was making: Ray makes them again elsewhere. Two attempts at one part do not
meet, because each has a folder of its own until it is done.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl.errors import InvalidArgumentError, MissingDependencyError
from datasets_rl.format.manifest import converter_version
from datasets_rl.pipeline.engines import TaskFunction, TaskResult, WorkerDiedError
from datasets_rl.progress import Report

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RayEngine"]

_AHEAD = 2
"""Tasks that are running, or waiting for their turn, for each core of the cluster."""
_RETRIES = 3
"""How many nodes may die under a part."""
_GRACE = 10.0
"""Seconds that are waited for tasks that nobody wants any more, so that they do not write behind the run's back."""

_STORE = 80 << 20
"""Bytes of shared memory of a cluster that is started here; Ray takes no less."""


class RayEngine:
    """Makes parts in the processes of a Ray cluster.

    Args:
        address: "auto" for the cluster that this machine belongs to, "ray://HOST:10001" for another one; by default
            that of RAY_ADDRESS or of this machine, or else one that is started here and ends with the run.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    def __enter__(self) -> Self:
        """Connect to the cluster.

        Raises:
            MissingDependencyError: If Ray is not installed.
            InvalidArgumentError: If no cluster answers.
        """
        try:
            import ray
        except ImportError as error:
            raise MissingDependencyError("ray", "ray", "the engine ray") from error
        self._ray: Any = ray
        self._begun: set[Any] = set()
        self._own = not ray.is_initialized()
        if self._own:
            _connect(ray, self._address)
            # What Ray tells of nodes that die must not come between the data on stdout.
            self._aside = redirect_stdout(sys.stderr)
            self._aside.__enter__()
        self._call = ray.remote(max_retries=_RETRIES)(_call)
        return self

    def __exit__(self, *details: object) -> None:
        # None is cancelled: Ray 2.60 dies of a task that ends at that moment. They are few, and what they make is of use.
        if self._own:
            self._ray.shutdown()
            self._aside.__exit__(None, None, None)
        elif self._begun:
            self._ray.wait([*self._begun], num_returns=len(self._begun), timeout=_GRACE)

    @property
    def max_in_flight(self) -> int:
        """How many parts there should be at once: two for each core that the cluster has now."""
        return _AHEAD * max(1, int(self._ray.cluster_resources().get("CPU", 0)))

    def submit(self, make: TaskFunction, task: Mapping[str, Any], report: Report) -> TaskResult:  # noqa: ARG002 -- Ray tells of no steps
        """Let a node make a part; `task` has paths that all nodes see. The node dies of it a few times before it is lost."""
        reference = self._call.remote(make, task, converter_version())
        self._begun.add(reference)

        def wait() -> Mapping[str, Any]:
            try:
                said: Mapping[str, Any] = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except self._ray.exceptions.RayError as error:
                raise WorkerDiedError(
                    f"was lost: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
                    hint="run it again to go on behind the parts that are there; `ray status` shows the nodes",
                ) from error
            self._begun.remove(reference)
            return said

        return wait


def _connect(ray: Any, address: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
    try:
        ray.init(address or "auto", **quiet)
    except (ConnectionError, TimeoutError) as error:
        if address is not None or "RAY_ADDRESS" in os.environ:
            raise InvalidArgumentError(
                f"no Ray cluster answers at {address or os.environ['RAY_ADDRESS']}: {error}",
                hint="start one with `ray start --head`, or leave the address out",
            ) from error
        # Parts lie in files: what goes through Ray is small.
        # That it needs a password, or none, is of no interest where none but this process knows of it.
        quiet["logging_level"] = logging.ERROR
        ray.init("local", include_dashboard=False, object_store_memory=_STORE, **quiet)


def _call(make: TaskFunction, task: Mapping[str, Any], version: str) -> Mapping[str, Any]:
    """Make a part on a node."""
    if converter_version() != version:
        raise InvalidArgumentError(
            f"{socket.gethostname()} has datasets-rl {converter_version()}; expected {version}, as where this was started",
            hint="all nodes need the same version, or the parts would not fit together",
        )
    folder = Path(task["folder"]).parent
    if not folder.is_dir():
        raise InvalidArgumentError(
            f"{socket.gethostname()} does not see {folder}",
            hint="the datasets must lie in a folder that all nodes share: --root DIR or RLDS_HOME",
        )
    return make(task, Report())
