"""The contract of a lock: the datasets of a project, each with what identifies the bytes and with the way to the bytes.

    version = 1
    inputs = ["demo/pendulum@td3_bc", "train.py"]      # what the lock was written from

    [[dataset]]
    id = "demo/pendulum@td3_bc"                        # an id, or "./folder" relative to the lock
    digest = "60fb..."                                 # of the data, see `Manifest.files_digest`
    package = "0.1.0"                                  # the version of this package that wrote the dataset
    steps = 15000
    episodes = 75
    fields = ["action <f4 [1]", ...]
    files = [{ path = "rows.npy", bytes = 600488, digest = "31c9..." }, ...]
      [[dataset.recipe]]                               # applied in order. A converted dataset has none
      name = "td3_bc"
      of = [{ id = "demo/pendulum", digest = "be33..." }]
      steps = ['{"use": "normalize"}']

The text depends on the data alone: it has no times, no absolute paths and no names of machines, and everything is sorted,
a value in a line, so that version control merges two locks.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from datasets_rl import disk, sources, store
from datasets_rl.errors import Call, InvalidArgumentError, OutdatedLockError, Remedy
from datasets_rl.format.manifest import StoredFile, digest_of_files
from datasets_rl.format.schema import short_text
from datasets_rl.read.toml import parse_toml, toml_value
from datasets_rl.settings import Settings, project_file
from datasets_rl.store.find import shown_id

LOCK_FILE = "rlds.lock"
_VERSION = 1
_HEADER = "# The datasets of this project, byte for byte. Written by datasets-rl: do not edit, write the lock again."
_AGAIN = Remedy("{} writes the lock again, also after a conflict of a merge", Call("lockfile.write_lock"))
_NEW = Remedy("name the file of a lock, or write a lock of stored datasets with {}", Call("lockfile.write_lock", ...))
_RELATIVE = ("./", "../")
_MAX_PROBLEMS = 10


@dataclass(frozen=True, slots=True)
class LockedRawFile:
    """An upstream file that a dataset was converted from."""

    path: str
    """Path among the upstream's files."""
    bytes: int
    sha256: str
    url: str = ""
    """Address at the upstream. Empty for a file of a mirror or of this machine."""


@dataclass(frozen=True, slots=True)
class LockedInput:
    """A dataset that a recipe was applied to."""

    id: str
    digest: str
    """The digest of the files."""


@dataclass(frozen=True, slots=True)
class LockedRecipe:
    """A recipe with all arguments, and what the recipe was applied to."""

    name: str
    of: tuple[LockedInput, ...]
    """The dataset, or the members of a merge in order."""
    steps: tuple[Mapping[str, Any], ...]
    """The steps as in a manifest: the name as ``use``, and the arguments."""
    num_frames: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LockedDataset:
    """A dataset that a lock identifies by its content."""

    id: str
    """The id, or the path relative to the lock, which begins with ``./`` or ``../``."""
    digest: str
    """`Manifest.files_digest`: equal for equal files, wherever and whenever the files were made."""
    package: str = ""
    """Version of datasets-rl that wrote the dataset."""
    steps: int = 0
    episodes: int = 0
    is_parent: bool = False
    """Whether no input names the dataset: only recipes of other datasets need it."""
    selection: Mapping[str, Any] = field(default_factory=dict)
    """Selected part of the upstream's dataset. Empty for the whole dataset."""
    revision: str = ""
    """Upstream's version of the whole dataset, such as a commit."""
    recordings: tuple[str, ...] = ()
    """Ids of the recordings and of the appended datasets: such episodes cannot be made again."""
    copies: tuple[str, ...] = ()
    """Addresses on the hub, each with a commit, at which the dataset is published."""
    fields: tuple[str, ...] = ()
    """Name, dtype and shape of each field, sorted. Empty if unknown, as for a parent that is no longer stored."""
    files: tuple[StoredFile, ...] = ()
    """The files with the data, see `Manifest.content_files`."""
    raw: tuple[LockedRawFile, ...] = ()
    recipes: tuple[LockedRecipe, ...] = ()
    """The recipes that lead from other datasets, or from a conversion under the same id, to the dataset."""

    @property
    def is_recorded(self) -> bool:
        """Whether the episodes were recorded or appended, so that no upstream has them."""
        return bool(self.recordings) or not (self.raw or self.recipes or self.is_parent)


