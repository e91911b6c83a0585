"""The options that the classes of datasets share; `BaseDatasetExperienceReplay` describes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch

from datasets_rl.buffers.arguments import Transform
from datasets_rl.buffers.tensordict import TensorDictReplayBuffer
from datasets_rl.samplers.base import Sampler
from datasets_rl.sources import Selection
from datasets_rl.storages.final_states import FinalUnknown
from datasets_rl.writers.base import Writer

Download = bool | Literal["force"]


class BufferOptions(TypedDict, total=False):
    """Options of `TensorDictReplayBuffer` that every class passes on."""

    writer: Writer | None
    collate_fn: Callable[[Any], Any] | None
    pin_memory: bool
    prefetch: int | None
    transform: Transform | Sequence[Transform] | None
    transform_factory: Callable[[], Transform | Sequence[Transform]] | None
    dim_extend: int | None
    generator: torch.Generator | None
    priority_key: str
    shared: bool
    compilable: bool | None


class PartOptions(BufferOptions, total=False):
    """Options of the buffer and of what it shows of a stored dataset."""

    split_trajs: bool
    delta_timestamps: Mapping[Any, Sequence[float]] | None
    fps: float | None
    tolerance_s: float
    selection: Selection | None
    final_unknown: FinalUnknown | None
    storage: None


class DatasetOptions(PartOptions, total=False):
    """All keyword arguments of `BaseDatasetExperienceReplay`."""

    sampler: Sampler | None
    root: Path | str | None
    download: Download


class NamedOptions:
    """Descriptor of ``__signature__``: a constructor's arguments, with those of its base classes for ``**options``."""

    def __get__(self, instance: object, owner: type[TensorDictReplayBuffer]) -> inspect.Signature:
        named: dict[str, inspect.Parameter] = {}
        for cls in owner.__mro__:
            if "__init__" not in vars(cls):
                continue
            _self, *own = inspect.signature(vars(cls)["__init__"]).parameters.values()
            arguments = [one for one in own if one.kind is not one.VAR_KEYWORD and one.name not in named]
            if issubclass(TensorDictReplayBuffer, cls):
                arguments = [one for one in arguments if one.name in BufferOptions.__annotations__]
            elif named:
                # Without a default is the id, which a class may call otherwise.
                arguments = [one for one in arguments if one.default is not one.empty]
            named |= {one.name: one.replace(kind=one.KEYWORD_ONLY) if named else one for one in arguments}
            if own[-1].kind is not inspect.Parameter.VAR_KEYWORD:
                break
        return inspect.Signature([*named.values()])
