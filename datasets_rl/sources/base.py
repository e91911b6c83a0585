"""Contract of a source: a catalog that needs no network, the upstream files of each id, and a reader of these files.

    resolve   which files, in which shards      requests file lists and small files from the upstream
    open      the columns                       of the files of any shard
    episodes  the trajectories of one shard     in a worker process, if there are several shards

A shard is the unit that is fetched, converted and committed together. The next shard is fetched while the current shard
is converted, and the files of a shard are deleted when the rows are stored on disk.
"""

from __future__ import annotations

import difflib
import json
import pkgutil
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from datasets_rl.errors import ConversionError, InvalidArgumentError, UnknownIdError
from datasets_rl.format.space_summary import FIGURES, Basis, SpaceSummary
from datasets_rl.read.streams import first_problems
from datasets_rl.sources.address import unquoted_path
from datasets_rl.sources.flat.names import bears_on_episodes
from datasets_rl.sources.selection import IMAGES, Numbers, Option, Selection
from datasets_rl.ted.keys import Key

if TYPE_CHECKING:
    # Listing ids needs none of the following at run time, and numpy takes longer to import than all the catalogs together.
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from datasets_rl.fetch.asset import Asset, Folder
    from datasets_rl.fetch.upstream import Upstream
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.format.schema import Column
    from datasets_rl.sources.address_files import AddressFiles
    from datasets_rl.ted.episode import DeferredStates, Episode
    from datasets_rl.ted.episode_batch import EpisodeBatch

__all__ = [
    "AT_ADDRESS",
    "NOT_FINITE",
    "NO_TRANSITION",
    "Basis",
    "Decision",
    "Entry",
    "EpisodeReader",
    "Listing",
    "Option",
    "Score",
    "Selection",
    "Shard",
    "Source",
    "SpaceSummary",
    "bibtex_entries",
    "by_images",
    "cut_file",
    "group_by_size",
    "group_files",
    "nearest_names",
    "quality_tags",
]

_Item = TypeVar("_Item")

_BIBTEX_HEAD = re.compile(r"@\w+\s*\{(?P<body>)\s*(?P<key>[^,\s{}]+)\s*,")
_FILE_NUMBER = re.compile(r"-\d+(?=\.\w+$)", re.ASCII)
_BRACE = re.compile(r"(?<!\\)[{}]")

AT_ADDRESS = "address"
"""Parameter of the listing of files at an address, which the catalog does not list."""
NO_TRANSITION = {"no-transition": "episodes without a transition, and files without a row, were left out"}
"""Rule and text of the decision that every source records for empty episodes and files. A dataset that has nothing
else is an error."""
NOT_FINITE = {"not-finite": "values that are NaN or infinite were kept"}
"""Rule and text of the decision about values that are not numbers, see `count_not_finite` of `datasets_rl.sources.values`."""


@dataclass(frozen=True, slots=True)
class Score:
    """Returns that correspond to the normalized scores 0 and 1."""

    low: float
    """Return of the random policy."""
    high: float
    """Return of the expert."""
    origin: str
    """The publication or package that states the two returns."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Catalog entry of a dataset, available without a request."""

    source: str
    name: str
    """The id within the source."""
    title: str = ""
    """One line for listings."""
    description: str = ""
    """What the dataset is, in a few sentences."""
    environment: str = ""
    """The environment of the steps, by the id in Gymnasium or the usual name."""
    observation: SpaceSummary | None = None
    action: SpaceSummary | None = None
    bytes: int | None = None
    """Download size, if known."""
    steps: int | None = None
    """Number of steps, if known."""
    episodes: int | None = None
    """Number of episodes, if known."""
    basis: Mapping[str, Basis] = field(default_factory=dict)
    """How well each of `FIGURES` is known. A figure without an entry is exact."""
    tags: tuple[str, ...] = ()
    """Words to choose by, such as "locomotion", "expert" or "human"."""
    license: str = ""
    citation: str = ""
    homepage: str = ""
    known_issues: tuple[str, ...] = ()
    """Known issues of the upstream's data, one sentence each."""
    score: Score | None = None
    time_limit: int | None = None
    """Number of steps after which the environment truncates an episode."""
    deprecated: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that only the reader of this source needs."""

    @property
    def id(self) -> str:
        """Full id, which begins with the source: ``d4rl/hopper-medium-v2``."""
        return f"{self.source}/{self.name}"


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision of a reader on how to align or repair data. The manifest records it."""

    rule: str
    """Stable name, such as ``"end-without-flag"``."""
    text: str
    """What was done and why, in one sentence."""
    count: int = 1
    """Number of rows or episodes affected."""
    of_dataset: bool = False
    """Whether the decision is about the whole dataset, so that the reader of every shard makes the same decision."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Unit of a dataset that is fetched, converted and committed together."""

    paths: tuple[str, ...]
    """Files that the shard is read from. Several shards may share a file."""
    part: Any = None
    """Part of these files that the shard covers, as a JSON value that only the source interprets."""


