"""What a source is: a list of ids with facts that need no network, the files of an id, and how to read them.

    resolve   which files, in which shards      asks the upstream for lists and small files
    open      the columns                       of the files of any shard
    episodes  the trajectories of one shard     in another process, where there are several

A shard is the piece of a dataset that is fetched, converted and committed as one: the next one is fetched while this
one is converted, and its files are deleted when its rows are on the disk.
"""

from __future__ import annotations

import difflib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl.errors import InvalidArgumentError, UnknownIdError
from datasets_rl.sources.selection import Numbers, Option, Selection
from datasets_rl.ted.keys import Key

if TYPE_CHECKING:
    # Listing ids needs none of these at run time, and numpy takes longer to import than all the catalogs.
    import numpy as np
    from numpy.typing import NDArray

    from datasets_rl.fetch.asset import Asset
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.format.schema import Column
    from datasets_rl.ted.episode import DeferredStates, Episode
    from datasets_rl.ted.episode_batch import EpisodeBatch
    from datasets_rl.ted.table import EpisodeTable

__all__ = [
    "NO_TRANSITION",
    "Decision",
    "Entry",
    "EpisodeReader",
    "Listing",
    "Option",
    "Score",
    "Selection",
    "Shard",
    "Source",
]

NO_TRANSITION = {"no-transition": "episodes without a transition, and files without a row, were left out"}
"""The rule and the text of the decision that every source takes on what is empty; nothing but that is an error."""


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
    license: str = ""
    citation: str = ""
    homepage: str = ""
    known_issues: tuple[str, ...] = ()
    """Known issues of the upstream's data, a sentence each."""
    score: Score | None = None
    time_limit: int | None = None
    """Steps after which the environment cuts an episode."""
    deprecated: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)
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


@dataclass(frozen=True, slots=True)
class Shard:
    """A piece of a dataset that is fetched, converted and committed as one."""

    paths: tuple[str, ...]
    """The files that it is read from; several shards may share one."""
    part: Any = None
    """Which part of them, as a JSON value that only the source understands."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What an id, or the part of it that is wanted, consists of upstream."""

    assets: tuple[Asset, ...]
    shards: tuple[Shard, ...]
    """In the order of their rows; at least one."""
    common: tuple[str, ...] = ()
    """The files that every shard needs."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """JSON values for `Source.open`: what was learned on the way, and what of the selection the reader needs."""
    entry: Entry | None = None
    """What is known of the dataset, where the upstream says more than the catalog."""
    revision: str = ""
    """The upstream's own version mark of the whole, a commit."""
    steps: int | None = None
    """How many steps all shards have, where the upstream says so; it is held to that."""
    keys: Sequence[Key] = ()
    """Every field that steps may have, where that is known before a file is there."""
    stored_bytes: int | None = None
    """About how many bytes are stored, where that is known without the sizes of the files."""
    growth: Mapping[str, float] = field(default_factory=dict)
    """About how many bytes are stored for each one that is fetched: by the choices that decide it, as one types them,
    the one taken first."""
    numbers: Numbers | None = None
    """The trajectories that are wanted, counted over all shards, where no upstream says how many each shard has: the
    others are dropped, and no shard behind the last one wanted is waited for."""

    def groups(self, shards: Sequence[Shard]) -> list[list[Asset]]:
        """Return the files to fetch for each of some shards: those that none of the shards before it needs."""
        assets = {asset.path: asset for asset in self.assets}
        seen: set[str] = set()
        groups: list[list[Asset]] = []
        for shard in shards:
            needed = (*self.common, *shard.paths)
            groups.append([assets[path] for path in dict.fromkeys(needed) if path not in seen])
            seen.update(needed)
        return groups

    def narrowed(self, selection: Selection) -> Listing:
        """Leave out the shards that the globs leave out, and those behind the one that exceeds the size.

        Raises:
            InvalidArgumentError: If none is left; `UnknownKeyError` if there is no such field.
        """
        if self.keys:
            selection.kept_keys(self.keys)
        kept: list[Shard] = []
        sizes = {asset.path: asset.size for asset in self.assets}
        taken = set(self.common)
        left_out = [path for shard in self.shards for path in shard.paths if not selection.keeps_file(path)]
        for shard in (one for one in self.shards if not set(one.paths) & set(left_out)):
            more = taken | set(shard.paths)
            if selection.max_size is not None:
                unsized = sorted(path for path in more if sizes[path] is None)
                if unsized:
                    raise InvalidArgumentError(
                        f"max_size needs the sizes of all files; that of {unsized[0]} is not known"
                    )
                if (least := sum(sizes[path] or 0 for path in more)) > selection.max_size:
                    if not kept:
                        raise InvalidArgumentError(
                            f"max_size is {selection.max_size:,} bytes; the first piece alone has {least:,}"
                        )
                    break
            taken = more
            kept.append(shard)
        if not kept:
            raise InvalidArgumentError(
                f"no file is left of {len(self.assets):,}", hint=f"the first one is {self.assets[0].path}"
            )
        assets = tuple(asset for asset in self.assets if asset.path in taken)
        steps = self.steps if len(kept) == len(self.shards) else None
        stored_bytes = None if self.stored_bytes is None else self.stored_bytes * len(kept) // len(self.shards)
        return replace(self, assets=assets, shards=tuple(kept), steps=steps, stored_bytes=stored_bytes)


