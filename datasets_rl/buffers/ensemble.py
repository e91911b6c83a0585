"""Several replay buffers sampled as one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from tensordict.utils import expand_as_right
from torch import Tensor

from datasets_rl.buffers.arguments import transformed
from datasets_rl.buffers.batch import pinned, stacked
from datasets_rl.buffers.keys import BatchKeys, Field, Missing, fields_of
from datasets_rl.buffers.lock import BufferLock, BufferLocks
from datasets_rl.buffers.replay import Drawn, ReplayBuffer
from datasets_rl.checkpoint import Stateful
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.ensemble import DEFAULT_INFO, SamplerEnsemble
from datasets_rl.storages.ensemble import StorageEnsemble, with_mask
from datasets_rl.ted.keys import NEXT_FINAL_KNOWN, Key
from datasets_rl.transforms.base import gathered
from datasets_rl.writers.ensemble import WriterEnsemble

__all__ = ["ReplayBufferEnsemble", "at"]

_SOURCE = "buffer_ids"
_INDEX = "index"


class ReplayBufferEnsemble(ReplayBuffer):
    """Several replay buffers whose batches are drawn, and transformed, each in its own way, and then stacked.

        >>> rb = ReplayBufferEnsemble(rb0, rb1, p=[0.7, 0.3], batch_size=64)
        >>> batch = rb.sample()                    # [2, 32]: two parts, each from one buffer
        >>> batch["index", "buffer_ids"]           # which buffer each step is from
        >>> rb[1].extend(data), rb[:1], rb[0, 10:20]

    A batch of B steps has n parts of B / n, [n, B / n, ...]; n is the number of buffers, or `num_buffer_sampled`. A
    number gives a buffer, a slice an ensemble of some; writes go to a buffer, not to the ensemble.

    Args:
        *rbs: The buffers; or give their parts as `storages`, `samplers` and `writers`.
        storages: Their storages, each with a transform of its own, if any.
        samplers: Their samplers, with the chances of the buffers.
        writers: Their writers.
        transform: Applied to the stacked batch.
        batch_size: Steps of a batch where `sample` is not told.
        collate_fn: Applied to the list of parts instead of stacking them.
        collate_fns: Applied to what each of the storages returns, where these are given.
        p: The chances of the buffers, in any scale; the same for all by default. With `rb.sampler.p = ...` they change
            while one trains.
        sample_from_all: Whether every buffer gives one part; excludes `p`.
        num_buffer_sampled: Parts of a batch, n.
        missing: What happens to keys that only some of the buffers have: "refuse" raises an error that names them;
            "drop" leaves them out of every batch; "zero" puts them into every batch, with zeros (or empty text) for the
            steps of the other buffers. The keys are decided here, from the first steps of each buffer through its
            transforms, so that no batch depends on which buffers it was drawn from. An empty buffer counts from its
            first steps on. With a `collate_fn` the parts stay as the buffers gave them.
        **kwargs: Those of `ReplayBuffer` that are left.

    Raises:
        InvalidArgumentError: If arguments exclude each other, or the buffers do not fit together; with a table of all keys that
            are not the same.
    """

    def __init__(
        self,
        *rbs: ReplayBuffer,
        storages: StorageEnsemble | None = None,
        samplers: SamplerEnsemble | None = None,
        writers: WriterEnsemble | None = None,
        transform: Any = None,
        batch_size: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        collate_fns: Sequence[Callable[[Any], Any] | None] | None = None,
        p: Sequence[float] | Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        missing: Missing = "refuse",
        **kwargs: Any,
    ) -> None:
        if missing not in {"refuse", "drop", "zero"}:
            raise InvalidArgumentError(f"missing is {missing!r}; expected 'refuse', 'drop' or 'zero'")
        if rbs:
            _expect_alone(storages=storages, samplers=samplers, writers=writers, collate_fns=collate_fns)
            _expect_flat(rbs)
            samplers = SamplerEnsemble(
                *(rb.sampler for rb in rbs),
                p=p,
                sample_from_all=sample_from_all,
                num_buffer_sampled=num_buffer_sampled,
            )
            storages = StorageEnsemble(*(rb.storage for rb in rbs))
            writers = WriterEnsemble(*(rb.writer for rb in rbs))
        else:
            rbs, storages, samplers, writers = _of_parts(storages, samplers, writers, collate_fns)
        self._members = rbs
        self.missing: Missing = missing
        self._keys = BatchKeys((None,) * len(rbs), missing)
        self._decided_for: tuple[Any, ...] = ()
        self._reported: frozenset[Any] = frozenset()
        """The keys of what the samplers of the buffers report of their choice."""
        self._unreported: dict[Any, Tensor] = {}
        """What holds of the steps of a buffer whose sampler does not report it."""
        super().__init__(
            storage=storages,
            sampler=samplers,
            writer=writers,
            transform=transform,
            batch_size=batch_size,
            collate_fn=collate_fn,
            **kwargs,
        )
        locks = [member._lock for member in rbs]  # noqa: SLF001 - a member is a buffer too
        self._lock = BufferLocks([lock for lock in locks if isinstance(lock, BufferLock)])
        self._decide_keys()

    @property
    def _names(self) -> Sequence[str]:
        return [f"buffer {number}" for number in range(len(self._members))]

    def _trial_size(self) -> int:
        """Return how many steps each buffer is asked for, to learn which keys it gives."""
        parts = self.sampler.num_buffer_sampled
        return self.batch_size // parts if self.batch_size is not None and self.batch_size % parts == 0 else 1

    def _decide_keys(self) -> None:
        """Decide which keys batches have, from the first steps of every buffer that is not empty.

        Raises:
            InvalidArgumentError: If the buffers do not fit together.
        """
        members = self._members
        state = tuple(
            (len(member) > 0, member._storage, member._sampler, *member._transforms)  # noqa: SLF001 - a member is a buffer too
            for member in members
        )
        if state == self._decided_for or self._free:
            return
        with self._lock:
            self._read_keys()
        self._decided_for = state

    def _read_keys(self) -> None:
        members = self._members
        rows = {
            number: torch.arange(_multiple(self._trial_size(), member.sampler)) % len(member)
            for number, member in enumerate(members)
            if len(member)
        }
        infos = {
            number: members[number].sampler.info_of(members[number].storage, some)
            for number, some in rows.items()
            if isinstance(members[number].sampler, Sampler)
        }
        self._reported = frozenset(key for info in infos.values() for key in info)
        self._unreported = {
            key: torch.tensor(DEFAULT_INFO[key], dtype=value.dtype)
            for info in infos.values()
            for key, value in info.items()
            if key in DEFAULT_INFO
        }
        fields = tuple(
            self._fields_of_member(number, rows[number], infos.get(number, {})) if number in rows else None
            for number in range(len(members))
        )
        self._keys = BatchKeys(fields, self.missing)
        self._keys.check(self._names)

    @property
    def _free(self) -> bool:
        """Whether the parts go to a function of the user's as they are."""
        return self._collate_fn is not None

    def _fields_of_member(self, number: int, rows: Tensor, info: dict[Any, Tensor]) -> Mapping[Key, Field] | None:
        """Return the fields of a batch of one buffer; the states of its transforms stay as they are."""
        member = self._members[number]
        storage: Any = self._storage
        ((_, part),) = storage.get(((number,), (rows,)))
        with _unchanged(member.transforms):
            part = gathered(member.transforms, member.storage, rows, part)
            return fields_of(self._finished_part(number, part, info, len(rows)))

    def _finished_part(self, number: int, part: Any, info: Mapping[Any, Tensor], steps: int) -> Any:
        """Return what a buffer makes of its part of a batch, with what the samplers report."""
        info = {key: value for key, value in info.items() if self._free or key in self._reported}
        info |= {key: value.expand(steps).clone() for key, value in self._unreported.items() if key not in info}
        return self._members[number]._finish(part, info)  # noqa: SLF001 - a member is a buffer too

    def _draw(self, batch_size: int | None, *, ahead: bool = False) -> Drawn:
        self._decide_keys()
        return super()._draw(batch_size, ahead=ahead)

    @property
    def sampler(self) -> SamplerEnsemble:
        """The samplers of the buffers, and their chances."""
        samplers: SamplerEnsemble = self._sampler  # type: ignore[assignment]  # the constructor takes no other
        return samplers

    def _taken(self, drawn: Drawn) -> Any:
        index, storage = drawn.index, drawn.storage
        # A transform of the ensemble that wants to read further rows refuses here: rows are those of the buffers.
        parts = gathered(self._transforms, storage, index.get(_INDEX), storage.get(index))
        members = [self._members[number] for number, _ in parts]
        return [
            (number, gathered(member.transforms, member.storage, rows, part))
            for member, rows, (number, part) in zip(members, index.get(_INDEX), parts, strict=True)
        ]

    def _finish(self, data: Any, info: dict[Any, Any], *, collate: bool = True) -> Any:
        steps = info[_INDEX][_INDEX].shape[1]
        told = {key: value for key, value in info.items() if key not in {_INDEX, _SOURCE}}
        parts = [self._finished_part(number, part, at(told, place), steps) for place, (number, part) in enumerate(data)]
        numbers = [number for number, _ in data]
        batch = (
            self._collate_fn(parts)
            if self._collate_fn is not None and collate
            else self._stacked(parts, numbers, self._keys)
        )
        if isinstance(batch, TensorDictBase):
            batch.set(_INDEX, _source_of(info[_INDEX], batch))
        batch = transformed(self._transforms, batch)
        return pinned(batch) if self._pin_memory else batch

    def _stacked(self, parts: list[Any], numbers: list[int], keys: BatchKeys) -> Any:
        if not all(isinstance(part, TensorDictBase) for part in parts):
            return stacked(parts)
        try:
            return torch.stack(
                [keys.fit(part, self._names[number]) for part, number in zip(parts, numbers, strict=True)]
            )
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"the parts of the batch cannot be stacked: {error}",
                hint="give the buffers transforms that make them alike",
            ) from error

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with super()._changing(), ExitStack() as members:
            for member in self._members:
                members.enter_context(member._changing())  # noqa: SLF001 - a member is a buffer too
            yield

    def share(self) -> ReplayBufferEnsemble:
        """Let processes that get this ensemble, or its buffers, from now on read and write the same memory."""
        for member in self._members:
            member.share()
        return self

    def set_storage(self, storage: Any, collate_fn: Any = None) -> Any:
        """Refuse: an ensemble has the parts that its buffers had when it was made."""
        del collate_fn
        raise _refused(storage)

    def set_sampler(self, sampler: Any) -> Any:
        """Refuse: an ensemble has the parts that its buffers had when it was made; their chances are `sampler.p`."""
        raise _refused(sampler)

    def set_writer(self, writer: Any) -> Any:
        """Refuse: an ensemble has the parts that its buffers had when it was made."""
        raise _refused(writer)

    def _turned(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        names = {"storage": "storages", "sampler": "samplers", "writer": "writers"}
        parts = {name: state_dict[name]["state"].get(several, []) for name, several in names.items()}
        if any(len(states) != len(self._members) for states in parts.values()):
            return state_dict
        each = [
            {name: {"state": states[number]} for name, states in parts.items()} for number in range(len(self._members))
        ]
        after = [member._turned(one) for member, one in zip(self._members, each, strict=True)]  # noqa: SLF001 - a member is a buffer too
        if all(new is old for new, old in zip(after, each, strict=True)):
            return state_dict
        result = {**state_dict, "ahead": []}
        for name, several in names.items():
            states = [one[name]["state"] for one in after]
            result[name] = {**state_dict[name], "state": {**state_dict[name]["state"], several: states}}
        return result

    def update_priority(self, index: Any, priority: Any) -> None:
        """Tell the buffers' samplers how much steps matter.

        Args:
            index: As a batch gives it: ``batch["index"]``, with ``"buffer_ids"`` and ``"index"``.
            priority: A number, or one for each step.
        """
        rows = index[_INDEX]
        numbers = expand_as_right(index[_SOURCE], rows)
        for number, member in enumerate(self._members):
            mine = numbers == number
            if mine.any():
                some = priority[mine] if isinstance(priority, Tensor) and priority.ndim else priority
                with member._lock:  # noqa: SLF001 - a member is a buffer too
                    member.sampler.update_priority(rows[mine], some, storage=member.storage)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Take over the priorities of a batch that was sampled: each buffer's sampler gets those of its steps.

        Args:
            data: A batch with its ``"index"``, and with the priorities where the buffers look for them.

        Raises:
            InvalidArgumentError: If there is no index, or a priority is no finite number from 0.
        """
        index = data.get(_INDEX, None)
        if index is None:
            raise InvalidArgumentError(
                f"the batch has no {_INDEX!r}; expected one that sample() returned, with its index"
            )
        for number, member in enumerate(self._members):
            mine = index[_SOURCE] == number
            priority = data.get(getattr(member, "priority_key", "td_error"), None)
            if priority is not None and mine.any():
                priority = priority.reshape(*mine.shape, -1)[mine]
                with member._lock:  # noqa: SLF001 - a member is a buffer too
                    member.sampler.update_priority(index[_INDEX][mine], priority, storage=member.storage)

    def __getitem__(self, index: Any) -> Any:
        """Return a buffer by its number, an ensemble of some by a slice or numbers, or what is in them by a tuple."""
        if isinstance(index, tuple):
            numbers, rest = self._numbers(index[0]), index[1] if len(index) == 2 else index[1:]
            if isinstance(numbers, int):
                return self._members[numbers][rest]
            parts = [self._members[number][rest] for number in numbers]
            if any(is_tensor_collection(part) and part.get(NEXT_FINAL_KNOWN, None) is not None for part in parts):
                masked = [self._members[number].storage.masked for number in numbers]
                parts = [part if known else with_mask(part) for part, known in zip(parts, masked, strict=True)]
            keys = BatchKeys(tuple(map(fields_of, parts)), self.missing)
            keys.check([self._names[number] for number in numbers])
            return self._stacked(parts, numbers, keys)
        if isinstance(index, str):
            raise InvalidArgumentError(
                f"rb[{index!r}] names no buffer", hint=f"ask for the field of some: rb[:, {index!r}]"
            )
        numbers = self._numbers(index)
        if isinstance(numbers, int):
            return self._members[numbers]
        sampler = self.sampler
        return ReplayBufferEnsemble(
            *(self._members[number] for number in numbers),
            transform=self.transforms,
            batch_size=self.batch_size,
            collate_fn=self._collate_fn,
            p=None if sampler.p is None else sampler.p[numbers],
            sample_from_all=sampler.sample_from_all,
            missing=self.missing,
        )

    def _numbers(self, index: Any) -> int | list[int]:
        """Read which buffers are meant: one, or several."""
        numbers = range(len(self._members))
        if index is Ellipsis or isinstance(index, slice):
            return list(numbers[slice(None) if index is Ellipsis else index])
        if isinstance(index, int):
            return numbers[index]
        chosen: list[int] = torch.arange(len(self._members))[torch.as_tensor(index)].reshape(-1).tolist()
        return chosen

    def __setitem__(self, index: Any, data: Any) -> None:
        """Write into one of the buffers: ``rb[0, 10:20] = data``."""
        if not (isinstance(index, tuple) and len(index) == 2 and isinstance(index[0], int)):
            raise InvalidArgumentError(
                f"rb[{index!r}] = ... names no single buffer", hint="write to one of them: rb[i, index]"
            )
        self._members[index[0]][index[1]] = data


def _expect_flat(rbs: Sequence[ReplayBuffer]) -> None:
    given: Sequence[Any] = rbs
    strange = [repr(one) for one in given if not isinstance(one, ReplayBuffer)]
    if strange:
        raise InvalidArgumentError(f"{', '.join(strange)}: no replay buffer", hint="give each storage a ReplayBuffer")
    nested = [number for number, rb in enumerate(rbs) if isinstance(rb, ReplayBufferEnsemble)]
    if nested:
        raise InvalidArgumentError(
            f"buffers {nested} are ensembles themselves; their batches have parts already",
            hint="give their buffers: ReplayBufferEnsemble(*(inner[i] for i in range(len(inner))), ...)",
        )


def _expect_alone(**parts: Any) -> None:
    given = [name for name, part in parts.items() if part is not None]
    if given:
        raise InvalidArgumentError(f"buffers were given, and {', '.join(given)} too: they exclude each other")


def _refused(part: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{type(part).__name__} cannot become a part of an ensemble: it has those that its buffers had",
        hint="make an ensemble of the changed buffers; `rb.sampler.p` changes their chances",
    )


def _of_parts(
    storages: StorageEnsemble | None,
    samplers: SamplerEnsemble | None,
    writers: WriterEnsemble | None,
    collate_fns: Sequence[Callable[[Any], Any] | None] | None,
) -> tuple[tuple[ReplayBuffer, ...], StorageEnsemble, SamplerEnsemble, WriterEnsemble]:
    if storages is None or samplers is None or writers is None:
        raise InvalidArgumentError("an ensemble needs buffers, or storages, samplers and writers")
    counts = {"storages": len(storages), "samplers": len(samplers), "writers": len(writers)}
    if collate_fns is not None:
        counts["collate_fns"] = len(collate_fns)
    if len(set(counts.values())) > 1:
        raise InvalidArgumentError(
            f"there are {', '.join(f'{count} {name}' for name, count in counts.items())}; expected as many"
        )
    members = tuple(
        ReplayBuffer(storage=storage, sampler=sampler, writer=writer, collate_fn=collate_fn)
        for storage, sampler, writer, collate_fn in zip(
            storages.storages,
            samplers.samplers,
            writers.writers,
            collate_fns or [None] * len(storages),
            strict=True,
        )
    )
    return members, storages, samplers, writers


@contextmanager
def _unchanged(transforms: Sequence[Any]) -> Iterator[None]:
    """Let transforms see steps without learning from them, and without taking numbers from torch's generator."""
    states = [(one, copy.deepcopy(one.state_dict())) for one in transforms if isinstance(one, Stateful)]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for one, state in states:
                if state:
                    one.load_state_dict(state)


def _multiple(steps: int, sampler: Any) -> int:
    """Return the least number of steps, at least these, that a sampler gives in one batch."""
    unit = sampler.unit if isinstance(sampler, Sampler) else 1
    return math.ceil(steps / unit) * unit


def at(info: Mapping[Any, Any], place: int) -> dict[Any, Tensor]:
    """Return what was reported of one part of a batch."""
    return {key: value[place] for key, value in info.items() if value[place] is not None}


def _source_of(index: TensorDictBase, batch: TensorDictBase) -> TensorDict:
    """Return which buffer and which of its rows each step is from, [n, B / n]."""
    rows = index[_INDEX]
    numbers = index[_SOURCE].reshape(-1, *[1] * (rows.ndim - 1)).expand(rows.shape).clone()
    return TensorDict({_SOURCE: numbers, _INDEX: rows}, batch_size=batch.batch_size[: rows.ndim])
