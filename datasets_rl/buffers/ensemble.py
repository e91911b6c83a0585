"""Several replay buffers sampled as a single buffer."""

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
from typing_extensions import Self, override

from datasets_rl.arguments import check, choice_problems
from datasets_rl.buffers.batch import pin_batch, stack_items
from datasets_rl.buffers.keys import BatchKeys, Field, Missing, fields_of
from datasets_rl.buffers.lock import BufferLock, BufferLocks
from datasets_rl.buffers.read_path import Drawn
from datasets_rl.buffers.replay import ReplayBuffer
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.samplers.base import Sampler
from datasets_rl.samplers.ensemble import DEFAULT_INFO, SamplerEnsemble
from datasets_rl.storages.ensemble import StorageEnsemble, with_mask
from datasets_rl.ted.keys import NEXT_FINAL_KNOWN, Key
from datasets_rl.transforms.compose import apply_transforms
from datasets_rl.transforms.gathered import add_gathered, own_reads
from datasets_rl.writers.ensemble import WriterEnsemble

_SOURCE = "buffer_ids"
_INDEX = "index"


class ReplayBufferEnsemble(ReplayBuffer):
    """Several replay buffers with batches that are sampled and transformed separately and then stacked.

        >>> rb = ReplayBufferEnsemble(rb0, rb1, p=[0.7, 0.3], batch_size=64)
        >>> batch = rb.sample()                    # [2, 32]: two parts, each from a single buffer
        >>> batch["index", "buffer_ids"]           # the buffer of each step
        >>> rb[1].extend(data), rb[:1], rb[0, 10:20]

    A batch of B steps consists of n parts of B / n steps, [n, B / n, ...], where n is the number of buffers, or
    `num_buffer_sampled`. An integer index returns a buffer, a slice an ensemble of several buffers. Data is written to
    a single buffer, not to the ensemble.

    Args:
        *rbs: The buffers. Alternatively, pass their components as `storages`, `samplers` and `writers`.
        storages: The storages, each with an optional transform.
        samplers: The samplers, with the probabilities of the buffers.
        writers: The writers.
        transform: Applied to the stacked batch.
        batch_size: Default number of steps in a batch.
        collate_fn: Applied to the list of parts, instead of a stack.
        collate_fns: Applied to the data of each storage, if `storages` are given.
        p: Probabilities of the buffers, not necessarily normalized, uniform by default. Assign ``rb.sampler.p`` to
            change the probabilities during training.
        sample_from_all: Whether every buffer contributes a part. Mutually exclusive with `p`.
        num_buffer_sampled: Number of parts in a batch, n.
        missing: How to treat keys that only some of the buffers have: "refuse" raises an error that names such keys,
            "drop" removes them from every batch, "zero" adds them to every batch, with zeros (or empty text) for the
            steps of the other buffers. The constructor determines the keys from the first steps of each buffer, after
            its transforms, so that the keys do not depend on which buffers are sampled. An empty buffer counts once it
            has steps. With a `collate_fn`, the parts are passed unchanged.
        **kwargs: Other arguments of `ReplayBuffer`.

    Raises:
        InvalidArgumentError: If arguments are mutually exclusive, or the buffers are incompatible. The message contains
            a table of all differing keys.
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
        check(choice_problems("refuse", "drop", "zero", missing=missing))
        if "sample_unit" in kwargs:
            raise InvalidArgumentError(
                "sample_unit was passed to an ensemble, expected a sample_unit of a single buffer"
            )
        if kwargs.get("delayed_init"):
            raise InvalidArgumentError(
                "delayed_init is True, expected False: an ensemble reads the keys of its buffers at its creation",
                hint="create the ensemble where the ensemble is used first",
            )
        if rbs:
            _check_no_components(storages=storages, samplers=samplers, writers=writers, collate_fns=collate_fns)
            _check_members(rbs)
            samplers = SamplerEnsemble(
                *(rb.sampler for rb in rbs), p=p, sample_from_all=sample_from_all, num_buffer_sampled=num_buffer_sampled
            )
            storages = StorageEnsemble(*(rb.storage for rb in rbs))
            writers = WriterEnsemble(*(rb.writer for rb in rbs))
        else:
            rbs, storages, samplers, writers = _buffers_from_components(storages, samplers, writers, collate_fns)
        self._members = rbs
        self.missing: Missing = missing
        self._keys = BatchKeys((None,) * len(rbs), missing)
        self._keys_version: tuple[Any, ...] = ()
        self._reported: frozenset[Any] = frozenset()
        """The info keys that the samplers of the buffers return."""
        self._unreported: dict[Any, Tensor] = {}
        """Default info of the steps of a buffer with a sampler that does not return the info."""
        super().__init__(
            storage=storages,
            sampler=samplers,
            writer=writers,
            transform=transform,
            batch_size=batch_size,
            collate_fn=collate_fn,
            **{**kwargs, "delayed_init": False},
        )
        locks = [member.lock for member in rbs]
        self._components.lock = BufferLocks([lock for lock in locks if isinstance(lock, BufferLock)])
        self._determine_keys()

    @property
    def _names(self) -> Sequence[str]:
        return [f"buffer {number}" for number in range(len(self._members))]

    def _trial_size(self) -> int:
        """Return the number of steps read from each buffer to determine its keys."""
        parts = self.sampler.num_buffer_sampled
        return self.batch_size // parts if self.batch_size is not None and self.batch_size % parts == 0 else 1

    def _determine_keys(self) -> None:
        """Determine the keys of batches, from the first steps of every buffer that is not empty."""
        members = self._members
        version = tuple((len(member) > 0, member.storage, member.sampler, *member.transforms) for member in members)
        if version == self._keys_version or self._collates_itself:
            return
        with self.lock:
            self._read_keys()
        self._keys_version = version

    def _read_keys(self) -> None:
        members = self._members
        rows = {
            number: torch.arange(_valid_batch_size(self._trial_size(), member.sampler)) % len(member)
            for number, member in enumerate(members)
            if len(member)
        }
        infos = {
            number: members[number].sampler.info_of(members[number].storage, first_rows)
            for number, first_rows in rows.items()
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
    def _collates_itself(self) -> bool:
        """Whether the parts are passed unchanged to the user's collate function."""
        return self._components.collate_fn is not None

    @property
    @override
    def has_own_rows(self) -> bool:
        return True

    def _fields_of_member(self, number: int, rows: Tensor, info: dict[Any, Tensor]) -> Mapping[Key, Field] | None:
        """Return the fields of a batch of a single buffer, without a change of state of the buffer's transforms."""
        member = self._members[number]
        storage: Any = self.storage
        ((_, part),) = storage.get(((number,), (rows,)))
        with _preserve_state(member.transforms):
            part = add_gathered(member.transforms, member.storage, rows, part)
            return fields_of(self._finish_part(number, part, info, len(rows)))

    def _finish_part(self, number: int, part: Any, info: Mapping[Any, Tensor], steps: int) -> Any:
        """Collate and transform the part of a single buffer, and add the info of the buffer's sampler."""
        info = {key: value for key, value in info.items() if self._collates_itself or key in self._reported}
        info |= {key: value.expand(steps).clone() for key, value in self._unreported.items() if key not in info}
        return self._members[number].finish(part, info)

    @override
    def draw(self, batch_size: int | None, *, ahead: bool = False, fields: tuple[Key, ...] | None = None) -> Drawn:
        self._determine_keys()
        return super().draw(batch_size, ahead=ahead, fields=fields)

    @property
    @override
    def sampler(self) -> SamplerEnsemble:
        samplers: SamplerEnsemble = self._components.sampler  # type: ignore[assignment]  # the constructor takes no other
        return samplers

    @override
    def draw_rows(self, rows: Any, fields: tuple[Key, ...] | None = None) -> Drawn:
        del rows, fields
        raise InvalidArgumentError(
            "rows name steps of a single buffer, and this buffer samples from several buffers",
            hint="rb[member].sample(rows=...)",
        )

    @override
    def read(self, drawn: Drawn) -> Any:
        index: Any = drawn.index
        storage: Any = drawn.storage  # an ensemble: its `get` takes keys to leave out
        # A transform of the ensemble that needs other rows raises here: the rows are rows of the buffers.
        read_later = [own_reads(member.transforms, member.storage) for member in self._members]
        parts = add_gathered(self.transforms, storage, index.get(_INDEX), storage.get(index, read_later))
        members = [self._members[number] for number, _ in parts]
        return [
            (number, add_gathered(member.transforms, member.storage, rows, part))
            for member, rows, (number, part) in zip(members, index.get(_INDEX), parts, strict=True)
        ]

    @override
    def finish(self, data: Any, info: dict[Any, Any], *, collate: bool = True) -> Any:
        steps = info[_INDEX][_INDEX].shape[1]
        infos = {key: value for key, value in info.items() if key not in {_INDEX, _SOURCE}}
        parts = [
            self._finish_part(number, part, info_at(infos, position), steps)
            for position, (number, part) in enumerate(data)
        ]
        collate_fn = self._components.collate_fn if collate else None
        batch = (
            collate_fn(parts) if collate_fn else self._stack_parts(parts, [number for number, _ in data], self._keys)
        )
        if isinstance(batch, TensorDictBase):
            batch.set(_INDEX, _source_of(info[_INDEX], batch))
        return self._transformed(batch)

    def _transformed(self, batch: Any) -> Any:
        """Return a batch of all parts after the transforms of the ensemble, pinned."""
        batch = apply_transforms(self.transforms, batch)
        return pin_batch(batch) if self._components.pin_memory else batch

    def _stack_parts(self, parts: list[Any], numbers: list[int], keys: BatchKeys) -> Any:
        if not all(isinstance(part, TensorDictBase) for part in parts):
            return stack_items(parts)
        try:
            return torch.stack(
                [keys.fit(part, self._names[number]) for part, number in zip(parts, numbers, strict=True)]
            )
        except InvalidArgumentError:
            raise
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"the parts of the batch cannot be stacked: {error}",
                hint="give the buffers transforms that give their batches the same shapes",
            ) from error

    @override
    @contextmanager
    def locked_for_change(self) -> Iterator[None]:
        with super().locked_for_change(), ExitStack() as members:
            for member in self._members:
                members.enter_context(member.locked_for_change())
            yield

    @override
    def share(self, shared: bool = True) -> Self:
        for member in self._members:
            member.share(shared)
        return self

    @override
    def set_storage(self, storage: Any, collate_fn: Any = None) -> Any:
        raise _fixed_component_error(storage)

    @override
    def set_sampler(self, sampler: Any) -> Any:
        raise _fixed_component_error(sampler)

    @override
    def set_writer(self, writer: Any) -> Any:
        raise _fixed_component_error(writer)

    @override
    def chronological_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        names = {"storage": "storages", "sampler": "samplers", "writer": "writers"}
        states_by_name = {name: state_dict[name]["state"].get(plural, []) for name, plural in names.items()}
        if any(len(states) != len(self._members) for states in states_by_name.values()):
            return state_dict
        member_states = [
            {name: {"state": states[number]} for name, states in states_by_name.items()}
            for number in range(len(self._members))
        ]
        rotated = [
            member.chronological_state(state) for member, state in zip(self._members, member_states, strict=True)
        ]
        if all(new_state is old_state for new_state, old_state in zip(rotated, member_states, strict=True)):
            return state_dict
        result = {**state_dict, "ahead": []}
        for name, plural in names.items():
            states = [state[name]["state"] for state in rotated]
            result[name] = {**state_dict[name], "state": {**state_dict[name]["state"], plural: states}}
        return result

    def update_priority(self, index: Any, priority: Any) -> None:
        """Update the priorities of steps in the samplers of the buffers.

        Args:
            index: The index of a batch, ``batch["index"]``, with ``"buffer_ids"`` and ``"index"``.
            priority: A single number for all steps, or a number per step.
        """
        is_per_step = isinstance(priority, Tensor) and priority.ndim > 0
        self._update_members(index, lambda _, selected: priority[selected] if is_per_step else priority)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Update the priorities of the steps of a sampled batch, in the samplers of the steps' buffers.

        Args:
            data: A batch with its ``"index"``, and with priorities at the `priority_key` of each buffer.

        Raises:
            InvalidArgumentError: If the batch has no index, or a priority is negative or not finite.
        """
        index = data.get(_INDEX, None)
        if index is None:
            raise InvalidArgumentError(f"the batch has no {_INDEX!r}, expected a batch from sample(), with its index")

        def priority_of(member: ReplayBuffer, selected: Tensor) -> Any:
            priority = data.get(getattr(member, "priority_key", "td_error"), None)
            return None if priority is None else priority.reshape(*selected.shape, -1)[selected]

        self._update_members(index, priority_of)

    def _update_members(self, index: Any, priority_of: Callable[[ReplayBuffer, Tensor], Any]) -> None:
        """Update the priorities of each buffer. `priority_of` maps the buffer and a mask of its steps to priorities."""
        rows = index[_INDEX]
        numbers = expand_as_right(index[_SOURCE], rows)
        for number, member in enumerate(self._members):
            selected = numbers == number
            priority = priority_of(member, selected) if selected.any() else None
            if priority is not None:
                with member.lock:
                    member.sampler.update_priority(rows[selected], priority, storage=member.storage)

    def __getitem__(self, index: Any) -> Any:
        """Return a buffer (integer), an ensemble (slice or several numbers), or data of the buffers (tuple)."""
        if isinstance(index, tuple):
            numbers, rest = self._numbers(index[0]), index[1] if len(index) == 2 else index[1:]
            if isinstance(numbers, int):
                return self._members[numbers][rest]
            parts = [self._members[number][rest] for number in numbers]
            if any(is_tensor_collection(part) and part.get(NEXT_FINAL_KNOWN, None) is not None for part in parts):
                masked = [self._members[number].storage.masked for number in numbers]
                parts = [part if has_mask else with_mask(part) for part, has_mask in zip(parts, masked, strict=True)]
            keys = BatchKeys(tuple(map(fields_of, parts)), self.missing)
            keys.check([self._names[number] for number in numbers])
            return self._stack_parts(parts, numbers, keys)
        if isinstance(index, str):
            raise InvalidArgumentError(
                f"rb[{index!r}] does not select a buffer", hint=f"select the buffers, too: rb[:, {index!r}]"
            )
        numbers = self._numbers(index)
        if isinstance(numbers, int):
            return self._members[numbers]
        sampler = self.sampler
        return ReplayBufferEnsemble(
            *(self._members[number] for number in numbers),
            transform=self.transforms,
            batch_size=self.batch_size,
            collate_fn=self._components.collate_fn,
            p=None if sampler.p is None else sampler.p[numbers],
            sample_from_all=sampler.sample_from_all,
            missing=self.missing,
        )

    def _numbers(self, index: Any) -> int | list[int]:
        """Return the number of a single selected buffer, or the list of the numbers of several."""
        numbers = range(len(self._members))
        if index is Ellipsis or isinstance(index, slice):
            return list(numbers[slice(None) if index is Ellipsis else index])
        if isinstance(index, int):
            return numbers[index]
        selected: list[int] = torch.arange(len(self._members))[torch.as_tensor(index)].reshape(-1).tolist()
        return selected

    def __setitem__(self, index: Any, data: Any) -> None:
        """Write data into a buffer of the ensemble: ``rb[0, 10:20] = data``."""
        if not (isinstance(index, tuple) and len(index) == 2 and isinstance(index[0], int)):
            raise InvalidArgumentError(
                f"rb[{index!r}] = ... does not select a single buffer",
                hint="write to a single buffer: rb[i, index] = ...",
            )
        self._members[index[0]][index[1]] = data


def _check_members(rbs: Sequence[ReplayBuffer]) -> None:
    arguments: Sequence[Any] = rbs
    invalid = [repr(argument) for argument in arguments if not isinstance(argument, ReplayBuffer)]
    if invalid:
        raise InvalidArgumentError(
            f"{', '.join(invalid)}: expected instances of ReplayBuffer", hint="wrap each storage in a ReplayBuffer"
        )
    nested = [number for number, rb in enumerate(rbs) if isinstance(rb, ReplayBufferEnsemble)]
    if nested:
        raise InvalidArgumentError(
            f"buffers {nested} are ensembles themselves, expected buffers with flat batches",
            hint="pass the buffers of these ensembles: ReplayBufferEnsemble(*(inner[i] for i in range(len(inner))), ...)",
        )
    own_rows = [number for number, rb in enumerate(rbs) if rb.has_own_rows]
    if own_rows:
        raise InvalidArgumentError(
            f"buffers {own_rows} replace the steps that their samplers draw, expected buffers without a sample_unit or "
            "hindsight goals",
            hint="sample these buffers separately, and concatenate the batches",
        )


def _check_no_components(**parts: Any) -> None:
    replaced = [name for name, part in parts.items() if part is not None]
    if replaced:
        raise InvalidArgumentError(
            f"buffers and {', '.join(replaced)} are mutually exclusive: pass either buffers or components"
        )


def _fixed_component_error(part: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{type(part).__name__} cannot become a component of an ensemble: an ensemble uses the components of its buffers",
        hint="create a new ensemble of the changed buffers, or assign `rb.sampler.p` to change the probabilities",
    )


def _buffers_from_components(
    storages: StorageEnsemble | None,
    samplers: SamplerEnsemble | None,
    writers: WriterEnsemble | None,
    collate_fns: Sequence[Callable[[Any], Any] | None] | None,
) -> tuple[tuple[ReplayBuffer, ...], StorageEnsemble, SamplerEnsemble, WriterEnsemble]:
    if storages is None or samplers is None or writers is None:
        raise InvalidArgumentError("an ensemble needs buffers, or all of storages, samplers and writers")
    counts = {"storages": len(storages), "samplers": len(samplers), "writers": len(writers)}
    if collate_fns is not None:
        counts["collate_fns"] = len(collate_fns)
    if len(set(counts.values())) > 1:
        raise InvalidArgumentError(
            f"there are {', '.join(f'{count} {name}' for name, count in counts.items())}, expected equal numbers"
        )
    members = tuple(
        ReplayBuffer(storage=storage, sampler=sampler, writer=writer, collate_fn=collate_fn)
        for storage, sampler, writer, collate_fn in zip(
            storages.storages, samplers.samplers, writers.writers, collate_fns or [None] * len(storages), strict=True
        )
    )
    return members, storages, samplers, writers


@contextmanager
def _preserve_state(transforms: Sequence[Any]) -> Iterator[None]:
    """Run transforms without a change of the transforms' state, and without drawing from torch's global generator."""
    states = [
        (transform, copy.deepcopy(transform.state_dict()))
        for transform in transforms
        if hasattr(transform, "load_state_dict")
    ]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for transform, state in states:
                if state:
                    transform.load_state_dict(state)


def _valid_batch_size(steps: int, sampler: Any) -> int:
    """Return the smallest batch size of a sampler that is at least `steps`."""
    unit = sampler.unit if isinstance(sampler, Sampler) else 1
    return math.ceil(steps / unit) * unit


def info_at(info: Mapping[Any, Any], position: int) -> dict[Any, Tensor]:
    """Return the info of a part of a batch."""
    return {key: value[position] for key, value in info.items() if value[position] is not None}


def _source_of(index: TensorDictBase, batch: TensorDictBase) -> TensorDict:
    """Return the buffer and the row of each step, [n, B / n]."""
    rows = index[_INDEX]
    numbers = index[_SOURCE].reshape(-1, *[1] * (rows.ndim - 1)).expand(rows.shape).clone()
    return TensorDict({_SOURCE: numbers, _INDEX: rows}, batch_size=batch.batch_size[: rows.ndim])