class EpisodeReader(ABC):
    """Opened upstream files: their columns, known at once, and their episodes, read in one pass.

    A context manager, because it holds files open.
    """

    columns: Sequence[Column]
    """Every field of a step; ``episode`` and ``("next", "done")`` are left to the converter."""
    steps: int | None
    """How many steps the files say that they have; heeded where a dataset is one shard."""
    metadata: Mapping[str, NDArray[np.generic] | str | float | bool]
    """What belongs to no step, by slash-joined name: weights of the behaviour policy, its algorithm."""
    decisions: list[Decision]
    """Those for what `episodes` has read, complete when it is exhausted; the counts of all shards are added up."""

    @abstractmethod
    def episodes(self, part: Any = None) -> Iterator[Episode | DeferredStates | EpisodeBatch]:
        """Yield the trajectories of a shard, in the order of the files.

        Long ones come in pieces of a few megabytes, very short ones many at once. A trajectory may go on in the next shard: its last piece here then `continues`. States that stand at the end of
        their file, far behind the others, come as `DeferredStates`.

        Args:
            part: That of the shard.

        Raises:
            ConversionError: If the files break their own format; every fault that was found is named.
        """

    def specs(self) -> Mapping[str, Any]:
        """Return what the values of fields may be, where the upstream says it: by dotted key, as `TensorSpec.to_json`."""
        return {}

    @abstractmethod
    def __enter__(self) -> EpisodeReader: ...

    @abstractmethod
    def __exit__(self, *details: object) -> None: ...


class Source(ABC):
    """A source of datasets: its ids, their files, and the reader of the files."""

    name: str
    selects: frozenset[str] = frozenset()
    """The fields of a `Selection` that `resolve` heeds, as "episodes"; keys, globs and sizes everyone does."""
    options: tuple[Option, ...] = ()
    """Further choices."""
    restated: frozenset[str] = frozenset()
    """The fields of an `Entry` that upstream files may state otherwise than the catalog, so that `resolve` changes them."""

    @cached_property
    def catalog(self) -> dict[str, Any]:
        """The content of ``catalog.json`` in the folder of the source's class."""
        return dict(json.loads(files(type(self).__module__).joinpath("catalog.json").read_text("utf-8")))

    @abstractmethod
    def ids(self) -> Sequence[str]:
        """Return every id of this source, sorted; no network."""

    def listed(self, upstream: Upstream) -> Sequence[str]:
        """Return every id that the upstream has today, where it can be asked; by default those of the catalog.

        Raises:
            FetchError: If it does not answer.
        """
        del upstream
        return self.ids()

    @abstractmethod
    def entry(self, name: str) -> Entry:
        """Return what is known of an id; no network.

        Raises:
            UnknownIdError: If this source has no such id; the error names the nearest ones.
        """

    def assets(self, name: str) -> Sequence[Asset]:
        """Return the files that an id consists of, where the catalog knows them."""
        raise NotImplementedError(f"{self.name} asks its upstream which files {name} has")

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Find out which files are needed; by default those that the catalog knows, as one shard.

        Args:
            name: The id.
            selection: The part that is wanted; `check` has seen it.
            upstream: Lists folders and reads small files, the same ones again after an interruption.

        Raises:
            FetchError: If the upstream cannot be asked.
            ConversionError: If it says something that is no such dataset.
            InvalidArgumentError: If it does not have what is wanted.
        """
        del selection, upstream
        assets = tuple(self.assets(name))
        return Listing(assets, (Shard(tuple(asset.path for asset in assets)),))

    def check(self, selection: Selection) -> None:
        """Check that this source can give such a part.

        Raises:
            InvalidArgumentError: If it cannot; all faults at once.
        """
        known = {option.name: option for option in self.options}
        faults = []
        if selection.episodes and "episodes" not in self.selects:
            faults.append(f"{self.name} gives whole files, and no episodes")
        for name, value in selection.options.items():
            if name not in known:
                faults.append(f"{self.name} has no option {name!r}; it has {', '.join(known) or 'none'}")
            elif known[name].choices and value not in known[name].choices:
                faults.append(f"{name} is {value!r}; expected one of {', '.join(known[name].choices)}")
        if faults:
            raise InvalidArgumentError("; ".join(faults))

    @abstractmethod
    def open(self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None) -> EpisodeReader:
        """Open the files of a shard.

        Args:
            name: The id.
            files: For the path of each of its assets, and of those that all shards need, where the file lies.
            params: Those of the `Listing`.

        Raises:
            ConversionError: If the files lack a column or contradict each other; every fault at once.
        """

    @abstractmethod
    def compare(
        self, name: str, files: Mapping[str, Path], column: Any, episodes: EpisodeTable | None = None
    ) -> list[str]:
        """Compare a converted dataset with its raw files, column by column, without the reader that converted them.

        Args:
            name: The id.
            files: For the path of each asset, where the file lies.
            column: Takes a key and a range of rows, ``column(key, start, stop)``, and returns the converted values,
                [stop - start, ...]; texts as such, in an array of objects. Keys under "next" are answered too.
            episodes: The converted episodes, with their numbers in the upstream's own order as "source".

        Returns:
            Every difference, with the column, the row and both values; empty if there is none.
        """

    def unknown(self, name: str) -> UnknownIdError:
        """Make the error for an id that this source does not have."""
        ids = self.ids()
        near = difflib.get_close_matches(name, ids, n=3, cutoff=0.5)
        return UnknownIdError(
            f"{self.name}/{name}", [f"{self.name}/{one}" for one in near], f"{len(ids)} ids of {self.name}"
        )