@dataclass(frozen=True, slots=True)
class LockedMixture:
    """The file of a mixture: which datasets, with which shares."""

    file: str
    """The path relative to the lock."""
    settings: Mapping[str, Any]
    """The arguments of `mixture` in the file."""
    members: tuple[Mapping[str, Any], ...]
    """The members in order: ``dataset``, and the other fields of `Member` that the file sets."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock of datasets.

    >>> lock = Lock.read("rlds.lock")
    >>> [dataset.id for dataset in lock.datasets]
    ['demo/pendulum', 'demo/pendulum@td3_bc']
    """

    path: Path
    """The absolute path of the file. Paths in the lock are relative to the folder of the file."""
    datasets: tuple[LockedDataset, ...] = ()
    inputs: tuple[str, ...] = ()
    """Ids, folders, mixtures and programs that the lock was written from."""
    mixtures: tuple[LockedMixture, ...] = ()

    @classmethod
    def read(cls, path: Path | str | None = None) -> Lock:
        """Read a lock.

        Args:
            path: The file. By default the file of `default_path`.

        Raises:
            InvalidArgumentError: If the file cannot be read, or is not a lock. The error names all problems.
        """
        path = default_path() if path is None else disk.expand_home(path).absolute()
        try:
            document = parse_toml(path.read_text("utf-8"))
        except FileNotFoundError as error:
            raise InvalidArgumentError(f"there is no lock {path}", hint=_NEW) from error
        except OSError as error:
            raise InvalidArgumentError(f"the lock {path} cannot be read: {error.strerror}", hint=_AGAIN) from error
        except ValueError as error:
            if not is_lock(path):
                raise InvalidArgumentError(f"{path} is not a lock: {error}", hint=_NEW) from error
            has_conflicts = any(line.startswith(_CONFLICT) for line in path.read_text("utf-8", "replace").splitlines())
            problem = "has conflicts of a merge" if has_conflicts else f"is not valid TOML: {error}"
            raise InvalidArgumentError(f"the lock {path} {problem}", hint=_AGAIN) from error
        version = document.get("version")
        if version is None:
            raise InvalidArgumentError(f"{path} is not a lock: it states no version", hint=_NEW)
        if version != _VERSION:
            newer = type(version) is int and version > _VERSION
            hint = "upgrade datasets-rl" if newer else _AGAIN
            raise InvalidArgumentError(f"the lock {path} has version {version!r}, expected {_VERSION}", hint=hint)
        problems: list[str] = []
        datasets = [_parse(LockedDataset, table, name, problems) for name, table in _tables(document, "dataset")]
        mixtures = [_parse(LockedMixture, table, name, problems) for name, table in _tables(document, "mixture")]
        inputs = document.get("inputs", [])
        if not isinstance(inputs, list) or not all(isinstance(one, str) for one in inputs):
            problems.append(f"inputs is {short_text(inputs)}, expected a list of texts")
        known = {"version", "inputs", "dataset", "mixture"}
        problems += [f"the file has the unknown key {key!r}" for key in sorted(document.keys() - known)]
        if not problems:
            problems += _contradictions(datasets)
        if problems:
            more = len(problems) - _MAX_PROBLEMS
            shown = "; ".join([*problems[:_MAX_PROBLEMS], *([f"{more:,} more"] if more > 0 else [])])
            raise InvalidArgumentError(f"the lock {path} is not valid: {shown}", hint=_AGAIN)
        return cls(path, tuple(datasets), tuple(inputs), tuple(mixtures))

    @property
    def text(self) -> str:
        """The content of the file."""
        lines = [_HEADER, f"version = {_VERSION}", *_list_lines("inputs", sorted(self.inputs))]
        for mixture in sorted(self.mixtures, key=lambda one: one.file):
            lines += ["", "[[mixture]]", *_lines(asdict(mixture))]
        for dataset in sorted(self.datasets, key=lambda one: (one.id, one.digest)):
            entries = asdict(dataset)
            recipes = entries.pop("recipes")
            lines += ["", "[[dataset]]", *_lines(entries)]
            for recipe in recipes:
                lines += ["", "[[dataset.recipe]]", *_lines(recipe)]
        return "\n".join(lines) + "\n"

    def write(self) -> bool:
        """Write the file, and return whether the content changed."""
        data = self.text.encode()
        if disk.has_content(self.path, data):
            return False
        disk.check_outside_versions(self.path)
        with disk.disk_errors(self.path):
            disk.rewrite_file(self.path, data)
        return True

    def find(self, dataset: str | Path, *, settings: Settings | None = None) -> LockedDataset:
        """Return a dataset of the lock.

        Args:
            dataset: An id, an address, or the path of a dataset's folder or of raw files.
            settings: The settings. By default the settings of the environment.

        Raises:
            OutdatedLockError: If the lock does not have the dataset.
            UnknownIdError: If there is no such id.
        """
        name = name_in_lock(store.id_or_path(dataset), self.path.parent, settings or Settings.from_env())
        found = sorted((one for one in self.datasets if one.id == name), key=lambda one: one.is_parent)
        if not found:
            raise OutdatedLockError(self.path, [f"the lock has no dataset {name}"])
        return found[0]

    def with_digest(self, wanted: LockedInput) -> LockedDataset | None:
        """Return the dataset of the lock that a recipe was applied to, or None if the lock does not have the dataset.

        The lock names a folder by the path, and the recipe by the id in the manifest.
        """
        equal = [one for one in self.datasets if one.digest == wanted.digest]
        return next(iter(sorted(equal, key=lambda one: one.id != wanted.id)), None)

    def place(self, dataset: LockedDataset) -> str | Path:
        """Return the id, or the absolute path of the folder, of a dataset of the lock."""
        return place_of(dataset.id, self.path.parent)


