"""The catalog of datasets, without a network: the ids of all sources, and the stored datasets."""

from __future__ import annotations

import difflib
import fnmatch
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl import sources, store
from datasets_rl.catalog.mixture_file import read_mixture
from datasets_rl.disk import expand_home
from datasets_rl.errors import DatasetsRLError, InvalidArgumentError, NotADatasetError, UnknownIdError
from datasets_rl.format.space_summary import ActionKind, Basis, ObservationKind, SpaceSummary, least_known
from datasets_rl.format.summary import Summary
from datasets_rl.settings import Settings
from datasets_rl.sources import Score, split_derived
from datasets_rl.sources.purposes import IMAGE, PURPOSES
from datasets_rl.store.find import find_paths, locate, shown_id

if TYPE_CHECKING:
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.sources import Entry, Source


@dataclass(frozen=True)
class Member:
    """A dataset of a mixture."""

    info: DatasetInfo
    weight: float | None
    """The stated share, relative to the other members, or None if the file states no shares."""


@dataclass(frozen=True)
class DatasetInfo:
    """The description of a dataset, stored or not, or of a mixture of datasets.

    The figures are from the stored dataset, or else from the catalog. `basis` describes how well each figure is known.

        >>> from datasets_rl import info
        >>> pendulum = info("demo/pendulum")
        >>> pendulum.entry.title
        'Pendulum swing-up by three policies; comes with the package'
    """

    id: str
    entry: Entry | None
    """The entry in the catalog of the source, or None for a dataset that no catalog has. A derived dataset has the entry
    of the original dataset."""
    folder: Path | None
    """The folder of the stored dataset, or None if the dataset is not stored."""
    summary: Summary | None = None
    """The summary of the manifest, or None if the dataset is not stored, or `damaged`."""
    versions: tuple[Path, ...] = ()
    """The folders of the versions that are not current, oldest first."""
    members: tuple[Member, ...] = ()
    """The datasets of a mixture."""

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest of the stored dataset.

        Raises:
            ManifestError: If the manifest cannot be read.
        """
        from datasets_rl.format.manifest import Manifest

        return None if self.folder is None else Manifest.read(self.folder)

    @property
    def damaged(self) -> bool:
        """Whether the manifest of the stored dataset cannot be read."""
        return self.folder is not None and self.summary is None

    @cached_property
    def is_derived(self) -> bool:
        """Whether a recipe made the dataset from another dataset."""
        return bool(split_derived(self.id)[1])

    @property
    def title(self) -> str:
        """A line for listings."""
        return self.entry.title if self.entry is not None else ""

    @property
    def description(self) -> str:
        """A description in a few sentences."""
        return self.entry.description if self.entry is not None else ""

    @property
    def environment(self) -> str:
        """The environment of the steps, by the id in Gymnasium or the usual name, or the environments of a mixture."""
        if self.members:
            return ", ".join(dict.fromkeys(filter(None, (member.info.environment for member in self.members))))
        return str(self._stated("environment", ""))

    @property
    def observation(self) -> SpaceSummary | None:
        """The space of the observations, for a mixture only if all members have the same space."""
        return self._space("observation")

    @property
    def action(self) -> SpaceSummary | None:
        """The space of the actions, for a mixture only if all members have the same space."""
        return self._space("action")

    @property
    def steps(self) -> int | None:
        """Number of steps, if known."""
        return self._count("steps")

    @property
    def episodes(self) -> int | None:
        """Number of episodes, if known."""
        return self._count("episodes")

    @property
    def download_bytes(self) -> int | None:
        """Bytes of a download, if known, or None for a dataset that cannot be downloaded."""
        return None if self.entry is None or self.is_derived else self.entry.bytes

    @property
    def disk_bytes(self) -> int | None:
        """Bytes of the stored dataset."""
        return None if self.summary is None else self.summary.bytes

    @cached_property
    def basis(self) -> Mapping[str, Basis]:
        """How well `download_bytes` ("bytes"), `steps` and `episodes` are known, for a mixture the weakest basis."""
        if self.members:
            bases = [member.info.basis for member in self.members]
            shared = [name for name in ("steps", "episodes") if all(name in basis for basis in bases)]
            return {name: least_known(basis[name] for basis in bases) for name in shared}
        known = {} if self.entry is None else {name: Basis() for name in ("bytes", "steps", "episodes")}
        known |= {} if self.entry is None else dict(self.entry.basis)
        if self.summary is not None:
            known |= dict.fromkeys(("steps", "episodes"), Basis("exact", "the stored dataset"))
        values = {"bytes": self.download_bytes, "steps": self.steps, "episodes": self.episodes}
        return {name: basis for name, basis in known.items() if values[name] is not None}

    @property
    def license(self) -> str:
        """The license, or a note of the source about the license."""
        if self.members:
            return "; ".join(dict.fromkeys(filter(None, (member.info.license for member in self.members))))
        return str(self._stated("license", ""))

    @property
    def citation(self) -> str:
        """The citation."""
        return str(self._stated("citation", ""))

    @property
    def homepage(self) -> str:
        """A page about the dataset."""
        return str(self._stated("homepage", ""))

    @property
    def known_issues(self) -> tuple[str, ...]:
        """Known issues of the upstream's data, a sentence each."""
        if self.members:
            return tuple(dict.fromkeys(issue for member in self.members for issue in member.info.known_issues))
        known: Summary | Entry | None = self.summary if self.summary is not None else self.entry
        return () if known is None else tuple(known.known_issues)

    @property
    def time_limit(self) -> int | None:
        """Number of steps after which the environment truncates an episode."""
        known: Summary | Entry | None = self.summary if self.summary is not None else self.entry
        return None if known is None else known.time_limit

    @property
    def score(self) -> Score | None:
        """Returns with the normalized scores 0 and 1, for a mixture only if all members have the same returns."""
        if self.members:
            shared = {member.info.score for member in self.members}
            return shared.pop() if len(shared) == 1 else None
        if self.summary is not None and self.summary.score:
            return Score(**self.summary.score)
        return None if self.entry is None else self.entry.score

    @property
    def tags(self) -> tuple[str, ...]:
        """Words to choose by, such as "locomotion", "expert" or "human"."""
        if self.members:
            return tuple(dict.fromkeys(tag for member in self.members for tag in member.info.tags))
        return () if self.entry is None else self.entry.tags

    @cached_property
    def used_for(self) -> tuple[str, ...]:
        """The purposes of the dataset in papers, sorted words of `datasets_rl.sources.purposes`."""
        if self.members:
            return tuple(sorted({word for member in self.members for word in member.info.used_for}))
        words = [] if self.entry is None else sources.get_source(self.entry.source).purposes(self.entry.name)
        has_images = self.observation is not None and "pixels" in self.observation.kinds
        return tuple(sorted({*words, *[IMAGE] * has_images}))

    @property
    def deprecated(self) -> bool:
        """Whether the authors replaced the dataset."""
        return self.entry is not None and self.entry.deprecated

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the files to download, empty for a dataset that cannot be downloaded."""
        if self.entry is None or self.is_derived:
            return ()
        return tuple(sources.get_source(self.entry.source).addresses(self.entry.name))

    @property
    def origin(self) -> str:
        """The origin of the stored dataset: "derived: RECIPE", "preprocessed in place: RECIPE", "a copy of ID", or ""."""
        if self.damaged:
            return "damaged"
        if self.summary is None:
            return ""
        is_copy = self.folder is not None and not self.folder.as_posix().endswith(f"/{self.summary.id}")
        if not self.summary.recipes:
            return f"a copy of {self.summary.id}" if is_copy else ""
        how = "derived" if split_derived(self.summary.id)[1] else "preprocessed in place"
        if is_copy:
            how = f"made of {self.summary.id}"
        return f"{how}: {self.summary.recipes[-1]}".rstrip(": ")

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON values."""
        return {
            "id": self.id,
            "title": self.title,
            "environment": self.environment,
            "observation": _space_json(self.observation),
            "action": _space_json(self.action),
            "steps": self.steps,
            "episodes": self.episodes,
            "wire_bytes": self.download_bytes,
            "disk_bytes": self.disk_bytes,
            "basis": {name: {"kind": basis.kind, "origin": basis.origin} for name, basis in self.basis.items()},
            "license": self.license,
            "tags": list(self.tags),
            "used_for": list(self.used_for),
            "time_limit": self.time_limit,
            "score": None if self.score is None else asdict(self.score),
            "known_issues": list(self.known_issues),
            "deprecated": self.deprecated,
            "downloaded": self.folder is not None,
            "folder": None if self.folder is None else str(self.folder),
            "selection": {} if self.summary is None else dict(self.summary.selection),
            "preprocessed": self.origin,
        }

    def _stated(self, name: str, default: Any) -> Any:
        """Return a value of the manifest, or else of the catalog. A manifest may be of another upstream version."""
        stated = getattr(self.summary, name, default) if self.summary is not None else default
        return stated or getattr(self.entry, name, default)

    def _space(self, name: str) -> SpaceSummary | None:
        if self.members:
            spaces = {getattr(member.info, name) for member in self.members}
            # Spaces with and without stated bounds have the same kind of values.
            spaces = spaces if len(spaces) == 1 else {space and replace(space, low=None, high=None) for space in spaces}
            return spaces.pop() if len(spaces) == 1 else None
        listed: SpaceSummary | None = getattr(self.entry, name, None)
        if self.summary is None:
            return listed
        stored: SpaceSummary | None = getattr(self.summary, name)
        is_original = listed is not None and stored is not None and not self.summary.recipes
        # Many files do not state the bounds of the environment.
        if (
            is_original
            and listed is not None
            and (listed.kind, listed.shape) == (stored and stored.kind, stored and stored.shape)
        ):
            return listed
        return stored

    def _count(self, name: str) -> int | None:
        if self.members:
            counts = [getattr(member.info, name) for member in self.members]
            return None if None in counts else sum(counts)
        if self.summary is not None:
            return int(getattr(self.summary, name))
        # A recipe may drop steps and episodes.
        return None if self.entry is None or self.is_derived else getattr(self.entry, name)


