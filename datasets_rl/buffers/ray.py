"""A replay buffer in a process of a Ray cluster, beside the programs that fill the buffer and train with it.

collector ── extend ──>  actor: buffer, limiter, checkpoint  <── sample ── trainer
<── sample ── trainer
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, is_tensor_collection
from torch import Tensor
from torch.utils._pytree import tree_leaves

from datasets_rl.buffers.rate import SamplesPerInsert
from datasets_rl.buffers.replay import ReplayBuffer
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer
from datasets_rl.build.engines.ray import connect
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.libraries import importing
from datasets_rl.ted.keys import as_key, nest_keys

_THREADS = {"sample": 32, "write": 32, "other": 4}
"""Threads of the actor by kind of call: calls that wait for the limiter must not keep others from running."""
_KINDS = {"sample": "sample", "extend": "write", "add": "write"}
_OBJECT_STORE_BYTES = 512 << 20
"""Shared memory of a cluster that is started here, through which batches pass."""
_RETRY_SECONDS = 120.0
"""Seconds for which a call is repeated while an actor that died is started again."""
_RETRY_PAUSE = 0.2
_NO_ARRAYS = {torch.bfloat16}
"""Dtypes that numpy does not have."""


def _forwarded(name: str) -> Any:
    """Return the method of a client that calls the method of this name of the buffer."""

    def forward(self: RayReplayBufferClient, *arguments: Any) -> Any:
        return self._call("call", name, *map(_packed, arguments))

    forward.__doc__ = f"Call the method `{name}` of the buffer, see `TensorDictReplayBuffer`."
    return forward


class RayReplayBufferClient:
    """A program's access to a `RayReplayBuffer`, which can be sent to other processes of the cluster.

    Args:
        actor: The handle of the actor.
        batch_size: Default number of steps in a batch.
        prefetch: Number of requests for batches that are sent ahead of time.
        batches_per_call: Number of batches that each request asks for.
    """

    def __init__(self, actor: Any, batch_size: int | None, prefetch: int = 2, batches_per_call: int = 1) -> None:
        self._actor = actor
        self.batch_size = batch_size
        self.prefetch = prefetch
        self.batches_per_call = batches_per_call
        self._requests: deque[Any] = deque()
        self._received: deque[Any] = deque()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_requests": deque(), "_received": deque()}

    def extend(self, data: Any, *, update_priority: bool = True, timeout: float | None = None) -> Tensor:
        """Write several steps, as `ReplayBuffer.extend`.

        Args:
            data: The steps. Tensors are sent from the CPU.
            update_priority: Whether to use the priorities in the data.
            timeout: Seconds to wait for the limiter.

        Returns:
            The indices of the steps, int64 [n].

        Raises:
            TimedOutError: If the samplers did not catch up in time.
        """
        index: Tensor = self._call("extend", _packed(data), update_priority, timeout)
        return index

    def add(self, data: Any, *, timeout: float | None = None) -> Any:
        """Write a step, as `ReplayBuffer.add`, with `timeout` as for `extend`."""
        return self._call("add", _packed(data), timeout)

    def sample(self, batch_size: int | None = None, return_info: bool = False, *, timeout: float | None = None) -> Any:
        """Sample a batch, as `ReplayBuffer.sample`.

        Batches of the default size are requested ahead of time, and therefore do not hold steps that were written
        since.

        Raises:
            InvalidArgumentError: If no batch size is given, or the buffer is empty.
            TimedOutError: If too few steps were inserted in time.
        """
        size = self.batch_size if batch_size is None else batch_size
        if return_info or size != self.batch_size or not self.prefetch:
            batch, info = self._call("sample", size, 1, timeout)[0]
            return (batch, info) if return_info else batch
        if not self._received:
            self._received.extend(self._next_batches(size, timeout))
        return self._received.popleft()[0]

    def _next_batches(self, size: int | None, timeout: float | None) -> list[Any]:
        """Return the batches of the oldest request, or of a new request if it is lost."""
        while len(self._requests) <= self.prefetch:
            self._requests.append(self._submit("sample", size, self.batches_per_call, timeout))
        try:
            batches: list[Any] = self._get(self._requests.popleft())
        except _actor_errors():
            self._requests.clear()
            batches = self._call("sample", size, self.batches_per_call, timeout)
        except BaseException:
            self._requests.clear()
            raise
        return batches

    def __iter__(self) -> Iterator[Any]:
        """Yield batches without end."""
        while True:
            yield self.sample()

    update_priority = _forwarded("update_priority")
    update_tensordict_priority = _forwarded("update_tensordict_priority")
    empty = _forwarded("empty")
    state_dict = _forwarded("state_dict")
    load_state_dict = _forwarded("load_state_dict")
    __len__ = _forwarded("__len__")
    __getitem__ = _forwarded("__getitem__")
    __setitem__ = _forwarded("__setitem__")

    def dumps(self, path: Path | str) -> None:
        """Write the state into a folder that the actor sees."""
        self._call("call", "dumps", str(Path(path).absolute()))

    def loads(self, path: Path | str) -> None:
        """Restore a state from a folder that the actor sees."""
        self._call("call", "loads", str(Path(path).absolute()))

    @property
    def write_count(self) -> int:
        """Number of steps written since the buffer was empty."""
        return int(self.stats()["write_count"])

    def stats(self) -> dict[str, Any]:
        """Return figures of the process.

        Returns:
            ``size``, ``write_count``, and the numbers of steps ``inserted`` and ``sampled``. Whether the process was
            ``restarted``, the number of steps ``restored`` from a checkpoint, and the ``pid`` on its node.
        """
        return self._call("stats")  # type: ignore[no-any-return]  # a call may return anything

    def _submit(self, method: str, *arguments: Any) -> Any:
        kind = _KINDS.get(method, "other")
        return self._actor.run.options(concurrency_group=kind).remote(method, *arguments)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the actor. While an actor that died starts again, the call is repeated."""
        deadline = time.monotonic() + _RETRY_SECONDS
        while True:
            try:
                return self._get(self._submit(method, *arguments))
            except _actor_errors():
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_PAUSE)

    @staticmethod
    def _get(reference: Any) -> Any:
        import ray

        result = ray.get(reference)
        if isinstance(result, _Failure):
            raise result.error
        return _unpacked(result)