def default_path(settings: Settings | None = None) -> Path:
    """Return the path of the project's lock: the setting ``lock``, or else ``rlds.lock`` in the root of the project."""
    settings = settings or Settings.from_env()
    return settings.lock or project_file().with_name(LOCK_FILE)


_CONFLICT = "<<<<<<<"
"""Beginning of the line with which version control marks a conflict."""


def is_lock(path: Path) -> bool:
    """Return whether a file is a lock, maybe with conflicts of a merge, or of another version of this package."""
    return path.read_bytes().decode("utf-8", "replace").startswith((_HEADER, _CONFLICT))


_STATED_VERSION = re.compile(r"^version = (\d{1,9})$", re.MULTILINE)


def is_newer(path: Path) -> bool:
    """Return whether a lock is of a later version of this package, which would lose what only that version knows."""
    found = _STATED_VERSION.search(path.read_text("utf-8", "replace"))
    return found is not None and int(found[1]) > _VERSION


def name_in_lock(dataset: str | Path, base: Path, settings: Settings) -> str:
    """Return the name of a dataset in a lock: the whole id, or the path relative to the folder of the lock.

    Args:
        dataset: An id, an address, or the path of a folder.
        base: The folder of the lock.
        settings: The settings, with the home.
    """
    if isinstance(dataset, Path):
        path = disk.expand_home(dataset).absolute()
        # A folder of the home has an id, by which other homes find the dataset.
        if not (dataset := shown_id(path, "", settings=settings)):
            return relative_path(path, base)
    dataset, _ = sources.split_address(dataset, sources.Selection())
    entry = sources.find(dataset)
    suffix = dataset.removeprefix(sources.split_derived(dataset)[0])
    raw = sources.path_of_id(entry.id)
    return f"{entry.id if raw is None else relative_path(raw, base)}{suffix}"


def relative_path(path: Path, base: Path) -> str:
    """Return a path relative to the folder of a lock, with ``./`` or ``../`` at the beginning, as every system has it.

    Raises:
        InvalidArgumentError: If there is no such path, because Windows has the two on different drives.
    """
    try:
        relative = Path(os.path.relpath(disk.real_path(path), base.resolve())).as_posix()
    except ValueError as error:
        raise InvalidArgumentError(
            f"{path} is on another drive than the lock in {base}, and a lock has relative paths alone",
            hint="write the lock on the same drive, or name the dataset by an id",
        ) from error
    return relative if relative.startswith("../") or relative == ".." else f"./{relative}"


def place_of(name: str, base: Path) -> str | Path:
    """Return the id, or the absolute path, of a name in a lock."""
    if not name.startswith(_RELATIVE):
        return name
    path = Path(os.path.normpath(base.resolve() / name))
    head, mark, derived = path.name.partition(sources.DERIVED)
    if mark and not os.path.lexists(path) and isinstance(raw := store.id_or_path(path.with_name(head)), str):
        return f"{raw}{mark}{derived}"
    return store.id_or_path(path)


_JSON = frozenset({"steps", "members"})
"""Lists of objects that are JSON in the file, because TOML has no null. So are objects that are no table of a list."""