class DatasetList(list[str]):
    """Ids of datasets, a list of texts, with the descriptions of the datasets.

    >>> list_datasets("hopper-*-v2").infos[0].steps
    """

    def __init__(self, infos: Iterable[DatasetInfo]) -> None:
        self.infos = tuple(infos)
        """The descriptions, in the order of the ids."""
        super().__init__(dataset.id for dataset in self.infos)

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        names = ("id", "steps", "episodes", "observation", "action", "environment", "license", "download")
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(dataset))}</tr>" for dataset in self.infos
        )
        return f"<table><tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>{rows}</table>"


@dataclass(frozen=True)
class Query:
    """Conditions that a dataset must all fulfill."""

    pattern: str = ""
    env: str = ""
    kind: str | None = None
    action: str | None = None
    tags: tuple[str, ...] = ()
    purposes: tuple[str, ...] = ()

    def accepts(self, dataset: DatasetInfo) -> bool:
        """Return whether a dataset matches."""
        return (
            matches(dataset.id, self.pattern)
            and _environment_matches(dataset.environment, self.env)
            and _has_kind(dataset.observation, self.kind)
            and _has_kind(dataset.action, self.action)
            and {tag.lower() for tag in self.tags} <= set(dataset.tags)
            and (not self.purposes or set(self.purposes) <= set(dataset.used_for))
        )


