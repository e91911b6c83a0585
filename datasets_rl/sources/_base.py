"""What a source is: a list of ids with facts that need no network, the files of an id, and how to read them."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl.errors import UnknownId

if TYPE_CHECKING:
    # Listing ids needs none of these at run time, and numpy takes longer to import than all the catalogs.
    import numpy as np
    from numpy.typing import NDArray

    from datasets_rl.fetch.asset import Asset
    from datasets_rl.rows import Column
    from datasets_rl.ted.episode import Episode

__all__ = ["Decision", "Entry", "Recording", "Score", "Source"]


@dataclass(frozen=True, slots=True)
class Score:
    """Returns that a normalised score calls 0 and 1."""

    low: float
    """Return of the random policy."""
    high: float
    """Return of the expert."""
    origin: str
    """Who published the two numbers."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a dataset without any request."""

    source: str
    name: str
    """The id within its source."""
    title: str = ""
    """One line for listings."""
    bytes: int | None = None
    """On the wire, where known."""
    licence: str = ""
    citation: str = ""
    homepage: str = ""
    faults: tuple[str, ...] = ()
    """Known faults of the upstream's data, a sentence each."""
    score: Score | None = None
    time_limit: int | None = None
    """Steps after which the environment cuts an episode."""
    deprecated: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What only this source's own reader needs."""

    @property
    def id(self) -> str:
        """The id with its source, ``d4rl/hopper-medium-v2``."""
        return f"{self.source}/{self.name}"


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice that a reader made on alignment or repair; recorded in the manifest."""

    rule: str
    """A stable name, ``"end-without-flag"``."""
    text: str
    """What was done and why, in a sentence."""
    count: int = 1
    """How many rows or episodes it touched."""


class Recording(ABC):
    """Opened upstream files: their columns, known at once, and their episodes, read in one pass.

    A context manager, because it holds files open.
    """

    columns: Sequence[Column]
    """Every field of a step; ``episode`` and ``("next", "done")`` are left to the converter."""
    steps: int | None
    """How many steps will come, where the files say so."""
    metadata: Mapping[str, NDArray[np.generic] | str | float | bool]
    """What belongs to no step, by slash-joined name: weights of the behaviour policy, its algorithm."""
    decisions: list[Decision]
    """Complete after `episodes` is exhausted."""

    @abstractmethod
    def episodes(self) -> Iterator[Episode]:
        """Yield the trajectories, long ones in pieces, in the order of the files.

        Raises:
            ConversionFailed: If the files break their own format; every fault that was found is named.
        """

    @abstractmethod
    def __enter__(self) -> Recording: ...

    @abstractmethod
    def __exit__(self, *details: object) -> None: ...


class Source(ABC):
    """Where datasets come from. The file's name in this folder is the source's name."""

    name: str

    @abstractmethod
    def ids(self) -> Sequence[str]:
        """Return every id of this source, sorted; no network."""

    @abstractmethod
    def entry(self, name: str) -> Entry:
        """Return what is known of an id; no network.

        Raises:
            UnknownId: If this source has no such id; the error names the nearest ones.
        """

    @abstractmethod
    def assets(self, name: str) -> Sequence[Asset]:
        """Return the files that an id consists of."""

    @abstractmethod
    def open(self, name: str, files: Mapping[str, Path]) -> Recording:
        """Open the files of an id.

        Args:
            name: The id.
            files: For the path of each asset, where the file lies.

        Raises:
            ConversionFailed: If the files lack a column or contradict each other; every fault at once.
        """

    @abstractmethod
    def compare(self, name: str, files: Mapping[str, Path], column: Any) -> list[str]:
        """Compare a converted dataset with its raw files, column by column, without the reader that converted them.

        Args:
            name: The id.
            files: For the path of each asset, where the file lies.
            column: Takes a key and a range of rows, ``column(key, start, stop)``, and returns the converted values,
                [stop - start, ...]. Keys under "next" are answered too.

        Returns:
            Every difference, with the column, the row and both values; empty if there is none.
        """

    def unknown(self, name: str) -> UnknownId:
        """Make the error for an id that this source does not have."""
        ids = self.ids()
        near = difflib.get_close_matches(name, ids, n=3, cutoff=0.5)
        return UnknownId(
            f"{self.name}/{name}", [f"{self.name}/{one}" for one in near], f"{len(ids)} ids of {self.name}"
        )