class RayReplayBuffer(RayReplayBufferClient):
    """A replay buffer in a separate process, which Ray starts on this machine or on another node of a cluster.

        >>> rb = RayReplayBuffer(storage=partial(LazyTensorStorage, 1_000_000), batch_size=256)
        >>> collect.remote(rb.client())            # tasks and actors that call rb.extend(data)
        >>> batch = rb.sample()
        >>> rb.shutdown()

    If the process of the buffer dies, Ray starts it again with the steps of the last checkpoint. Calls wait, and calls
    that were running are repeated, so that steps may be written twice.

    Args:
        replay_buffer_cls: The class of the buffer.
        prefetch: Number of requests for batches that each client sends ahead of time. 0 or None sends no request.
            Batches are then older by as many requests.
        batches_per_call: Number of batches that each request asks for: with small batches, the time of a call counts
            more than its bytes.
        limiter: The number of samples for each inserted step; by default neither side waits for the other.
        checkpoint: Folder of the checkpoints, which all nodes see. If the folder holds a checkpoint, the buffer starts
            with the checkpoint.
        checkpoint_every: Number of inserted steps between two checkpoints.
        ray_init_config: Arguments of `ray.init`. By default the cluster of RAY_ADDRESS or of this machine, or a cluster
            that is started here and ends with `shutdown`.
        remote_config: Options of the actor, such as ``num_cpus`` (0 by default) and ``resources``.
        transform_factory: Returns the transform, created in the process of the buffer, unlike `transform`.
        **kwargs: Arguments of `replay_buffer_cls`. Storages, samplers and writers are best given as factories, so that
            these are created in the process of the buffer.

    Raises:
        MissingDependencyError: If Ray is not installed.
        InvalidArgumentError: If the arguments do not fit each other, or no cluster answers.
    """

    def __init__(
        self,
        *,
        replay_buffer_cls: type[ReplayBuffer] = TensorDictReplayBuffer,
        batch_size: int | None = None,
        prefetch: int | None = 2,
        batches_per_call: int = 1,
        limiter: SamplesPerInsert | None = None,
        checkpoint: Path | str | None = None,
        checkpoint_every: int | None = None,
        ray_init_config: Mapping[str, Any] | None = None,
        remote_config: Mapping[str, Any] | None = None,
        transform_factory: Callable[[], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if (checkpoint is None) != (checkpoint_every is None):
            raise InvalidArgumentError(
                f"checkpoint is {checkpoint!r} and checkpoint_every {checkpoint_every!r}, expected both or neither"
            )
        with importing("ray", "ray", "a buffer in another process"):
            import ray
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster and ray_init_config is not None:
            ray.init(**ray_init_config)
        elif self._owns_cluster:
            connect(ray, None, object_store_bytes=_OBJECT_STORE_BYTES)
        options = {"num_cpus": 0, "max_restarts": -1, "concurrency_groups": _THREADS, **(remote_config or {})}
        folder = None if checkpoint is None else str(Path(checkpoint).absolute())
        kwargs["batch_size"] = batch_size
        actor = ray.remote(**options)(_Actor).remote(
            replay_buffer_cls, kwargs, transform_factory, limiter, folder, checkpoint_every
        )
        super().__init__(actor, batch_size, prefetch or 0, batches_per_call)
        try:
            self.stats()  # errors of the arguments are raised here
        except BaseException:
            self.shutdown()
            raise

    def client(self) -> RayReplayBufferClient:
        """Return an object for other processes, which can use the buffer but cannot end its process."""
        return RayReplayBufferClient(self._actor, self.batch_size, self.prefetch, self.batches_per_call)

    def __reduce__(self) -> Any:
        return RayReplayBufferClient, (self._actor, self.batch_size, self.prefetch, self.batches_per_call)

    def shutdown(self) -> None:
        """End the process of the buffer, and a cluster that was started here."""
        import ray

        self._requests.clear()
        if ray.is_initialized():
            ray.kill(self._actor)
            if self._owns_cluster:
                ray.shutdown()

    close = shutdown


class _Actor:
    """The process of the buffer."""

    def __init__(
        self,
        buffer_class: type[ReplayBuffer],
        arguments: dict[str, Any],
        transform_factory: Callable[[], Any] | None,
        limiter: SamplesPerInsert | None,
        checkpoint: str | None,
        checkpoint_every: int | None,
    ) -> None:
        import ray

        self._restarted = ray.get_runtime_context().was_current_actor_reconstructed
        self._limiter = limiter or SamplesPerInsert(1.0, 0, math.inf)
        self._checkpoint = checkpoint
        self._every = checkpoint_every or 0
        self._unsaved = 0
        self._saving = threading.Lock()
        self._restored = 0
        self._failure: Exception | None = None
        try:
            if transform_factory is not None:
                arguments = {**arguments, "transform": transform_factory()}
            self._buffer = buffer_class(**arguments)
            if checkpoint is not None and Path(checkpoint).exists():
                self._buffer.loads(checkpoint)
                self._restored = len(self._buffer)
                self._limiter.inserted = self._buffer.write_count
        except Exception as error:  # noqa: BLE001 - Ray would repeat a start that fails again and again
            self._failure = error

    def run(self, method: str, *arguments: Any) -> Any:
        """Call a method. An error is returned, because Ray prints errors of requests for which no caller waits."""
        if self._failure is not None:
            return _Failure(self._failure)
        try:
            return getattr(self, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - the client raises any error
            return _Failure(error)

    def extend(self, data: Any, update_priority: bool, timeout: float | None) -> Any:
        """Write several steps, when the limiter allows the write."""
        steps = _unpacked(data)
        count = _step_count(steps)
        with self._limiter.insertion(count, timeout):
            index = self._buffer.extend(steps, update_priority=update_priority)
        self._save(count)
        return _packed(index)

    def add(self, data: Any, timeout: float | None) -> Any:
        """Write a step, when the limiter allows the write."""
        with self._limiter.insertion(1, timeout):
            index = self._buffer.add(_unpacked(data))
        self._save(1)
        return _packed(index)

    def sample(self, batch_size: int | None, batches: int, timeout: float | None) -> list[Any]:
        """Sample several batches, each with its info, when the limiter allows the draw."""
        size = self._buffer.batch_size if batch_size is None else batch_size
        with self._limiter.sample((size or 1) * batches, timeout):
            return [_packed(self._buffer.sample(size, return_info=True)) for _ in range(batches)]

    def call(self, method: str, *arguments: Any) -> Any:
        """Call another method of the buffer."""
        return _packed(getattr(self._buffer, method)(*map(_unpacked, arguments)))

    def stats(self) -> dict[str, Any]:
        """Return the figures of `RayReplayBufferClient.stats`."""
        return {
            "size": len(self._buffer),
            "write_count": self._buffer.write_count,
            "inserted": self._limiter.inserted,
            "sampled": self._limiter.sampled,
            "restarted": self._restarted,
            "restored": self._restored,
            "pid": os.getpid(),
        }

    def _save(self, steps: int) -> None:
        """Write a checkpoint if a checkpoint is due."""
        if self._checkpoint is None:
            return
        with self._saving:
            self._unsaved += steps
            if self._unsaved >= self._every:
                self._buffer.dumps(self._checkpoint)
                self._unsaved = 0


def _actor_errors() -> tuple[type[Exception], ...]:
    """Return the errors of calls to an actor that died or is being started again."""
    import ray

    return (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError)


def _step_count(steps: Any) -> int:
    if isinstance(steps, list):
        return len(steps)
    if is_tensor_collection(steps):
        return int(steps.numel())
    return len(next(leaf for leaf in tree_leaves(steps) if isinstance(leaf, Tensor)))


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error of a call."""

    error: Exception


@dataclass(frozen=True, slots=True)
class _PackedTensorDict:
    """A TensorDict with arrays as tensors, which Ray passes through shared memory."""

    values: dict[Any, Any]
    batch_size: list[int]


def _packed(value: Any) -> Any:
    """Return data with arrays instead of tensors: Ray copies tensors several times, and arrays once."""
    if is_tensor_collection(value):
        values = {as_key(key): _packed(leaf) for key, leaf in value.items(True, True)}
        return _PackedTensorDict(values, list(value.batch_size))
    if isinstance(value, Tensor):
        tensor = value.detach().cpu().contiguous()
        return tensor if tensor.dtype in _NO_ARRAYS else tensor.numpy()
    if isinstance(value, dict):
        return {name: _packed(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_packed, value))
    return value


def _unpacked(value: Any) -> Any:
    """Return the data of `_packed`, with tensors in separate memory."""
    if isinstance(value, _PackedTensorDict):
        return TensorDict(nest_keys({key: _unpacked(leaf) for key, leaf in value.values.items()}), value.batch_size)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, dict):
        return {name: _unpacked(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_unpacked, value))
    return value
