"""`Case`, a small dataset of a source, and `Fault`, a corruption of its files, for the conformance suite of sources."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets_rl import sources
from datasets_rl.ted.episode import Episode

__all__ = ["Case", "Fault"]


@dataclass(frozen=True)
class Fault:
    """A corruption of the raw files that a conversion must reject."""

    corrupt: Callable[[Path], object]
    """Corrupts the raw files that `Case.write` wrote to this folder."""
    message: str
    """Text that the error message contains."""


@dataclass(frozen=True)
class Case:
    """A small dataset: its raw files, a server of them, and the episodes that the conversion must store.

    Every `tests/raw/<source>.py` has a list ``CASES`` of these.
    """

    id: str
    """The id with its source: ``vd4rl/main/walker_walk/expert/64px``."""
    write: Callable[[Path], Sequence[Episode]]
    """Writes the raw files in the upstream's layout, as ``--from-local`` expects them, and returns the episodes that
    the conversion must store, in order. The episodes are complete, have a known final state where the upstream has
    one, and are built from the generated data, not read from the files. The bytes are always the same; a source with
    shards gets at least two."""
    served: Callable[[Path], AbstractContextManager[Mapping[str, str]]]
    """Serves the raw files on loopback like the upstream; yields the environment variables that select the server."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the source, for example ``{"images": "encoded"}``."""
    faults: Mapping[str, Fault] = field(default_factory=dict)
    """Corruptions that the source must reject, by description: "a row with another number of fields"."""
    many: Callable[[Path, int], object] | None = None
    """Writes raw files of about this many bytes under the same id, to measure memory and speed."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Expected fields of the manifest: ``{"license": "MIT"}``."""
    episodes: bool = True
    """Whether ``--episodes`` can select episodes of this dataset before the download, where the source supports it."""
    small: Mapping[str, int] = field(default_factory=dict)
    """Constants by dotted name that are lowered so that the dataset has several shards:
    ``{"datasets_rl.sources.minari._SHARD_BYTES": 10_000}``."""
    plain: Mapping[str, Any] = field(default_factory=dict)
    """Arguments with which the dataset class returns the stored values unchanged: ``{"totensor": False}``."""
    lossy: Mapping[str, float] = field(default_factory=dict)
    """Tolerances by dotted key, for values that are stored with a loss, such as JPEG images."""


def cases_of_sources() -> Iterator[tuple[str, int, Case]]:
    """Yield the source, the number and the case of every case: ``CASES`` of the modules here that are named as a source."""
    for name in sources.source_names():
        if importlib.util.find_spec(f"raw.{name}") is not None:
            for number, case in enumerate(importlib.import_module(f"raw.{name}").CASES):
                yield name, number, case
