"""In proportion to priorities, with replacement."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from datasets_rl.checkpoint import check_start_method
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.share import expect_valid

if TYPE_CHECKING:
    from datasets_rl.samplers.sum_tree import SumTree
    from datasets_rl.storages.base import Storage

__all__ = ["PRIORITY_WEIGHT", "PrioritizedSampler"]

PRIORITY_WEIGHT = "priority_weight"
"""The key of the importance weights in a batch."""

_LIMIT = 2**40
"""Steps that no memory holds the priorities of."""

_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda values: values.amax(1),
    "mean": lambda values: values.mean(1),
    "median": lambda values: values.median(1).values,
    "min": lambda values: values.amin(1),
}


class PrioritizedSampler(Sampler):
    """Draw steps in proportion to what they can teach: prioritized experience replay (arXiv 1511.05952).

    A step of priority p is drawn with a chance in proportion to its mass (p + eps) ** alpha. Drawing some steps more
    often than others biases what is learnt; multiply the loss of each step by its weight, ``priority_weight`` in the
    batch, to undo it:

        weight = (mass / smallest mass of all steps held) ** -beta       at most 1

    Masses and their sums are float64, and the sums exact to rounding. A step of mass 0 is never drawn, and has no part
    in the smallest mass. New steps, also where they replace others, get `default_priority`.

    Args:
        max_capacity: Steps that the storage holds at most.
        alpha: How much priorities count, from 0: not at all, as if all were equal.
        beta: How much of the bias the weights undo, from 0: nothing; at 1 all.
        eps: Added to every priority, so that a priority of 0 is drawn now and then.
        dtype: Of the weights.
        reduction: How several priorities of one step become one: "max", "mean", "median" or "min".
        max_priority_within_buffer: Whether `default_priority` is the largest of the steps that are held now. If not,
            it is the largest that was ever given, and an outlier at the start is the priority of new steps for ever.
        generator: Where the randomness comes from; by default torch's global generator, so that `torch.manual_seed`
            alone reproduces a run.

    Raises:
        InvalidArgumentError: If an argument is outside its range.
    """

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        *,
        generator: Generator | None = None,
    ) -> None:
        problems = _numbers(alpha=alpha, beta=beta, eps=eps)
        given: dict[str, Any] = {"max_capacity": max_capacity, "dtype": dtype}
        if not isinstance(given["max_capacity"], (int, np.integer)) or not 1 <= max_capacity < _LIMIT:
            problems.append(f"max_capacity is {max_capacity!r}; expected a whole number, at least 1 and below {_LIMIT}")
        if reduction not in _REDUCTIONS:
            problems.append(f"reduction is {reduction!r}; expected one of {', '.join(_REDUCTIONS)}")
        if not isinstance(given["dtype"], torch.dtype) or not dtype.is_floating_point:
            problems.append(f"dtype is {dtype}; expected a floating one")
        _refuse(problems)
        self._capacity = int(max_capacity)
        self._alpha = float(alpha)
        self._beta = float(beta)
        self._eps = float(eps)
        self.dtype = dtype
        self.reduction = reduction
        self.generator = generator
        self._within = max_priority_within_buffer
        _refuse(self._mass_problems(self._alpha, self._eps, 1.0))
        self.empty()

    def __getstate__(self) -> dict[str, Any]:
        check_start_method(
            self,
            "the priorities",
            "sample in one process, and give the others a buffer over the same storage with a sampler of their own",
        )
        return super().__getstate__()

    def empty(self) -> None:
        """Forget all priorities."""
        from datasets_rl.samplers.sum_tree import SumTree  # numba loads with it

        self._tree: SumTree = SumTree(self._capacity, ranked=self._within)
        self._held = 0
        self._highest = 0.0
        self._torn: NDArray[np.int64] = np.empty(0, np.int64)

    @property
    def max_size(self) -> int:
        """Steps that the storage holds at most."""
        return self._capacity

    @property
    def alpha(self) -> float:
        """How much priorities count; a new value holds for all steps at once."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        _refuse(_numbers(alpha=value))
        alpha = float(value)
        problems = self._priority_problems(self.priorities, alpha, self._eps)
        _refuse([*problems, *self._mass_problems(alpha, self._eps, self._highest)])
        self._alpha = alpha
        self._write(np.arange(self._held), self.priorities.numpy().copy())

    @property
    def beta(self) -> float:
        """How much of the bias the weights undo."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        _refuse(_numbers(beta=value))
        self._beta = float(value)

    @property
    def eps(self) -> float:
        """What is added to every priority."""
        return self._eps

    @property
    def default_priority(self) -> float:
        """The priority of new steps: the largest one (see `max_priority_within_buffer`); 1 while all are 0."""
        return (self._tree.highest_priority if self._within else self._highest) or 1.0

    @property
    def priorities(self) -> Tensor:
        """The priority of each row held, float64 [rows]; a view."""
        return torch.from_numpy(self._tree.priorities[: self._held])

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draw `batch_size` steps.

        Returns:
            The rows, int64 [B], and their weights, [B].

        Raises:
            InvalidArgumentError: If there is no step to sample, all masses are 0, or the storage may hold more than
                `max_capacity`.
        """
        self._follow(storage)
        rows, masses = self._tree.draw(self._points(batch_size))
        return torch.from_numpy(rows), {PRIORITY_WEIGHT: self._weights(torch.from_numpy(masses))}

    def info_of(self, storage: Storage, rows: Tensor) -> dict[Any, Tensor]:
        """Return weights of 1."""
        return {**super().info_of(storage, rows), PRIORITY_WEIGHT: torch.ones(len(rows), dtype=self.dtype)}

    def _points(self, count: int) -> NDArray[np.float64]:
        points: NDArray[np.float64] = torch.rand(count, dtype=torch.float64, generator=self.generator).numpy()
        return points

    def _weights(self, masses: Tensor) -> Tensor:
        return (masses / self._tree.lowest).pow_(-self._beta).to(self.dtype)

    def attach(self, storage: Storage) -> None:
        """Be told from which storage it will sample.

        Raises:
            InvalidArgumentError: If that may hold more than `max_capacity` steps.
        """
        if storage.max_size > self._capacity:
            raise InvalidArgumentError(
                f"the storage holds up to {storage.max_size:,} steps, and max_capacity is {self._capacity:,}",
                hint=f"make the sampler with max_capacity={storage.max_size}",
            )

    def _follow(self, storage: Storage) -> None:
        """Take in the rows that the storage got without telling, and forget those that it no longer holds."""
        self.attach(storage)
        held = len(storage)
        if not held:
            raise InvalidArgumentError("the storage holds no step to sample", hint="extend the buffer first")
        if held < self._held:
            kept, highest = self.priorities[:held].numpy(), self._highest
            self.empty()
            self._held, self._highest = held, highest
            self._write(np.arange(held), kept)
        self._grow(held)
        if storage.torn or len(self._torn):
            self._leave_out_torn(storage)
        if not self._tree.total:
            raise InvalidArgumentError(
                f"the priorities of all {held:,} steps are 0, and so is eps: none can be drawn",
                hint="update a priority, or give eps",
            )

    def _leave_out_torn(self, storage: Storage) -> None:
        """Take the mass of torn rows away, and give those that another process has written again the default."""
        expect_valid(storage, len(storage) - storage.torn)
        torn = storage.torn_rows().numpy()
        valid = np.setdiff1d(self._torn, torn)
        if len(valid):
            self._write(valid, np.array([self.default_priority]))
        drawn = torn[self._tree.masses[torn] > 0]
        if len(drawn):
            self._tree.write(drawn, np.zeros(1), 0.0, 1.0)
        self._torn = torn

    def _grow(self, held: int) -> None:
        if held > self._held:
            rows = np.arange(self._held, held)
            self._held = held
            self._write(rows, np.array([self.default_priority]))

    def extend(self, index: Tensor) -> None:
        """Give rows that were written the default priority."""
        if not len(index):
            return
        stop = int(index.max()) + 1
        _refuse(_row_problems(index, 0, self._capacity))
        if len(self._torn):
            self._torn = np.setdiff1d(self._torn, index.numpy())
        before = index[index < self._held].numpy()
        if len(before):
            if self._within:
                # What was replaced has no part in the default of what replaces it.
                self._tree.write(before, np.zeros(1), self._eps, self._alpha)
            self._write(before, np.array([self.default_priority]))
        self._grow(stop)

    def update_priority(self, index: Any, priority: Any, *, storage: Storage | None = None) -> None:
        """Give rows new priorities.

        Args:
            index: Rows, int64 [...]; where the storage has several axes, an index as its `ravel` takes it does as well.
                The last wins where a row comes twice. A row of -1 was not kept by the writer: its priority has no use.
            priority: One for all, or one for each row, [...]; with further axes, those are reduced to one (see
                `reduction`). On any device, or as an array or list.
            storage: Holds the rows.

        Raises:
            InvalidArgumentError: If a priority is no finite number from 0 or too large for alpha, a row is outside the storage,
                or the shapes differ; all problems at once, and nothing has changed then.
        """
        rows = _rows(index, storage)
        priorities = self._reduced(priority, rows.shape)
        if rows.ndim != 1:
            rows = rows.reshape(-1)
        where, values = rows.contiguous().numpy(), priorities.numpy()
        if not len(where):
            return
        limit = self._capacity if storage is None else min(len(storage), self._capacity)
        if not self._tree.takes(where, values, limit, self._largest(self._alpha, self._eps)):
            _refuse([*_row_problems(rows, -1, limit), *self._priority_problems(priorities, self._alpha, self._eps)])
            kept = where >= 0
            where, values = where[kept], values if len(values) == 1 else values[kept]
            if not len(where):
                return
        if limit > self._held:
            self._grow(int(where.max()) + 1)
        self._write(where, values)

    def expect_priority(self, priority: Tensor) -> None:
        """Refuse priorities, [n, ...], that are no finite numbers from 0, or too large for alpha."""
        _refuse(self._priority_problems(self._reduced(priority, priority.shape[:1]), self._alpha, self._eps))

    def _reduced(self, priority: Any, shape: torch.Size) -> Tensor:
        values = _tensor("priority", priority)
        if values.is_complex():
            raise InvalidArgumentError(f"priority is {values.dtype}; expected real numbers")
        values = values.to("cpu", torch.float64)
        if values.numel() == 1:
            return values.reshape(1)
        if values.shape[: len(shape)] != shape:
            raise InvalidArgumentError(
                f"priority has shape {list(values.shape)}; expected one number, or {list(shape)} as the index has"
            )
        if len(values.shape) == len(shape):
            return values.reshape(-1).contiguous()
        return _REDUCTIONS[self.reduction](values.reshape(shape.numel(), -1))

    def _write(self, rows: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        highest = self._tree.write(rows, priorities, self._eps, self._alpha)
        self._highest = max(self._highest, highest)

    def _largest(self, alpha: float, eps: float) -> float:
        """Return the largest priority with which the masses of all rows together stay finite."""
        largest = math.log(sys.float_info.max / (2 * self._capacity))
        return math.exp(min(largest / alpha, largest) if alpha else largest) - eps

    def _mass_problems(self, alpha: float, eps: float, highest: float) -> list[str]:
        """Say whether the priority that new rows may get is too large."""
        highest = max(highest, 1.0)
        if self._largest(alpha, eps) >= highest:
            return []
        return [f"alpha is {alpha} and eps {eps}: the mass of a priority of {highest:.3g} would be too large"]

    def _priority_problems(self, priorities: Tensor, alpha: float, eps: float) -> list[str]:
        """Say which priorities are none. In a comparison NaN is outside of everything."""
        if not len(priorities):
            return []
        largest = self._largest(alpha, eps)
        if float(priorities.min()) >= 0 and float(priorities.max()) <= largest:
            return []
        wrong = (~((priorities >= 0) & (priorities <= largest))).nonzero().flatten()
        first = int(wrong[0])
        worst = float(priorities[first])
        return [
            f"priority {first} of {len(priorities)} is {worst}, one of {len(wrong)} outside 0 to {largest:.3g}",
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the priorities and what is made of them."""
        return {
            **super().state_dict(),
            "priorities": self.priorities.clone(),
            "highest": self._highest,
            "alpha": self._alpha,
            "beta": self._beta,
            "eps": self._eps,
        }

    def misfits(self, state_dict: dict[str, Any]) -> list[str]:
        """Say whether the priorities are some, and fit into the capacity."""
        reasons = super().misfits(state_dict)
        names = ("highest", "alpha", "beta", "eps")
        numbers: dict[str, Any] = {name: state_dict.get(name) for name in names}
        wrong = _numbers(**numbers)
        highest, alpha, _, eps = (1.0, self._alpha, 0.0, self._eps) if wrong else map(float, numbers.values())
        reasons += wrong + self._mass_problems(alpha, eps, highest)
        priorities = state_dict.get("priorities")
        if not isinstance(priorities, Tensor) or priorities.dtype != torch.float64 or priorities.ndim != 1:
            return [*reasons, "priorities are not float64 [rows]"]
        if len(priorities) > self._capacity:
            reasons.append(f"there are {len(priorities):,} priorities, and max_capacity is {self._capacity:,}")
        return [*reasons, *self._priority_problems(priorities, alpha, eps)]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over priorities, alpha, beta and eps; a larger capacity than before is fine."""
        super().load_state_dict(state_dict)
        self.empty()
        self._alpha, self._beta, self._eps = (float(state_dict[name]) for name in ("alpha", "beta", "eps"))
        priorities = state_dict["priorities"].cpu().contiguous()
        self._held = len(priorities)
        if self._held:
            self._write(np.arange(self._held), priorities.numpy())
        self._highest = float(state_dict["highest"])

    def renumbered(self, state_dict: dict[str, Any], shift: int, slots: int) -> dict[str, Any]:
        """Move the priorities to the new places of their rows."""
        if self.misfits(state_dict):
            return state_dict  # to be refused as it is
        priorities = state_dict["priorities"]
        if len(priorities) % slots:
            # Rows that came through another process, and the first sample after would have taken in.
            raise InvalidArgumentError(
                f"the sampler knows {len(priorities)} rows, which are not whole slots of {slots}",
                hint="sample once before saving",
            )
        return {**state_dict, "priorities": priorities.reshape(slots, -1).roll(-shift, 0).reshape(-1)}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(max_capacity={self._capacity}, alpha={self._alpha}, beta={self._beta}, "
            f"eps={self._eps}, reduction={self.reduction!r})"
        )


def _numbers(**values: Any) -> list[str]:
    """Say which arguments are no finite numbers from 0."""
    return [
        f"{name} is {value!r}; expected a number from 0"
        for name, value in values.items()
        if not isinstance(value, (int, float, np.number)) or not (math.isfinite(value) and value >= 0)
    ]


def _refuse(problems: list[str]) -> None:
    if problems:
        raise InvalidArgumentError("; ".join(problems))


def _tensor(name: str, value: Any) -> Tensor:
    try:
        # By way of numpy numbers in lists keep their 64 bits, and arrays may be read-only or run backwards.
        return value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value, order="C"))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(f"{name} is {type(value).__name__}; expected numbers ({error})") from error


def _rows(index: Any, storage: Storage | None) -> Tensor:
    if storage is not None and storage.ndim > 1 and (isinstance(index, tuple) or np.ndim(index) > 1):
        return storage.ravel(index).cpu()
    rows = _tensor("index", index)
    if rows.numel() and (rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool):
        raise InvalidArgumentError(f"index is {rows.dtype}; expected whole numbers")
    return rows.to("cpu", torch.int64)


def _row_problems(rows: Tensor, least: int, stop: int) -> list[str]:
    if int(rows.min()) >= least and int(rows.max()) < stop:
        return []
    rows = rows.reshape(-1)
    wrong = ((rows < least) | (rows >= stop)).nonzero().flatten()
    first = int(wrong[0])
    return [f"index {first} of {len(rows)} is {int(rows[first])}, one of {len(wrong)} outside the {stop:,} rows"]
