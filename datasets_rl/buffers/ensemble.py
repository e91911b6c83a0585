"""Several replay buffers sampled as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from tensordict.utils import expand_as_right
from torch import Tensor

from datasets_rl.buffers.arguments import transformed
from datasets_rl.buffers.batch import pinned, stacked
from datasets_rl.buffers.gate import Gate, GateChain
from datasets_rl.buffers.replay import Drawn, ReplayBuffer
from datasets_rl.errors import BadArgument
from datasets_rl.samplers.ensemble import SamplerEnsemble
from datasets_rl.storages.ensemble import StorageEnsemble, with_mask
from datasets_rl.ted.keys import NEXT_FINAL_KNOWN, Key, as_key, dotted
from datasets_rl.transforms._base import gathered
from datasets_rl.writers.ensemble import WriterEnsemble

__all__ = ["Missing", "ReplayBufferEnsemble", "alike"]

Missing = Literal["refuse", "drop", "zero"]
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
        missing: What becomes of keys that only some of the parts have: "refuse" names them; "drop" leaves them out, as
            TorchRL does without a word; "zero" fills them with zeros where they are missing.
        **kwargs: Those of `ReplayBuffer` that are left.

    Raises:
        BadArgument: If arguments exclude each other.
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
            raise BadArgument(f"missing is {missing!r}; expected 'refuse', 'drop' or 'zero'")
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
        super().__init__(
            storage=storages,
            sampler=samplers,
            writer=writers,
            transform=transform,
            batch_size=batch_size,
            collate_fn=collate_fn,
            **kwargs,
        )
        gates = [member._gate for member in rbs]  # noqa: SLF001 - a member is a buffer too
        self._gate = GateChain([gate for gate in gates if isinstance(gate, Gate)])

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
        said = {key: value for key, value in info.items() if key not in {_INDEX, _SOURCE}}
        parts = [
            self._members[number]._finish(  # noqa: SLF001 - a member is a buffer too
                part, {key: value[place] for key, value in said.items() if value[place] is not None}
            )
            for place, (number, part) in enumerate(data)
        ]
        numbers = [number for number, _ in data]
        batch = self._collate_fn(parts) if self._collate_fn is not None and collate else self._stacked(parts, numbers)
        if isinstance(batch, TensorDictBase) and _INDEX in info:
            batch.set(_INDEX, _source_of(info[_INDEX], batch))
        batch = transformed(self._transforms, batch)
        return pinned(batch) if self._pin_memory else batch

    def _stacked(self, parts: list[Any], numbers: list[int]) -> Any:
        if not all(isinstance(part, TensorDictBase) for part in parts):
            return stacked(parts)
        try:
            return torch.stack(alike(parts, numbers, self.missing))
        except RuntimeError as error:
            raise BadArgument(
                f"the parts of the batch cannot be stacked: {'; '.join(_unlike(parts, numbers)) or error}",
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
                with member._gate:  # noqa: SLF001 - a member is a buffer too
                    member.sampler.update_priority(rows[mine], some, storage=member.storage)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Take over the priorities of a batch that was sampled: each buffer's sampler gets those of its steps.

        Args:
            data: A batch with its ``"index"``, and with the priorities where the buffers look for them.

        Raises:
            BadArgument: If there is no index, or a priority is no finite number from 0.
        """
        index = data.get(_INDEX, None)
        if index is None:
            raise BadArgument(f"the batch has no {_INDEX!r}; expected one that sample() returned, with its index")
        for number, member in enumerate(self._members):
            mine = index[_SOURCE] == number
            priority = data.get(getattr(member, "priority_key", "td_error"), None)
            if priority is not None and mine.any():
                priority = priority.reshape(*mine.shape, -1)[mine]
                with member._gate:  # noqa: SLF001 - a member is a buffer too
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
            return self._stacked(parts, numbers)
        if isinstance(index, str):
            raise BadArgument(f"rb[{index!r}] names no buffer", hint=f"ask for the field of some: rb[:, {index!r}]")
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
            raise BadArgument(f"rb[{index!r}] = ... names no single buffer", hint="write to one of them: rb[i, index]")
        self._members[index[0]][index[1]] = data


def _expect_flat(rbs: Sequence[ReplayBuffer]) -> None:
    given: Sequence[Any] = rbs
    strange = [repr(one) for one in given if not isinstance(one, ReplayBuffer)]
    if strange:
        raise BadArgument(f"{', '.join(strange)}: no replay buffer", hint="give each storage a ReplayBuffer")
    nested = [number for number, rb in enumerate(rbs) if isinstance(rb, ReplayBufferEnsemble)]
    if nested:
        raise BadArgument(
            f"buffers {nested} are ensembles themselves; their batches have parts already",
            hint="give their buffers: ReplayBufferEnsemble(*(inner[i] for i in range(len(inner))), ...)",
        )


def _expect_alone(**parts: Any) -> None:
    given = [name for name, part in parts.items() if part is not None]
    if given:
        raise BadArgument(f"buffers were given, and {', '.join(given)} too: they exclude each other")


def _refused(part: Any) -> BadArgument:
    return BadArgument(
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
        raise BadArgument("an ensemble needs buffers, or storages, samplers and writers")
    counts = {"storages": len(storages), "samplers": len(samplers), "writers": len(writers)}
    if collate_fns is not None:
        counts["collate_fns"] = len(collate_fns)
    if len(set(counts.values())) > 1:
        raise BadArgument(
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


def _source_of(index: TensorDictBase, batch: TensorDictBase) -> TensorDict:
    """Return which buffer and which of its rows each step is from, [n, B / n]."""
    rows = index[_INDEX]
    numbers = index[_SOURCE].reshape(-1, *[1] * (rows.ndim - 1)).expand(rows.shape).clone()
    return TensorDict({_SOURCE: numbers, _INDEX: rows}, batch_size=batch.batch_size[: rows.ndim])


def _keys(part: TensorDictBase) -> set[Key]:
    return {as_key((key,) if isinstance(key, str) else key) for key in part.keys(include_nested=True, leaves_only=True)}


def alike(parts: list[Any], numbers: list[int], missing: Missing) -> list[Any]:
    """Return the parts with the same keys."""
    keys = [_keys(part) for part in parts]
    common, every = set.intersection(*keys), set.union(*keys)
    if common == every:
        return parts
    if missing == "drop":
        return [part.select(*common) for part in parts]
    if missing == "refuse":
        lacking = {number: sorted(every - have) for number, have in zip(numbers, keys, strict=True) if every != have}
        raise BadArgument(
            "; ".join(f"buffer {number} has no {', '.join(map(dotted, names))}" for number, names in lacking.items()),
            hint="rename or select keys with transforms, or give missing='drop' or missing='zero'",
        )
    owners = {key: part.get(key) for part in parts for key in _keys(part)}
    return [
        part.clone(False).update({key: torch.zeros_like(owners[key]) for key in every - have})
        for part, have in zip(parts, keys, strict=True)
    ]


def _unlike(parts: list[TensorDictBase], numbers: list[int]) -> list[str]:
    """Say key by key where the shapes or dtypes of the parts differ."""
    said = []
    for key in sorted(_keys(parts[0])):
        leaves = [part.get(key, None) for part in parts]
        kinds = {
            f"{list(leaf.shape)} {leaf.dtype} in buffer {number}"
            for leaf, number in zip(leaves, numbers, strict=True)
            if leaf is not None
        }
        if len({(leaf.shape, leaf.dtype) for leaf in leaves if leaf is not None}) > 1:
            said.append(f"{dotted(key)} is {', '.join(sorted(kinds))}")
    return said
