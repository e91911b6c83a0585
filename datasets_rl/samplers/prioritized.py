"""Sampler that draws steps in proportion to priorities, with replacement."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from typing_extensions import override

from datasets_rl.arguments import check
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.checkpoint import check_start_method
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.share import check_any_valid, empty_storage_error

if TYPE_CHECKING:
    from datasets_rl.samplers.sum_tree import SumTree
    from datasets_rl.storages.base import Storage

PRIORITY_WEIGHT = "priority_weight"
"""The key of the importance weights in a batch."""

_LIMIT = 2**40
"""Upper bound of `max_capacity`: no machine has memory for the priorities of more steps."""

_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda values: values.amax(1),
    "mean": lambda values: values.mean(1),
    "median": lambda values: values.median(1).values,
    "min": lambda values: values.amin(1),
}


class PrioritizedSampler(Sampler):
    """Draw steps with probability proportional to the priorities: prioritized experience replay (arXiv 1511.05952).

        >>> from datasets_rl import PrioritizedSampler, load
        >>> dataset = load("demo/pendulum", sampler=PrioritizedSampler(15_000, alpha=0.7, beta=0.9))
        >>> batch = dataset.sample(64)
        >>> dataset.update_priority(batch["index"], torch.ones(64))     # such as TD errors
        >>> batch["priority_weight"].shape
        torch.Size([64])

    The probability of a step with priority p is proportional to its mass (p + eps) ** alpha. Nonuniform sampling biases
    the gradient. To correct the bias, multiply the loss of each step by the importance weight, ``priority_weight`` in
    the batch:

        weight = (mass / smallest mass of all stored steps) ** -beta     at most 1

    Masses and their sums are float64, and the sums are exact up to rounding. A step of mass 0 is never drawn and is
    ignored in the smallest mass. New steps, including steps that replace others, get `default_priority`.

    Args:
        max_capacity: Number of steps that the storage can hold, at most: a larger storage is refused, and the default
            storage of a buffer is not larger. Only the rows that a storage of several environments adds to its size, to
            have whole slots, are accepted, too.
        alpha: Exponent of the priorities, >= 0. 0 gives uniform sampling. A tensor of a single number is read once.
        beta: Exponent of the importance weights, >= 0. 0 gives no correction of the bias, 1 the full correction.
        eps: Constant added to every priority, so that steps of priority 0 are occasionally drawn.
        dtype: Floating-point dtype of the weights.
        reduction: Reduction of several priorities of a step to a single priority: "max", "mean", "median" or "min".
        max_priority_within_buffer: Whether `default_priority` is the largest priority of the steps currently stored. If
            False, it is the largest priority ever given, so an early outlier remains the priority of new steps.
        device: Device of the priorities: only the CPU, where a draw takes microseconds. None for the same.
        sync: Whether writes are processed when they are reported. If False, writes are processed at the next draw, from
            the write count of the storage, which includes the writes of other processes. The sampler can then be sent
            to a spawned process, which may write but not sample. Priorities in data from such a process are ignored.
        generator: Random generator. By default torch's global generator, so that `torch.manual_seed` alone reproduces a
            run.

    Raises:
        InvalidArgumentError: If an argument is out of range.
    """

    draws_at_random = True

    def __init__(
        self,
        max_capacity: int,
        alpha: float | Tensor,
        beta: float | Tensor,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        device: torch.device | str | None = None,
        *,
        sync: bool = True,
        generator: Generator | None = None,
    ) -> None:
        problems = _number_problems(alpha=alpha, beta=beta, eps=eps)
        arguments: dict[str, Any] = {"max_capacity": max_capacity, "dtype": dtype}
        if not isinstance(arguments["max_capacity"], (int, np.integer)) or not 1 <= max_capacity < _LIMIT:
            problems.append(f"max_capacity is {max_capacity!r}, expected an integer >= 1 and below {_LIMIT}")
        if reduction not in _REDUCTIONS:
            problems.append(f"reduction is {reduction!r}, expected one of {', '.join(_REDUCTIONS)}")
        if not isinstance(arguments["dtype"], torch.dtype) or not dtype.is_floating_point:
            problems.append(f"dtype is {dtype}, expected a floating-point dtype")
        if device is not None and not str(device).startswith("cpu"):
            problems.append(f"device is {device}, expected cpu, where the priorities are")
        check(problems)
        self._capacity = self._room = int(max_capacity)
        self._alpha = float(alpha)
        self._beta = float(beta)
        self._eps = float(eps)
        self.dtype = dtype
        self.reduction = reduction
        self.generator = generator
        self._within = max_priority_within_buffer
        self._sync = sync
        self._elsewhere = False
        """Whether the priorities are in another process, which sent this sampler."""
        check(self._overflow_problems(self._alpha, self._eps, 1.0))
        self.empty()

    def __getstate__(self) -> dict[str, Any]:
        if not self._sync and get_spawning_popen() is not None:
            return {**super().__getstate__(), "_tree": None, "_elsewhere": True, "generator": None}
        check_start_method(
            self,
            "the priorities",
            "pass sync=False to the prioritized buffer: other processes may then write, and this process samples",
        )
        return super().__getstate__()

    def empty(self) -> None:
        """Forget all priorities."""
        from datasets_rl.samplers.sum_tree import SumTree  # deferred: imports numba

        self._tree: SumTree = SumTree(self._room, ranked=self._within)
        self._held = 0
        self._highest = 0.0
        self._torn: NDArray[np.int64] = np.empty(0, np.int64)
        self._seen = 0
        """Write count of the storage up to which writes were processed. Only used if `sync` is False."""

    @override
    def attach(self, storage: Storage) -> None:
        self._check_size(storage)

    def _check_size(self, storage: Storage) -> None:
        if storage.max_size - self._capacity >= storage.envs:
            raise InvalidArgumentError(
                f"max_capacity is {self._capacity:,}, and the storage holds up to {storage.max_size:,} steps, expected as "
                "many",
                hint=f"{type(self).__name__}(max_capacity={storage.max_size})",
            )

    @property
    def max_size(self) -> int:
        """Largest number of steps of the storage."""
        return self._capacity

    @property
    def device(self) -> torch.device:
        """Device of the priorities: the CPU."""
        return torch.device("cpu")

    @property
    def alpha(self) -> float:
        """Exponent of the priorities. A new value applies to all steps at once."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: float | Tensor) -> None:
        check(_number_problems(alpha=value))
        alpha = float(value)
        problems = self._priority_problems(self.priorities, alpha, self._eps)
        check([*problems, *self._overflow_problems(alpha, self._eps, self._highest)])
        self._alpha = alpha
        self._write_priorities(np.arange(self._held), self.priorities.numpy().copy())

    @property
    def beta(self) -> float:
        """Exponent of the importance weights."""
        return self._beta

    @beta.setter
    def beta(self, value: float | Tensor) -> None:
        check(_number_problems(beta=value))
        self._beta = float(value)

    @property
    def eps(self) -> float:
        """Constant added to every priority."""
        return self._eps

    @property
    def default_priority(self) -> float:
        """Priority of new steps: the largest priority (see `max_priority_within_buffer`), or 1 if all are 0."""
        return (self._tree.highest_priority if self._within else self._highest) or 1.0

    @property
    def priorities(self) -> Tensor:
        """Priority of each stored row, float64 [rows], a view."""
        return torch.from_numpy(self._tree.priorities[: self._held])

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draw `batch_size` steps.

        Returns:
            The rows, int64 [B], and the importance weights, [B].

        Raises:
            InvalidArgumentError: If the storage has no steps, or all masses are 0.
        """
        self._synchronize(storage)
        rows, masses = self._tree.draw(self._random_points(batch_size))
        return torch.from_numpy(rows), {PRIORITY_WEIGHT: self._importance_weights(masses)}

    def info_of(self, storage: Storage, rows: Tensor) -> dict[Any, Tensor]:
        """Return the info of `sample` with importance weights of 1, because the rows are not drawn by priority."""
        return {**super().info_of(storage, rows), PRIORITY_WEIGHT: torch.ones(len(rows), dtype=self.dtype)}

    def _random_points(self, count: int) -> NDArray[np.float64]:
        points: NDArray[np.float64] = torch.rand(count, dtype=torch.float64, generator=self.generator).numpy()
        return points

    def _importance_weights(self, masses: NDArray[np.float64]) -> Tensor:
        # The power function of numpy is faster than that of torch on many machines.
        return torch.from_numpy(np.power(self._tree.lowest / masses, self._beta)).to(self.dtype)

    def _synchronize(self, storage: Storage) -> None:
        """Add rows that the storage gained without notification, and drop rows that the storage no longer holds."""
        self._check_size(storage)
        self._catch_up(storage)
        held = len(storage)
        if not held:
            raise empty_storage_error()
        if held < self._held:
            priorities, highest = self.priorities[:held].numpy(), self._highest
            self.empty()
            self._held, self._highest = held, highest
            self._write_priorities(np.arange(held), priorities)
        self._add_rows_to(held)
        if storage.torn or len(self._torn):
            self._zero_torn_masses(storage)
        if not self._tree.total:
            raise InvalidArgumentError(
                f"the priorities of all {held:,} steps are 0, and so is eps: no step can be drawn",
                hint="update a priority, or pass eps > 0",
            )

    def _catch_up(self, storage: Storage) -> None:
        """Process the writes that were not reported, if `sync` is False."""
        if self._elsewhere:
            raise InvalidArgumentError(
                "this process has no priorities, which are in the process that created the buffer",
                hint="sample there, or with another buffer over the same storage",
            )
        written = storage.write_count
        if self._sync or written == self._seen:
            return
        if written < self._seen:
            self.empty()
        slots = torch.arange(max(self._seen, written - storage.slot_count), written) % storage.slot_count
        self._process_writes((slots.unsqueeze(1) * storage.envs + torch.arange(storage.envs)).flatten())
        self._seen = written

    def _zero_torn_masses(self, storage: Storage) -> None:
        """Set the mass of torn rows to 0, and give rows that another process has rewritten the default priority."""
        check_any_valid(storage, len(storage) - storage.torn)
        torn = storage.torn_rows().numpy()
        rewritten = np.setdiff1d(self._torn, torn)
        if len(rewritten):
            self._write_priorities(rewritten, np.array([self.default_priority]))
        newly_torn = torn[self._tree.masses_of(torn) > 0]
        if len(newly_torn):
            self._tree.write(newly_torn, np.zeros(1), 0.0, 1.0)
        self._torn = torn

    def _add_rows_to(self, stop: int) -> None:
        """Give the rows up to `stop` that the sampler does not have yet the default priority."""
        if stop > self._held:
            self._reserve(stop)
            rows, priority = range(self._held, stop), self.default_priority
            self._held, self._highest = stop, max(self._highest, priority)
            self._tree.append(rows, priority, self._eps, self._alpha)

    def _reserve(self, rows: int) -> None:
        """Make room for the rows of whole slots. The room doubles, so that the cost per row is constant."""
        if rows > self._room:
            check(_row_problems(torch.tensor([rows - 1]), 0, _LIMIT))
            self._room = max(rows, 2 * self._room)
            self._tree = self._tree.grown(self._room)

    def extend(self, index: Tensor) -> None:
        """Give the written rows the default priority."""
        if self._sync:
            self._process_writes(index)

    def _process_writes(self, index: Tensor) -> None:
        if not len(index):
            return
        stop = int(index.max()) + 1
        if len(self._torn):
            self._torn = np.setdiff1d(self._torn, index.numpy())
        replaced = index[index < self._held].numpy()
        if len(replaced):
            if self._within:
                # The replaced priorities must not count in the default priority of the new steps.
                self._tree.write(replaced, np.zeros(1), self._eps, self._alpha)
            self._write_priorities(replaced, np.array([self.default_priority]))
        self._add_rows_to(stop)

    def update_priority(self, index: Any, priority: Any, *, storage: Storage | None = None) -> None:
        """Set the priorities of rows.

        Args:
            index: Rows, int64 [...]. For a storage with several leading axes, also an index that its `ravel` accepts.
                If a row occurs twice, the last priority is used. A row of -1, which the writer did not store, is
                skipped.
            priority: A single priority for all rows, or a priority per row, [...]. Extra axes are reduced (see
                `reduction`). A tensor on any device, an array or a list.
            storage: The storage that contains the rows.

        Raises:
            InvalidArgumentError: If a priority is negative, not finite or too large for alpha, a row is out of range,
                or the shapes differ. The message lists all problems, and nothing has changed.
        """
        if self._elsewhere:
            return
        if storage is not None:
            self._catch_up(storage)
        rows = _checked_rows(index, storage)
        values = self._reduce_priority(priority, rows.shape)
        if rows.ndim != 1:
            rows = rows.reshape(-1)
        targets = rows.contiguous().numpy()
        if not len(targets):
            return
        limit = self._room if storage is None else min(len(storage), self._room)
        if not self._tree.are_valid(targets, values, limit, _largest_priority(self._alpha, self._eps)):
            check(
                [
                    *_row_problems(rows, -1, limit),
                    *self._priority_problems(torch.from_numpy(values), self._alpha, self._eps),
                ]
            )
            stored = targets >= 0
            targets, values = targets[stored], values if len(values) == 1 else values[stored]
            if not len(targets):
                return
        if limit > self._held:
            self._add_rows_to(int(targets.max()) + 1)
        self._write_priorities(targets, values)

    @override
    def expect_priority(self, priority: Tensor) -> None:
        values = torch.from_numpy(self._reduce_priority(priority, priority.shape[:1]))
        check(self._priority_problems(values, self._alpha, self._eps))

    def _reduce_priority(self, priority: Any, shape: torch.Size) -> NDArray[np.float64]:
        values = _as_float_tensor("priority", priority)
        if values.is_complex():
            raise InvalidArgumentError(f"priority is {values.dtype}, expected real numbers")
        if values.dtype != torch.float32 or not values.is_cpu:
            values = values.to("cpu", torch.float64)
        if values.shape != shape and values.numel() != 1:
            if values.shape[: len(shape)] != shape:
                raise InvalidArgumentError(
                    f"priority has shape {list(values.shape)}, expected a single number, or the shape of the index, {list(shape)}"
                )
            values = _REDUCTIONS[self.reduction](values.double().reshape(shape.numel(), -1))
        # Numpy converts a small batch in half of the time of torch.
        return np.ascontiguousarray(values.numpy(), np.float64).reshape(-1)

    def _write_priorities(self, rows: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        highest = self._tree.write(rows, priorities, self._eps, self._alpha)
        self._highest = max(self._highest, highest)

    def _overflow_problems(self, alpha: float, eps: float, highest: float) -> list[str]:
        """Return a problem if the mass of the largest priority of new rows would overflow."""
        highest = max(highest, 1.0)
        if _largest_priority(alpha, eps) >= highest:
            return []
        return [f"alpha is {alpha} and eps {eps}: the mass of a priority of {highest:.3g} would be too large"]

    def _priority_problems(self, priorities: Tensor, alpha: float, eps: float) -> list[str]:
        """Return a problem if priorities are invalid. A comparison with NaN is False, so NaN is invalid, too."""
        if not len(priorities):
            return []
        largest = _largest_priority(alpha, eps)
        if float(priorities.min()) >= 0 and float(priorities.max()) <= largest:
            return []
        invalid = (~((priorities >= 0) & (priorities <= largest))).nonzero().flatten()
        first = int(invalid[0])
        value = float(priorities[first])
        return [
            f"priority {first} of {len(priorities)} is {value}, one of {len(invalid)} priorities outside 0 to {largest:.3g}"
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the priorities and the parameters that determine probabilities and weights."""
        return {
            **super().state_dict(),
            "priorities": self.priorities.clone(),
            "highest": self._highest,
            "alpha": self._alpha,
            "beta": self._beta,
            "eps": self._eps,
        }

    @override
    def state_problems(self, state_dict: dict[str, Any]) -> list[str]:
        reasons = super().state_problems(state_dict)
        names = ("highest", "alpha", "beta", "eps")
        numbers: dict[str, Any] = {name: state_dict.get(name) for name in names}
        problems = _number_problems(**numbers)
        highest, alpha, _, eps = (1.0, self._alpha, 0.0, self._eps) if problems else map(float, numbers.values())
        reasons += problems + self._overflow_problems(alpha, eps, highest)
        priorities = state_dict.get("priorities")
        if not isinstance(priorities, Tensor) or priorities.dtype != torch.float64 or priorities.ndim != 1:
            return [*reasons, "priorities are not a float64 tensor [rows]"]
        return [*reasons, *self._priority_problems(priorities, alpha, eps)]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore priorities, alpha, beta and eps. The capacity may differ from the saved capacity."""
        super().load_state_dict(state_dict)
        self.empty()
        self._alpha, self._beta, self._eps = (float(state_dict[name]) for name in ("alpha", "beta", "eps"))
        priorities = state_dict["priorities"].cpu().contiguous()
        self._reserve(len(priorities))
        self._held = len(priorities)
        if self._held:
            self._write_priorities(np.arange(self._held), priorities.numpy())
        self._highest = float(state_dict["highest"])

    @override
    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        if self.state_problems(state_dict):
            return state_dict  # unchanged: load_state_dict rejects this state
        priorities = state_dict["priorities"]
        if len(priorities) % slots:
            # Another process has written rows, which this sampler adds at the next draw.
            raise InvalidArgumentError(
                f"the sampler has the priorities of {len(priorities)} rows, expected a multiple of the {slots} slots",
                hint="sample once before saving",
            )
        return {**state_dict, "priorities": priorities.reshape(slots, -1).roll(-shift, 0).reshape(-1)}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(max_capacity={self._capacity}, alpha={self._alpha}, beta={self._beta}, "
            f"eps={self._eps}, reduction={self.reduction!r})"
        )


@lru_cache
def _largest_priority(alpha: float, eps: float) -> float:
    """Return the largest priority for which the sum of the masses of all rows stays finite."""
    largest = math.log(sys.float_info.max / (2 * _LIMIT))
    return math.exp(min(largest / alpha, largest) if alpha else largest) - eps


def _number_problems(**values: Any) -> list[str]:
    """Return which arguments are not finite numbers >= 0."""
    return [
        f"{name} is {value!r}, expected a finite number >= 0"
        for name, value in values.items()
        if not _is_number(value) or not (math.isfinite(value) and value >= 0)
    ]


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, (int, float, np.number))


def _as_float_tensor(name: str, value: Any) -> Tensor:
    try:
        # Through numpy: numbers in lists keep 64 bits, and arrays may be read-only or have negative strides.
        if isinstance(value, Tensor):
            return value.detach() if value.requires_grad else value
        return torch.from_numpy(np.array(value, order="C"))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(f"{name} is {type(value).__name__}, expected numbers ({error})") from error


def _checked_rows(index: Any, storage: Storage | None) -> Tensor:
    if isinstance(index, Tensor) and index.dtype == torch.int64 and index.ndim == 1 and index.is_cpu:
        return index  # the conversions below take as long as writing a small batch
    if storage is not None and storage.ndim > 1 and (isinstance(index, tuple) or np.ndim(index) > 1):
        return storage.ravel(index).cpu()
    rows = _as_float_tensor("index", index)
    if rows.numel() and (rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool):
        raise InvalidArgumentError(f"index is {rows.dtype}, expected integers")
    return rows.to("cpu", torch.int64)


def _row_problems(rows: Tensor, start: int, stop: int) -> list[str]:
    if int(rows.min()) >= start and int(rows.max()) < stop:
        return []
    rows = rows.reshape(-1)
    invalid = ((rows < start) | (rows >= stop)).nonzero().flatten()
    first = int(invalid[0])
    return [f"index {first} of {len(rows)} is {int(rows[first])}, one of {len(invalid)} outside the {stop:,} rows"]