def _lines(entries: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table, without values that are empty."""
    for name, value in entries.items():
        key = {"is_parent": "parent"}.get(name, name)
        if value in (None, "", (), [], {}) or value is False:
            continue
        if isinstance(value, (list, tuple)):
            yield from _list_lines(key, value, as_json=name in _JSON)
        else:
            yield f"{key} = {_json_literal(value) if isinstance(value, Mapping) else toml_value(value)}"


def _list_lines(name: str, values: Iterable[Any], *, as_json: bool = False) -> Iterator[str]:
    yield f"{name} = ["
    for value in values:
        shown = {key: one for key, one in value.items() if one != ""} if isinstance(value, Mapping) else value
        yield f"  {_json_literal(value) if as_json else toml_value(shown)},"
    yield "]"


def _json_literal(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    plain = "'" not in text and "\x7f" not in text
    return f"'{text}'" if plain else toml_value(text)


def _tables(document: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    tables = document.get(name, [])
    for number, table in enumerate(tables if isinstance(tables, list) else [tables]):
        stated = table.get("id") if isinstance(table, Mapping) else None
        yield (stated if isinstance(stated, str) else f"{name} {number}"), table


def _contradictions(datasets: Sequence[LockedDataset]) -> Iterator[str]:
    """Yield what cannot be true of datasets together, because the file was edited or merged by hand."""
    for name, number in Counter(one.id for one in datasets if not one.is_parent).items():
        if number > 1:
            yield f"there are {number:,} datasets {name}, expected 1"
    for dataset in datasets:
        if dataset.files and dataset.digest != (digest := digest_of_files(dataset.files)):
            yield f"digest of {dataset.id} is {dataset.digest[:12]}..., expected {digest[:12]}..., the digest of its files"


_KINDS: Mapping[type, Mapping[str, tuple[str, type | tuple[type, ...]]]] = {
    LockedDataset: {
        "id": ("a text", str),
        "digest": ("a text", str),
        "package": ("a text", str),
        "steps": ("an integer", int),
        "episodes": ("an integer", int),
        "parent": ("true or false", bool),
        "selection": ("a JSON object", str),
        "revision": ("a text", str),
        "recordings": ("a list of texts", str),
        "copies": ("a list of texts", str),
        "fields": ("a list of texts", str),
        "files": ("a list of tables", dict),
        "raw": ("a list of tables", dict),
        "recipe": ("a list of tables", dict),
    },
    LockedRecipe: {
        "name": ("a text", str),
        "of": ("a list of tables", dict),
        "steps": ("a list of JSON objects", str),
        "num_frames": ("an integer", int),
        "seed": ("an integer", int),
    },
    LockedMixture: {
        "file": ("a text", str),
        "settings": ("a JSON object", str),
        "members": ("a list of JSON objects", str),
    },
    StoredFile: {"path": ("a text", str), "bytes": ("an integer", int), "digest": ("a text", str)},
    LockedRawFile: {
        "path": ("a text", str),
        "bytes": ("an integer", int),
        "sha256": ("a text", str),
        "url": ("a text", str),
    },
    LockedInput: {"id": ("a text", str), "digest": ("a text", str)},
}
_INSIDE: Mapping[str, type] = {"files": StoredFile, "raw": LockedRawFile, "of": LockedInput, "recipe": LockedRecipe}
_REQUIRED = {
    LockedDataset: ("id", "digest"),
    LockedMixture: ("file",),
    LockedRecipe: ("of",),
    StoredFile: ("path", "bytes", "digest"),
    LockedRawFile: ("path", "bytes", "sha256"),
    LockedInput: ("id", "digest"),
}
_EMPTY: Mapping[type, Mapping[str, Any]] = {
    LockedMixture: {"settings": {}, "members": ()},
    LockedRecipe: {"name": "", "steps": ()},
}
_ATTRIBUTES = {"parent": "is_parent", "recipe": "recipes"}


def _parse(cls: Any, table: Any, where: str, problems: list[str]) -> Any:
    """Return the object of a table, and append the problems of an invalid table to a list."""
    kinds = _KINDS[cls]
    if not isinstance(table, Mapping):
        problems.append(f"{where} is {short_text(table)}, expected a table")
        return None
    before = len(problems)
    problems += [f"{where} has the unknown key {key!r}" for key in sorted(table.keys() - kinds.keys())]
    problems += [f"{where} has no {key}" for key in _REQUIRED[cls] if key not in table]
    values: dict[str, Any] = {}
    for key in [name for name in kinds if name in table]:
        text, kind = kinds[key]
        is_list = text.startswith("a list")
        items = table[key] if is_list else [table[key]]
        if not isinstance(items, list) or not all(_is_of(item, kind) for item in items):
            problems.append(f"{key} of {where} is {short_text(table[key])}, expected {text}")
            continue
        parsed = [_parse_item(key, item, where, problems, as_json="JSON" in text) for item in items]
        values[_ATTRIBUTES.get(key, key)] = tuple(parsed) if is_list else parsed[0]
    return None if len(problems) > before else cls(**{**_EMPTY.get(cls, {}), **values})


def _is_of(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _parse_item(key: str, item: Any, where: str, problems: list[str], *, as_json: bool) -> Any:
    if key in _INSIDE:
        return _parse(_INSIDE[key], item, f"{key} of {where}", problems)
    if as_json:
        try:
            value = json.loads(item)
        except (ValueError, RecursionError) as error:
            problems.append(f"{key} of {where} is not JSON: {error}")
            return {}
        if not isinstance(value, dict):
            problems.append(f"{key} of {where} is {short_text(value)}, expected a JSON object")
        return value
    return item