def list_datasets(
    pattern: str = "",
    *,
    source: str = "",
    env: str = "",
    kind: ObservationKind | None = None,
    action: ActionKind | None = None,
    tag: str | Sequence[str] = (),
    used_for: str | Sequence[str] = (),
    downloaded: bool = False,
    settings: Settings | None = None,
) -> DatasetList:
    """Return the ids of datasets, best matches first, without network access.

        >>> list_datasets("hopper-*-v2", source="d4rl")
        >>> list_datasets(env="Pong", kind="pixels").infos[0].steps
        >>> list_datasets(used_for=["goal-conditioned", "image"])

    Args:
        pattern: A part of an id, a glob, or the name of a source. By default all ids match. Ids that begin with the
            pattern come first, then ids that contain a word with this beginning.
        source: The name of a source, by default all sources.
        env: A part of the name of the environment, or a glob.
        kind: Only datasets with such observations.
        action: Only datasets with such actions.
        tag: A word, or several, that a dataset must have, such as "expert" or "locomotion".
        used_for: A purpose of a dataset in papers, or several, such as "safe" or "goal-conditioned".
        downloaded: Whether to list only stored datasets, including derived datasets.
        settings: The settings, by default from the environment.

    Returns:
        A list of ids, with the descriptions in `infos`.

    Raises:
        UnknownIdError: If there is no such source.
        InvalidArgumentError: If there is no such kind or purpose.
    """
    for name, value, choices in (("kind", kind, ("pixels", "state")), ("action", action, ("discrete", "continuous"))):
        if value not in {None, *choices}:
            raise InvalidArgumentError(f"{name} is {value!r}, expected one of {', '.join(choices)}")
    origins, errors = ((sources.get_source(source),), ()) if source else sources.importable_sources()
    for error in errors:
        warnings.warn(f"left out: {error.message}", stacklevel=2)
    names = (source,) if source else sources.source_names()
    home = (settings or Settings.from_env()).home
    tags = (tag,) if isinstance(tag, str) else tuple(tag)
    query = Query(pattern, env, kind, action, tags, known_purposes(used_for))
    return DatasetList(search(query, candidates(origins, names, home, stored_only=downloaded)))


