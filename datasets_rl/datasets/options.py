"""The options that the classes of datasets share, which `BaseDatasetExperienceReplay` describes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch

from datasets_rl.buffers.arguments import Transform
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
    """Options of the buffer and of the visible part of a stored dataset."""

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


def with_base_arguments(constructor: Callable[..., None], base: Callable[..., None]) -> inspect.Signature:
    """Return the signature of a constructor, with the arguments of that of the base class in place of ``**options``."""
    _self, *own = inspect.signature(constructor).parameters.values()
    named = {parameter.name: parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD}
    if len(named) < len(own):
        # Without a default is the id, which a class may call otherwise.
        others = [one for one in inspect.signature(base).parameters.values() if one.default is not one.empty]
        named |= {one.name: one.replace(kind=one.KEYWORD_ONLY) for one in others if one.name not in named}
    return inspect.Signature([*named.values()])