_QUALITIES = frozenset(
    {"cloned", "expert", "human", "medium", "mixed", "optimal", "random", "replay", "simple", "suboptimal"}
)


def quality_tags(name: str) -> tuple[str, ...]:
    """Return the words of an id that say which policy took the steps, in order, each once."""
    words = re.split(r"[-_/.()]", name.lower())
    # In ids of mazes, medium is a size.
    return tuple(
        dict.fromkeys(word for word in words if word in _QUALITIES and not ("maze" in name and word == "medium"))
    )


def group_by_size(items: Iterable[_Item], sizes: Iterable[int], max_bytes: int) -> Iterator[list[_Item]]:
    """Group items for shards, because each shard costs a commit.

    Args:
        items: The items, at least one.
        sizes: The bytes of each item.
        max_bytes: Maximum bytes of a group. A larger item is a separate group.
    """
    group: list[_Item] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if group and total + size > max_bytes:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    yield group


def cut_file(asset: Asset, max_bytes: int, *, unsized: int = 1) -> tuple[Shard, ...]:
    """Cut a file into shards: the part of the k-th of n is [k, n]. A file of unknown size has `unsized` shards."""
    count = unsized if asset.size is None else max(1, -(-asset.size // max_bytes))
    return tuple(Shard((asset.path,), [number, count]) for number in range(count))


def none_kept(assets: Sequence[Asset]) -> InvalidArgumentError:
    """Return the error for globs that exclude all files."""
    return InvalidArgumentError(
        f"include and exclude match none of the {len(assets):,} files",
        hint=f"the path of the first file is {assets[0].path}",
    )


def group_files(
    assets: Sequence[Asset], selection: Selection, max_bytes: int
) -> tuple[tuple[Asset, ...], tuple[Shard, ...]]:
    """Return the selected files, or all files if none is selected, and shards of successive files.

    Files are excluded before they are grouped, because a shard with an excluded file is dropped completely.
    """
    kept = tuple(asset for asset in assets if selection.keeps_file(asset.path)) or tuple(assets)
    groups = group_by_size(kept, (asset.size or 0 for asset in kept), max_bytes)
    return kept, tuple(Shard(tuple(asset.path for asset in group)) for group in groups)


def by_images(sizes: Mapping[str, float], selection: Selection) -> dict[str, float]:
    """Return sizes by the form of images, for `Listing.growth`, with the requested form first.

    Args:
        sizes: The size for each value of `IMAGES`, that of the default first.
        selection: The requested selection.
    """
    requested = selection.options.get(IMAGES.name)
    return {f"{IMAGES.name}={form}": sizes[form] for form in sorted(sizes, key=lambda form: form != requested)}


@dataclass(frozen=True, slots=True)
class Listing:
    """Upstream files and shards of a dataset, or of the selected part of it."""

    assets: tuple[Asset, ...]
    shards: tuple[Shard, ...]
    """In row order, at least one."""
    common: tuple[str, ...] = ()
    """Paths of the files that every shard needs."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """JSON values for `Source.open`: results of `Source.resolve`, and the choices of the selection that concern the
    reader."""
    entry: Entry | None = None
    """The catalog entry, completed with what the upstream reports, or None if the upstream adds nothing."""
    revision: str = ""
    """Version of the whole dataset as the upstream states it, such as a commit."""
    steps: int | None = None
    """Total number of steps of all shards, if the upstream reports it. The conversion fails if the number differs."""
    keys: Sequence[Key] = ()
    """Every field that steps may have, if known before a file is fetched."""
    stored_bytes: Mapping[str, float] = field(default_factory=dict)
    """Approximate size of the converted dataset, if known without the sizes of the files, with the keys of `growth`."""
    read_seconds: Mapping[str, float] = field(default_factory=dict)
    """Approximate seconds in which a core reads the images of a step, if known, with the keys of `growth`."""
    growth: Mapping[str, float] = field(default_factory=dict)
    """Approximate number of stored bytes per fetched byte, for each choice that the number depends on (keyed
    like ``images=encoded``, or empty if there are none). The first choice is the choice in effect, or the expected choice if
    the conversion makes it."""
    copied: Manifest | None = None
    """The manifest of a dataset that the upstream has in the stored format. The files are copied and not converted: the
    `part` of each shard has, for each of its paths, the file of the dataset and the offset in it, and `params` has the
    address of the dataset."""
    numbers: Numbers | None = None
    """Numbers of the selected trajectories, counted over all shards, if the upstream does not report how many each
    shard has. Other trajectories are dropped, and shards after the last selected trajectory are not awaited."""

    @property
    def layout(self) -> str:
        """The source whose layout the files at an address have, and the evidence, or empty for an id of a catalog."""
        return f"{self.params['layout']}: {self.params['evidence']}" if "evidence" in self.params else ""

    def assets_by_shard(self, shards: Sequence[Shard]) -> list[list[Asset]]:
        """Return the files to fetch for each shard: the files that the shard needs and no earlier shard has."""
        assets = {asset.path: asset for asset in self.assets}
        seen: set[str] = set()
        groups: list[list[Asset]] = []
        for shard in shards:
            needed = (*self.common, *shard.paths)
            groups.append([assets[path] for path in dict.fromkeys(needed) if path not in seen])
            seen.update(needed)
        return groups

    def narrow_to(self, selection: Selection) -> Listing:
        """Drop the shards that the globs exclude, and every shard from the first shard that exceeds `max_size`.

        Raises:
            InvalidArgumentError: If no shard remains, or the size of a file is unknown.
            UnknownKeyError: If the selection names a field that the dataset does not have.
        """
        if self.keys:
            selection.kept_keys(self.keys)
        kept: list[Shard] = []
        sizes = {asset.path: asset.size for asset in self.assets}
        taken = set(self.common)
        left_out = [path for shard in self.shards for path in shard.paths if not selection.keeps_file(path)]
        for shard in (shard for shard in self.shards if not set(shard.paths) & set(left_out)):
            more = taken | set(shard.paths)
            if selection.max_size is not None:
                unsized = sorted(path for path in more if sizes[path] is None)
                if unsized:
                    raise InvalidArgumentError(
                        f"max_size needs the sizes of all files, but the size of {unsized[0]} is not known"
                    )
                if (size := sum(sizes[path] or 0 for path in more)) > selection.max_size:
                    if not kept:
                        raise InvalidArgumentError(
                            f"max_size is {selection.max_size:,} bytes, but the first shard alone has {size:,}"
                        )
                    break
            taken = more
            kept.append(shard)
        if not kept:
            raise none_kept(self.assets)
        assets = tuple(asset for asset in self.assets if asset.path in taken)
        steps = self.steps if len(kept) == len(self.shards) else None
        stored_bytes = {choice: size * len(kept) / len(self.shards) for choice, size in self.stored_bytes.items()}
        return replace(self, assets=assets, shards=tuple(kept), steps=steps, stored_bytes=stored_bytes)


def bibtex_entries(text: str) -> dict[str, str]:
    """Return the entries of a BibTeX text by key, in order. Text outside of entries is ignored."""
    entries: dict[str, str] = {}
    start = 0
    while (head := _BIBTEX_HEAD.search(text, start)) is not None:
        depth, start = 1, head.end()
        for brace in _BRACE.finditer(text, head.start("body")):
            depth += 1 if brace[0] == "{" else -1
            if not depth:
                start = brace.end()
                entries[head["key"]] = text[head.start() : start]
                break
    return entries


class EpisodeReader(ABC):
    """Reader of opened upstream files: the columns are known on opening, the episodes are read in one pass.

    A context manager, because a reader may keep files open.
    """

    columns: Sequence[Column]
    """Every field of a step, except ``episode`` and ``("next", "done")``, which the converter adds."""
    steps: int | None = None
    """Number of steps that the files report, which is checked if the dataset is a single shard."""
    metadata: Mapping[str, NDArray[np.generic] | str | float | bool] = MappingProxyType({})
    """Values that apply to no single step, by slash-joined name: weights of the behavior policy, the algorithm."""
    rules: Mapping[str, str] = MappingProxyType({})
    """Rule and text of each decision on the data that the reader may make, in the order in which they are recorded."""
    left_out: Mapping[str, str] = MappingProxyType({})
    """The reason why a field of the files is not stored, by the name of the field: "it has arrays of strings"."""
    _dataset_id: str
    """Id of the dataset, for messages."""

    @cached_property
    def kept(self) -> AbstractSet[Key]:
        """Keys of the fields to read: the stored fields, see `keep`, or by default all fields.

        A reader need not read other fields. Other fields that a reader yields are dropped.
        """
        return {column.key for column in self.columns}

    def keep(self, selection: Selection) -> None:
        """Set `kept` to the selected fields, before the episodes are read.

        Raises:
            UnknownKeyError: If a selected name matches no field.
        """
        self.kept = selection.kept_keys([column.key for column in self.columns])

    @cached_property
    def counts(self) -> Counter[str]:
        """Number of rows or episodes that each rule has affected, complete when `episodes` is exhausted."""
        return Counter()

    @property
    def decisions(self) -> Sequence[Decision]:
        """Decisions on the data that `episodes` has read.

        The counts of all shards are summed, unless they are `of_dataset`.
        """
        counted = [
            Decision(rule, text, self.counts[rule]) for rule, text in self.rules.items() if self.counts[rule] > 0
        ]
        reasons = sorted(self.left_out.items())
        left_out = ((f"left-out {name}", f"{name} was left out: {reason}") for name, reason in reasons)
        return [*counted, *(Decision(*stated, of_dataset=True) for stated in left_out)]

    def label(self, path: str) -> str:
        """Return the path of a file in the dataset, for messages: paths begin with the name of the dataset."""
        name = self._dataset_id.partition("/")[2]
        label = path.removeprefix(f"{name}/")
        return unquoted_path(label) if label == name.rpartition("/")[2] else label  # the id is the id of one file

    def error(self, where: str, problems: Iterable[str]) -> ConversionError:
        """Return the error for problems in a part of the files, such as a file or an episode."""
        return ConversionError(self._dataset_id, first_problems([f"{where}: {problem}" for problem in problems]))

    def refuse(self, where: str, problems: Iterable[str]) -> None:
        """Raise the error for problems in a part of the files, if there are problems."""
        if listed := [*problems]:
            raise self.error(where, listed)

    @contextmanager
    def part(self, where: str) -> Iterator[None]:
        """Add the part of the files to an error that is raised inside."""
        try:
            yield
        except ConversionError as error:
            raise self.error(where, error.problems) from None

    @abstractmethod
    def episodes(self, part: Any = None) -> Iterator[Episode | DeferredStates | EpisodeBatch]:
        """Yield the trajectories of a shard, in file order.

        Long trajectories are split into chunks of a few megabytes, and many very short trajectories form one batch. A
        trajectory may continue in the next shard: the last chunk in this shard then `continues`. States that the file
        stores at the end of the file, far after the rows of the states, are yielded as `DeferredStates`.

        Args:
            part: `Shard.part` of the shard.

        Raises:
            ConversionError: If the files violate the format. The error names every problem that was found.
        """

    def specs(self) -> Mapping[str, Any]:
        """Return the specs that the upstream declares, by dotted key, as documents of `TensorSpec.to_json`."""
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Close the files; by default no file is open, because `episodes` closes the files that `episodes` opens."""


class Source(ABC):
    """Source of datasets: the ids, the files of each id, and the reader of the files."""

    name: str
    selects: frozenset[str] = frozenset()
    """Fields of a `Selection` that `resolve` supports, such as "episodes". Keys, globs and sizes work for every
    source.

    If "episodes" is among the fields, `resolve` either lists the shards of the selected episodes alone, or returns
    `Listing.numbers`. In the first case the reader gives every episode the number at the upstream, counted from 0 over the
    whole dataset, as ``metadata["source"]``. A conversion of selected episodes without numbers is refused. In the second
    case the numbers are counted by the conversion."""
    options: tuple[Option, ...] = ()
    """Choices that this source has beside `IMAGES`."""
    image_forms: tuple[str, ...] = IMAGES.choices
    """The values of `IMAGES` that make sense for this source, or none if the source converts no files."""
    endings: tuple[str, ...] = ()
    """Endings of the names of the files, in lower case."""
    kind: str = ""
    """Format of the files, as in `Asset.of_kind`."""
    asks_sizes: bool = False
    """Whether the upstream states the sizes of files that the catalog lists."""
    keys: Sequence[Key] = ()
    """Every field that steps may have, if the fields are the same for all ids, see `Listing.keys`."""
    arrays: tuple[str, ...] = ()
    """Names of arrays of equal length by which `recognize` knows the layout, or none if the source recognizes no file
    by arrays."""
    many_files: bool = False
    """Whether a dataset may have several files with names that differ in a number only, for `recognize`."""
    optional_arrays: frozenset[str] = frozenset()
    """Names of arrays that mark ends of episodes, or have next observations, in files of this layout."""
    foreign_arrays: frozenset[str] = frozenset()
    """Names of arrays that files of this layout do not have."""
    reader: str = ""
    """Module and class of the reader, such as ``datasets_rl.sources.roboset.reader:RoboSetReader``. The class takes the
    full id, the local files by path, and what `reader_facts` returns."""
    restated: frozenset[str] = frozenset()
    """Fields of an `Entry` that the upstream files state too, so that `resolve` may replace the values of the catalog."""

    @cached_property
    def catalog(self) -> dict[str, Any]:
        """Content of ``catalog.json`` in the folder of the source's class, or empty without the file."""
        return dict(json.loads(self._read("catalog.json") or "{}"))

    def ids(self) -> Sequence[str]:
        """Return every id of this source, sorted, without network access. By default, these are the ids of the catalog."""
        return sorted(self.catalog["ids"])

    def listed(self, upstream: Upstream) -> Sequence[str]:
        """Return every id that the upstream currently lists. By default, these are the ids of the catalog.

        Raises:
            FetchError: If the upstream does not answer.
        """
        del upstream
        return self.ids()

    def entry(self, name: str) -> Entry:
        """Return the catalog entry of an id, without network access, by default from the `facts` of the id.

        ``params`` in the catalog names the facts that are `Entry.params`.

        Raises:
            UnknownIdError: If this source has no such id. The error suggests the closest ids.
        """
        facts = self.facts(name)
        texts: Mapping[str, str] = self.catalog.get("known_issues", {})
        plain = ("title", "description", "environment", "license", "citation", "homepage")
        params = {field: facts[field] for field in self.catalog.get("params", ()) if field in facts}
        return Entry(
            self.name,
            name,
            **{field: facts.get(field, self.catalog.get(field, "")) for field in plain},
            **{field: facts[field] for field in ("time_limit", "deprecated") if field in facts},
            params=params,
            **self.figures({"bytes": facts.get("size"), **facts}),
            observation=SpaceSummary.of(facts.get("observation")),
            action=SpaceSummary.of(facts.get("action")),
            tags=tuple(facts.get("tags", ())),
            known_issues=tuple(texts.get(issue, issue) for issue in facts.get("known_issues", ())),
            score=self._score(*facts["score"]) if "score" in facts else None,
        )

    def _score(self, low: float, high: float, origin: str = "") -> Score:
        """Return the reference returns.

        The origin of the returns is a text, or a key of ``score_origins``, or else ``score_origin``.
        """
        origins: Mapping[str, str] = self.catalog.get("score_origins", {})
        return Score(low, high, origins.get(origin, origin) or self.catalog["score_origin"])

    def facts(self, name: str) -> dict[str, Any]:
        """Return what the catalog states about an id, see `merged`.

        Raises:
            UnknownIdError: If the catalog does not list the id.
        """
        return self.merged(name, self.listed_facts(name))

    def merged(self, name: str, stated: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts about an id: the ``defaults`` of the catalog, and the facts of the groups and of the id.

        A later fact replaces an earlier one, but lists of tags and of known issues are joined. A text is a format string of
        the facts and of the ``id``: ``"title": "{robot}: {policy}"``.

        Args:
            name: The id.
            stated: The facts of the id alone. ``in`` names the group, or the groups in order, among ``groups``.
        """
        groups = stated.get("in", [])
        groups = [groups] if isinstance(groups, str) else groups
        facts: dict[str, Any] = {"id": name, "tags": [], "known_issues": []}
        for part in (self.catalog.get("defaults", {}), *(self.catalog["groups"][group] for group in groups), stated):
            joined = {field: [*facts[field], *part[field]] for field in ("tags", "known_issues") if field in part}
            facts |= {**part, **joined}
        return {field: value.format(**facts) if isinstance(value, str) else value for field, value in facts.items()}

    def figures(self, stated: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of an `Entry` for the figures that the catalog states.

        Args:
            stated: Each of `FIGURES` that is known, as a number that is exact, or as ``[number, key]``. The key is an item
                of ``figure_origins`` in the catalog, with the kind and the origin of a `Basis`.
        """
        values: dict[str, Any] = {}
        basis: dict[str, Basis] = {}
        for name in FIGURES:
            value = stated.get(name)
            if isinstance(value, list):
                value, key = value
                basis[name] = Basis(*self.catalog["figure_origins"][key])
            values[name] = value
        return {**values, "basis": basis}

    def addresses(self, name: str) -> Sequence[str]:
        """Return the addresses that an id is downloaded from, in the order in which they are tried, without a request.

        By default, these are the addresses of the first file that the catalog lists.
        """
        try:
            assets = self.assets(name)
        except NotImplementedError:
            return ()
        return assets[0].urls if assets else ()

    @cached_property
    def bibliography(self) -> dict[str, str]:
        """The BibTeX entries of ``citations.bib`` in the folder of the source's class, by key, or none without the file."""
        return bibtex_entries(self._read("citations.bib"))

    def citations(self, name: str) -> Sequence[str]:
        """Return the keys of the entries in the bibliography to cite for an id.

        By default, ``citations`` in the catalog maps the keys to patterns of ids. Without ``citations``, all entries
        are cited.
        """
        if not self.bibliography:
            return []
        patterns: Mapping[str, str] = self.catalog.get("citations", {})
        return [key for key in self.bibliography if re.fullmatch(patterns.get(key, "" if patterns else ".*"), name)]

    def _read(self, file: str) -> str:
        """Return the text of a file in the folder of the source's class, or "" if the file does not exist."""
        try:
            found = files(type(self).__module__).joinpath(file)
        except TypeError:  # the source is a module without a folder
            return ""
        return found.read_text("utf-8") if found.is_file() else ""

    @cached_property
    def _uses(self) -> Mapping[str, re.Pattern[str]]:
        stated: Mapping[str, str] = self.catalog.get("used_for", {})
        return {purpose: re.compile(pattern) for purpose, pattern in stated.items()}

    def purposes(self, name: str) -> list[str]:
        """Return what papers use an id for: words of `datasets_rl.sources.purposes`.

        ``used_for`` in the catalog maps the words to patterns of ids.
        """
        return [purpose for purpose, pattern in self._uses.items() if pattern.fullmatch(name)]

    def listed_file(self, path: str, kind: str, **known: Any) -> Asset:
        """Return a file below the ``base_urls`` of the catalog.

        Args:
            path: The path below each base URL.
            kind: The format, as in `Asset.of_kind`.
            known: Further fields of the `Asset`, such as the digest.
        """
        from datasets_rl.fetch.asset import Asset

        return Asset(tuple(base + path for base in self.catalog["base_urls"]), path, **known).of_kind(kind)

    def assets(self, name: str) -> Sequence[Asset]:
        """Return the files of an id, if the catalog lists them.

        By default, this is the file at its ``path``. If the catalog states the number of ``files``, ``path`` is a
        format string of the number of a file.
        """
        facts = self.facts(name) if isinstance(self.catalog.get("ids"), dict) else {}
        if "path" not in facts:
            raise NotImplementedError(
                f"the catalog of {self.name} lists no files of {name}, so that resolve asks the upstream"
            )
        known = {field: facts[field] for field in ("size", "sha256", "md5") if field in facts}
        paths = [facts["path"].format(number) for number in range(facts.get("files", 1))]
        return [self.listed_file(path, self.kind, **known) for path in paths]

    def resolve(self, name: str, selection: Selection, upstream: Upstream) -> Listing:
        """Determine which files are needed, by default the files that the catalog lists.

        Args:
            name: The id.
            selection: The part of the dataset to fetch, already validated by `check`.
            upstream: Lists folders and reads small files. After an interruption, the answers are the same.

        Raises:
            FetchError: If a request to the upstream fails.
            ConversionError: If the answer of the upstream does not describe such a dataset.
            InvalidArgumentError: If the upstream does not have the selected part.
        """
        assets = self.assets(name)
        return self.listing([upstream.with_size(asset) for asset in assets] if self.asks_sizes else assets, selection)

    def listing(self, assets: Sequence[Asset], selection: Selection) -> Listing:
        """Return the listing of files of the catalog or at an address. By default, the files are one shard."""
        return Listing(
            tuple(assets),
            (Shard(tuple(asset.path for asset in assets)),),
            keys=self.keys,
            numbers=Numbers.read(selection.episodes),
        )

    def own_copy(self, name: str) -> Path | None:
        """Return the complete folder of an id in the cache of the upstream's own library, or None without such a folder."""
        del name
        return None

    def recognize(self, files: AddressFiles) -> str:
        """Return what shows that files at any address have the layout of this source, or empty if the files do not have it.

        By default, a file with an ending of `endings` is recognized by the `arrays` of the file. The evidence completes
        the sentence "they have this layout: ...".

        Args:
            files: The files, of which as little as possible is opened.
        """
        found = files.ending(*self.endings) if self.arrays else []
        names = {_FILE_NUMBER.sub("", path) if self.many_files else path for path in found}
        rows = files.rows_of(found[0], self.arrays) if len(names) == 1 else None
        if rows is None:
            return ""
        others = {name for name in files.arrays(found[0]) if "/" not in name} - self.own_arrays()
        if self.foreign_arrays & others or any(map(bears_on_episodes, others)):
            return ""
        return f"{found[0]} has {', '.join(self.arrays[:-1])} and {self.arrays[-1]}, of {rows:,} rows each"

    def own_arrays(self) -> set[str]:
        """Return the names of the arrays that the reader knows."""
        return {*self.arrays, *self.optional_arrays}

    def recognize_last(self, files: AddressFiles) -> str:
        """Return what shows that this source can read files that no source recognizes; empty if it cannot.

        Args:
            files: The files.
        """
        del files
        return ""

    def resolve_files(self, entry: Entry, folder: Folder, selection: Selection, upstream: Upstream) -> Listing:
        """Determine which of the files at an address are needed, after `recognize` has recognized them.

        By default, these are the files with an ending of `endings`, in the order of their paths.

        Args:
            entry: An entry of the address, which is not in the catalog. `open` gets the name of the entry.
            folder: The files. The paths of the files begin with the name of the entry.
            selection: As in `resolve`.
            upstream: As in `resolve`.

        Raises:
            FetchError, ConversionError, InvalidArgumentError: As `resolve` does.
        """
        del upstream
        found = [asset.of_kind(self.kind) for asset in folder.assets if asset.path.lower().endswith(self.endings)]
        if not found:
            raise NotImplementedError(f"{self.name} recognizes no files of {entry.id} at {folder.address}")
        listing = self.listing(sorted(found, key=lambda asset: asset.path), selection)
        return replace(listing, params={**listing.params, AT_ADDRESS: True}, revision=folder.revision)

    @property
    def all_options(self) -> tuple[Option, ...]:
        """The choices of this source, with `IMAGES`."""
        return (*self.options, replace(IMAGES, choices=self.image_forms)) if self.image_forms else self.options

    def check(self, selection: Selection) -> None:
        """Check that this source supports a selection.

        Raises:
            InvalidArgumentError: If it does not. The error names every problem.
        """
        options = {option.name: option for option in self.all_options}
        problems = []
        if selection.episodes and "episodes" not in self.selects:
            problems.append(f"{self.name} can select whole files, but not episodes")
        for name, value in selection.options.items():
            if name not in options:
                problems.append(f"{self.name} has no option {name!r}{', only ' if options else ''}{', '.join(options)}")
            elif options[name].choices and value not in options[name].choices:
                problems.append(f"{name} is {value!r}, expected one of {', '.join(options[name].choices)}")
        if problems:
            raise InvalidArgumentError("; ".join(problems))

    def open(
        self, name: str, files: Mapping[str, Path], params: Mapping[str, Any] | None = None, *, dataset_id: str = ""
    ) -> EpisodeReader:
        """Open the files of a shard, by default with `reader`.

        Args:
            name: The id.
            files: The local file of each asset of the shard and of each common asset, by asset path.
            params: `Listing.params`.
            dataset_id: The id in messages, if the files are at an address. By default the id of this source.

        Raises:
            ConversionError: If the files lack a column or contradict each other. The error names every problem.
        """
        # Readers import numpy and h5py, and listing ids needs neither.
        kind: type[Any] = pkgutil.resolve_name(self.reader)
        reader: EpisodeReader = kind(dataset_id or f"{self.name}/{name}", files, self.reader_facts(name, params or {}))
        return reader

    def reader_facts(self, name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the reader needs beside the files, by default `Listing.params`."""
        del name
        return params

    def listed_facts(self, name: str) -> dict[str, Any]:
        """Return what the catalog states about an id under ``ids``.

        Raises:
            UnknownIdError: If the catalog does not list the id.
        """
        facts: dict[str, Any] | None = self.catalog["ids"].get(name)
        if facts is None:
            raise self.unknown(name)
        return facts

    def unknown(self, name: str) -> UnknownIdError:
        """Return the error for an id that this source does not have."""
        ids = self.ids()
        return UnknownIdError(
            f"{self.name}/{name}",
            [f"{self.name}/{one}" for one in nearest_names(name, ids)],
            f"{len(ids)} ids of {self.name}",
        )


def nearest_names(wanted: str, names: Iterable[str]) -> list[str]:
    """Return at most three names: names that contain a text, or are spelled nearly so, or have such a word."""
    by_lower, wanted = {name.lower(): name for name in names}, wanted.lower()
    found = sorted((name for name in by_lower if len(wanted) > 2 and wanted in name), key=lambda one: one.find(wanted))
    found = found or difflib.get_close_matches(wanted, by_lower, n=3, cutoff=0.75)
    if not found:
        words = {word for name in by_lower for word in re.split(r"[-_/]", name) if len(word) > 2}
        near = difflib.get_close_matches(wanted, words, n=1, cutoff=0.8)
        found = sorted((name for name in by_lower if near and near[0] in name), key=lambda one: one.find(near[0]))
    return [by_lower[name] for name in (found or difflib.get_close_matches(wanted, by_lower, n=3, cutoff=0.6))[:3]]