def known_purposes(words: str | Sequence[str]) -> tuple[str, ...]:
    """Return purposes as a tuple.

    Raises:
        InvalidArgumentError: If there is no such purpose. The error names all purposes.
    """
    purposes = (words,) if isinstance(words, str) else tuple(words)
    if unknown := [word for word in purposes if word not in PURPOSES]:
        near = difflib.get_close_matches(unknown[0].lower(), PURPOSES, n=3)
        raise InvalidArgumentError(
            f"{unknown[0]!r} is not a purpose, expected one of {', '.join(PURPOSES)}",
            hint=f"did you mean {', '.join(near)}?" if near else "",
        )
    return purposes


def search(query: Query, datasets: Iterable[DatasetInfo]) -> list[DatasetInfo]:
    """Return the datasets that match, best matches first, and sorted by id among equal matches."""

    def order(dataset: DatasetInfo) -> tuple[int, int, str]:
        return _rank(dataset.id, query.pattern), _rank(dataset.environment, query.env), dataset.id

    return sorted(filter(query.accepts, datasets), key=order)


def candidates(
    origins: Iterable[Source],
    names: Sequence[str],
    home: Path,
    *,
    stored_only: bool = False,
    more: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[DatasetInfo]:
    """Yield the datasets of the catalogs, and the stored datasets that no catalog has.

    Args:
        origins: The sources to list the catalogs of.
        names: The names of the sources to list stored datasets of.
        home: The folder of the stored datasets.
        stored_only: Whether to yield only stored datasets.
        more: Further ids of each source.
    """
    stored = {folder.relative_to(home).as_posix(): folder for folder in store.stored_folders(home)}
    for origin in origins:
        for name in dict.fromkeys((*origin.ids(), *(more or {}).get(origin.name, ()))):
            if stored_only and f"{origin.name}/{name}" not in stored:
                continue
            entry = _catalog_entry(origin, name)
            folder = stored.pop(entry.id, None)
            yield DatasetInfo(entry.id, entry, folder, _summary(folder))
    # Stored datasets that no catalog has: derived datasets, copies from elsewhere, datasets of another version.
    for dataset_id, folder in stored.items():
        if dataset_id.partition("/")[0] in names:
            yield DatasetInfo(dataset_id, _entry(dataset_id), folder, _summary(folder))


@cache
def _catalog_entry(origin: Source, name: str) -> Entry:
    """Return an entry, which is created once for a program that lists several times."""
    return origin.entry(name)


def matches(dataset_id: str, pattern: str) -> bool:
    """Return whether an id matches a pattern.

    The glob ``hopper-*`` matches ``d4rl/hopper-medium-v2``, as ``d4rl/hopper-*`` does. A pattern without wildcards
    matches any part of an id, but the patterns ``d4rl`` and ``d4rl/hop`` match only ids of the source ``d4rl``.
    """
    if pattern.partition("/")[0] in sources.source_names() and not _is_glob(pattern):
        start = pattern if "/" in pattern else f"{pattern}/"
        return dataset_id.lower().startswith(start.lower())
    dataset_id, pattern = dataset_id.lower(), pattern.lower()
    if not _is_glob(pattern):
        return pattern in dataset_id
    return any(fnmatch.fnmatchcase(text, pattern) for text in (dataset_id, dataset_id.partition("/")[2]))


def info(dataset: str | Path, *, root: Path | str | None = None, settings: Settings | None = None) -> DatasetInfo:
    """Return the description of a dataset, stored or not, or of a mixture. No network is used.

        >>> info("d4rl/hopper-medium-v2").license

    Args:
        dataset: An id, a folder, or the file of a mixture.
        root: The folder of the source, by default ``<RLDS_HOME>/<source>``.
        settings: The settings, by default from the environment.

    Raises:
        UnknownIdError: If no catalog has the id, and no dataset with this id is stored.
        ManifestError: If the stored dataset has a manifest that cannot be read.
        InvalidArgumentError: If the file of a mixture cannot be read, or has no members.
    """
    if str(dataset).endswith(".toml"):
        return _mixture_info(expand_home(dataset), settings)
    dataset = store.id_or_path(dataset)
    entry = _entry(dataset) if isinstance(dataset, str) else None
    try:
        folder = locate(dataset, root=root, settings=settings)
    except NotADatasetError:
        if entry is None or split_derived(str(dataset))[1]:
            raise
        remaining = store.versions_of(find_paths(dataset, root=root, settings=settings))
        return DatasetInfo(entry.id, entry, None, versions=tuple(version.folder for version in remaining))
    summary = Summary.read(folder)
    current = store.version_folder(folder)
    others = (version.folder for version in store.versions_of(store.paths_of(folder)))
    versions = tuple(version for version in others if version.name != current.name)
    return DatasetInfo(shown_id(folder, summary.id, settings=settings), entry, folder, summary, versions)


def _mixture_info(path: Path, settings: Settings | None) -> DatasetInfo:
    members = (Member(info(member.dataset, settings=settings), member.weight) for member in read_mixture(path)[0])
    return DatasetInfo(str(path), None, None, members=tuple(members))


def _entry(dataset_id: str) -> Entry | None:
    try:
        return sources.find(dataset_id)
    except UnknownIdError:
        return None


def _summary(folder: Path | None) -> Summary | None:
    try:
        return None if folder is None else Summary.read(folder)
    except DatasetsRLError:
        return None


def _is_glob(pattern: str) -> bool:
    return any(wildcard in pattern for wildcard in "*?[")


def _rank(text: str, pattern: str) -> int:
    """Return the rank of a match: 0 for equal texts, 1 for a match at the beginning, 2 for a word, 3 elsewhere."""
    text, pattern = text.lower(), pattern.lower()
    if not pattern or _is_glob(pattern):
        return 0
    names = (text, text.partition("/")[2])
    if pattern in names:
        return 0
    if any(name.startswith(pattern) for name in names):
        return 1
    return 2 if re.search(rf"[-_/@ ]{re.escape(pattern)}", text) else 3


def _environment_matches(environment: str, pattern: str) -> bool:
    environment, pattern = environment.lower(), pattern.lower()
    return fnmatch.fnmatchcase(environment, pattern) if _is_glob(pattern) else pattern in environment


def _has_kind(space: SpaceSummary | None, kind: str | None) -> bool:
    return kind is None or (space is not None and kind in space.kinds)


def _space_json(space: SpaceSummary | None) -> dict[str, Any] | None:
    if space is None:
        return None
    shape = None if space.shape is None else list(space.shape)
    return {"kind": space.kind, "shape": shape, "n": space.n, "low": space.low, "high": space.high}


def _cells(dataset: DatasetInfo) -> tuple[str, ...]:
    def number(value: int | None, name: str) -> str:
        kind = dataset.basis[name].kind if name in dataset.basis else "exact"
        return "" if value is None else f"{'~' * (kind == 'estimated')}{value:,}"

    return (
        dataset.id,
        number(dataset.steps, "steps"),
        number(dataset.episodes, "episodes"),
        "" if dataset.observation is None else dataset.observation.text,
        "" if dataset.action is None else dataset.action.text,
        dataset.environment,
        dataset.license,
        number(dataset.download_bytes, "bytes"),
    )
