"""A small dataset of a source, for the tests that every source is put through: tests/conformance/test_sources.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets_rl.ted.episode import Episode

__all__ = ["Case", "Fault"]


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong with the raw files, and that a conversion must refuse."""

    spoil: Callable[[Path], object]
    """Does it to the tree that `Case.write` wrote into this folder."""
    says: str
    """What the message of the error has in it."""


@dataclass(frozen=True)
class Case:
    """What the upstream publishes under one id, how it is served, and what must come out.

    Every `tests/raw/<source>.py` has ``CASES``, a list of these.
    """

    id: str
    """With its source: ``vd4rl/main/walker_walk/expert/64px``."""
    write: Callable[[Path], Sequence[Episode]]
    """Writes the tree, in the upstream's own layout, as ``--from-local`` takes it. Returns the episodes that must be
    stored, in their order, made from what the generator knows and not from the files: whole ones, with a known final
    state where the upstream has it. It writes at least two shards where the upstream has shards, and always the same
    bytes."""
    served: Callable[[Path], AbstractContextManager[Mapping[str, str]]]
    """Serves that tree on loopback as the upstream does, and gives the environment variables that lead there."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The options of the source, ``{"images": "encoded"}``."""
    faults: Mapping[str, Fault] = field(default_factory=dict)
    """By a sentence, as in "a row with another number of fields": everything the source must refuse."""
    many: Callable[[Path, int], object] | None = None
    """Writes a tree of about so many bytes under the same id, for the measurement of memory and speed."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the manifest that must be so: ``{"license": "MIT"}``."""
    episodes: bool = True
    """Whether ``--episodes`` chooses among them before the download; heeded where the source does that at all."""
    small: Mapping[str, int] = field(default_factory=dict)
    """What is set lower so that this tree has several shards: ``{"datasets_rl.sources.minari._SHARD_BYTES": 10_000}``."""
    plain: Mapping[str, Any] = field(default_factory=dict)
    """Arguments with which the class shows what is stored, and nothing made of it: ``{"totensor": False}``."""
    lossy: Mapping[str, float] = field(default_factory=dict)
    """Dotted keys whose values may be off by so much: pictures that went through JPEG."""
