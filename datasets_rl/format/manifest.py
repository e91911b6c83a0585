"""Manifest of a stored dataset: content, origin, and their JSON. Imports no torch, so that reading is fast."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from datasets_rl import disk
from datasets_rl.disk import FORMAT_NAME, MANIFEST_FILE
from datasets_rl.errors import InvalidArgumentError, ManifestError
from datasets_rl.fingerprints.fingerprint import FINGERPRINTS_FILE, SKETCHES_FILE
from datasets_rl.format.schema import DATA_SUFFIXES, Column, Field, Schema, holds_images, short_text
from datasets_rl.format.summary import read_document
from datasets_rl.notebook import facts_html
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, dotted_name

_RATES = ("fps", "control_frequency", "control_freq")
"""Names of the metadata that state the number of steps per second."""
FORMAT_VERSION = 2
DIGESTS_FILE = "digests.npy"
_COMPUTED = frozenset({DIGESTS_FILE, FINGERPRINTS_FILE, SKETCHES_FILE})
"""Files that are computed from the other files."""
_Stated = TypeVar("_Stated")


@cache
def converter_version() -> str:
    """Return the version of this package, which every manifest records."""
    try:
        return version("datasets-rl")
    except PackageNotFoundError:  # imported from a source tree that is not installed
        return "0"


def digest_of(document: Mapping[str, Any]) -> str:
    """Return the digest of a manifest document: the SHA-256, in hexadecimal, of its canonical JSON.

    Canonical JSON is UTF-8 with sorted keys, without white space, and without escapes that JSON does not require. The
    key ``digest`` is excluded.
    """
    content = {name: value for name, value in document.items() if name != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # JSON may escape half of a surrogate pair, which strict UTF-8 cannot encode.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest_of_files(files: Iterable[StoredFile]) -> str:
    """Return the digest of the paths and the digests of files, which are sorted by path."""
    return hashlib.sha256(json.dumps([[file.path, file.digest] for file in files]).encode()).hexdigest()


def array_file(value: Any) -> str | None:
    """Return the path of the file of a metadata value that is an array, and None for any other value."""
    is_reference = isinstance(value, Mapping) and value.keys() == {"file"} and isinstance(value["file"], str)
    return value["file"] if is_reference else None


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Entry of a file of the dataset."""

    path: str
    """POSIX path relative to the dataset's folder."""
    bytes: int
    digest: str
    """SHA-256 of the digests of the file's ranges, in lower-case hexadecimal."""


@dataclass(frozen=True, slots=True)
class RawFile:
    """Entry of an upstream file that the dataset was converted from."""

    path: str
    """Path among the upstream's files."""
    bytes: int
    sha256: str
    url: str
    """Address that the file was downloaded from."""
    checked: str
    """'catalog' if the digest was compared with a known digest, 'recorded' if no digest was known, 'skipped' if the
    user disabled the comparison."""
    etag: str | None = None
    """ETag of the upstream's HTTP response."""


@dataclass(frozen=True, slots=True)
class AppliedDecision:
    """Decision of the converter on alignment or correction."""

    rule: str
    text: str
    count: int = 1
    """Number of affected rows or episodes."""

    @property
    def sentence(self) -> str:
        """The decision and how often it was taken, without a full stop, as in "the states were kept (75 times)"."""
        return f"{self.text.removesuffix('.')} ({'once' if self.count == 1 else f'{self.count:,} times'})"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of a stored dataset, sufficient to read the dataset without this package and to check every byte.

    FORMAT.md specifies the keys of the JSON.

        >>> from datasets_rl import load
        >>> manifest = load("demo/pendulum").manifest
        >>> manifest.steps, manifest.episodes
        (15000, 75)
    """

    id: str
    """Id with the source, ``d4rl/hopper-medium-v2``."""
    steps: int
    """Number of transitions, N."""
    episodes: int
    """Number of episodes, E."""
    final_unknown: int
    """Number of episodes with an unknown observation after the last action, which reads as zeros."""
    schema: Schema
    files: tuple[StoredFile, ...]
    raw: tuple[RawFile, ...] = ()
    converter: str = ""
    """Version of datasets-rl that wrote the dataset."""
    decisions: tuple[AppliedDecision, ...] = ()
    known_issues: tuple[str, ...] = ()
    """Known issues of the upstream's data, a sentence each."""
    statistics: Mapping[str, Any] = field(default_factory=dict)
    """Minimum, maximum, mean and standard deviation, by dotted key over all steps, and of the returns and lengths of
    the episodes."""
    spikes: tuple[str, ...] = ()
    """Values that are probably errors of a recording, as `datasets_rl.format.spikes` finds them: a sentence for the first
    value of each element."""
    specs: Mapping[str, Any] = field(default_factory=dict)
    """Tensor specs as JSON, by dotted key."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the whole dataset: scalars and text, or ``{"file": ...}`` for an array in a separate file."""
    license: str = ""
    citation: str = ""
    homepage: str = ""
    time_limit: int | None = None
    """Number of steps after which the environment truncates an episode. None without such a limit."""
    selection: Mapping[str, Any] = field(default_factory=dict)
    """Selected part of the upstream's dataset. Empty for the whole dataset."""
    revision: str = ""
    """Upstream's version of the whole dataset, such as a commit."""
    score: Mapping[str, Any] = field(default_factory=dict)
    """Returns with the normalized scores 0 ("low") and 1 ("high"), and their publisher ("origin"). Empty if unknown."""
    history: tuple[Mapping[str, Any], ...] = ()
    """Recipes that were applied since the conversion from raw files, in order, each with its input dataset."""
    copied_from: Mapping[str, Any] = field(default_factory=dict)
    """The published dataset that this dataset is a copy of: its "address" with a pinned revision, and the "id",
    "digest" and "selection" of its manifest. Empty for a dataset that was made here."""
    recordings: tuple[str, ...] = ()
    """Ids of the recordings and of the appended datasets, each with its number of episodes in this dataset, "id:n", in
    order. No recording or dataset is added twice."""
    request: str = ""
    """The request that led to this version, as canonical JSON. A repeated request on the same parent finds the version.
    Empty for a copy."""
    parent: str = ""
    """Digest of the manifest of the version that this version was derived from, or replaced. Empty for the first
    version."""

    @property
    def content_files(self) -> tuple[StoredFile, ...]:
        """The files with the data, sorted by path: without fingerprints and digests, which are computed from the data."""
        return tuple(sorted((file for file in self.files if file.path not in _COMPUTED), key=lambda file: file.path))

    @property
    def files_digest(self) -> str:
        """Digest of the paths and the digests of the files with the data: equal for equal data under any id.

        Another way to compute fingerprints does not change the digest.
        """
        return digest_of_files(self.content_files)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON that `write` writes. The digest identifies the dataset with all files."""
        return digest_of(self._content())

    def to_json(self) -> dict[str, Any]:
        """Return the content of manifest.json, with its digest, as JSON values."""
        content = self._content()
        return {**content, "digest": digest_of(content)}

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = {"format": FORMAT_NAME, "format_version": FORMAT_VERSION}
        for name in (one.name for one in fields(self)):
            value = getattr(self, name)
            if name == "schema":
                content |= {"record_bytes": value.record_bytes, "schema": value.to_json()}
            elif name in _ENTRY_FIELDS:
                content[name] = [asdict(entry) for entry in value]
            elif isinstance(value, tuple):
                content[name] = [dict(entry) if isinstance(entry, Mapping) else entry for entry in value]
            else:
                content[name] = dict(value) if isinstance(value, Mapping) else value
        return {name: value for name, value in content.items() if value or name not in _OMITTED_IF_EMPTY}

    @classmethod
    def from_json(cls, document: Any, *, where: str = MANIFEST_FILE) -> Manifest:
        """Return the manifest in a document, which is not trusted.

        Raises:
            ManifestError: If the document is not a manifest of this version, has paths outside its folder, or
                contradicts itself. The error names all problems.
        """
        if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
            raise ManifestError(where, [f"the document is not a manifest of the format {FORMAT_NAME}"])
        version = document.get("format_version")
        if type(version) is not int or version != FORMAT_VERSION:
            raise ManifestError(
                where,
                [f"format_version is {version!r}, expected {FORMAT_VERSION}"],
                hint="upgrade datasets-rl" if isinstance(version, int) and version > FORMAT_VERSION else "",
            )
        problems = ["id is missing, expected text"] * ("id" not in document) + list(_document_problems(document))
        schema: Schema | None = None
        try:
            schema = Schema.from_json(document.get("schema"))
            problems += missing_field_problems(schema)
            if document.get("record_bytes") != schema.record_bytes:
                stated = short_text(document.get("record_bytes"))
                problems.append(
                    f"record_bytes is {stated}, but the records of the schema have {schema.record_bytes} bytes"
                )
        except InvalidArgumentError as error:
            problems.append(error.message)
        if problems or schema is None:
            raise ManifestError(where, problems)
        return cls(
            schema=schema,
            files=tuple(StoredFile(**entry) for entry in document["files"]),
            raw=tuple(RawFile(**entry) for entry in document["raw"]),
            decisions=tuple(AppliedDecision(**entry) for entry in document["decisions"]),
            known_issues=tuple(document.get("known_issues", [])),
            spikes=tuple(document.get("spikes", [])),
            history=tuple(document.get("history", [])),
            recordings=tuple(document.get("recordings", [])),
            **{one.name: document[one.name] for one in fields(cls) if one.name in document and one.name not in _BUILT},
        )

    def write(self, folder: Path) -> None:
        """Write manifest.json into a folder.

        The manifest must be the last file: a folder with a manifest is a dataset.
        """
        disk.write_json(folder / MANIFEST_FILE, self.to_json())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Return the manifest of a stored dataset, without comparing its digest, which `datasets_rl.verify` does.

        Raises:
            NotADatasetError: If the folder has no manifest.
            ManifestError: If the manifest is not valid.
        """
        return cls.from_json(read_document(folder), where=str(folder / MANIFEST_FILE))

    @property
    def environment(self) -> str:
        """Id or name of the environment, if the upstream states the environment. Otherwise empty."""
        if isinstance(name := self.metadata.get("environment"), str):
            return name
        try:
            spec = json.loads(self.metadata.get("env_spec", ""))
        except (TypeError, ValueError, RecursionError):
            return ""
        return str(spec.get("id") or "") if isinstance(spec, Mapping) else ""

    def element_names(self, field: Column) -> tuple[str, ...]:
        """Return the name of each element of a field in row-major order.

        Empty if the metadata does not state the names.

        The names in a merge are the names that all merged datasets state.
        """
        return self._alike(lambda prefix: _element_names(self.metadata.get(f"{prefix}names"), field)) or ()

    @property
    def fps(self) -> float | None:
        """Number of steps per second, if the metadata states the number.

        Of a merge, the number that all merged datasets state.
        """
        return self._alike(self._rate)

    def stated(self, name: str) -> Any:
        """Return an entry of the metadata, in a merge the value that all merged datasets state, or None."""
        return self._alike(lambda prefix: self.metadata.get(f"{prefix}{name}"))

    def _alike(self, read: Callable[[str], _Stated | None]) -> _Stated | None:
        """Return what the metadata states, in a merge what the metadata of all merged datasets states equally, or None.

        Args:
            read: A function that returns what the entries with a prefix state: "" for the dataset itself, "0/" for the
                first dataset of a merge.
        """
        if (found := read("")) is not None:
            return found
        members = {name.partition("/")[0] for name in self.metadata if name.partition("/")[0].isdecimal()}
        members |= {str(number) for run in self.history[:1] for number in range(len(run.get("merged", ())))}
        first, *others = [read(f"{member}/") for member in sorted(members)] or [None]
        return first if all(other == first for other in others) else None

    def _rate(self, prefix: str) -> float | None:
        """Return the number of steps per second that the metadata with a prefix states."""
        stated = [self.metadata.get(f"{prefix}{name}") for name in _RATES]
        with suppress(KeyError, TypeError, ValueError, RecursionError):  # unless it is robomimic's
            stated.append(json.loads(self.metadata[f"{prefix}env_args"])["env_kwargs"]["control_freq"])
        numbers = (rate for rate in stated if isinstance(rate, (int, float)) and not isinstance(rate, bool))
        return next((float(rate) for rate in numbers if 0 < rate < math.inf), None)

    def _repr_html_(self) -> str:
        """Return the description and the fields, for notebooks."""
        return facts_html(
            f"Manifest of {self.id}",
            (
                ("environment", self.environment),
                ("steps", f"{self.steps:,}"),
                ("episodes", f"{self.episodes:,}"),
                ("steps per second", f"{self.fps:g}" if self.fps else ""),
                ("final observation unknown", f"{self.final_unknown:,} episodes" if self.final_unknown else ""),
                ("bytes", f"{self.bytes:,}"),
                ("license", self.license),
                ("citation", self.citation),
                ("known issues", "; ".join(self.known_issues)),
                ("spikes", "; ".join(self.spikes)),
                ("converter", f"datasets-rl {self.converter}" if self.converter else ""),
                *((field.name, f"{field.read_dtype.name} {list(field.shape)}") for field in self.schema),
            ),
        )

    def fitted(self, run: int) -> dict[str, Any]:
        """What the steps of a recipe of the history were fitted to, by the place and the name of the step: ``0.normalize/...``."""
        prefix = f"preprocess/{run}/"
        return {name.removeprefix(prefix): value for name, value in self.metadata.items() if name.startswith(prefix)}

    @property
    def orders(self) -> dict[str, str]:
        """Parts of each concatenated vector, by its name, such as ``observation.joint_1 1, observation.joint_2 1``."""
        names = {field.name for field in self.schema}
        found: dict[str, str] = {}
        for number, run in enumerate(self.history):
            found |= concatenated(run.get("recipe", {}).get("steps", ()), self.fitted(number))
        return {name: order for name, order in found.items() if name in names}

    def file(self, path: str) -> StoredFile | None:
        """Return the entry of a file of the dataset by its path, or None if the manifest lists no such file."""
        return next((entry for entry in self.files if entry.path == path), None)

    @property
    def not_finite(self) -> dict[str, int]:
        """Number of values that are NaN or infinite, by the name of the field, without fields of finite values."""
        counts = {
            field.name: _sum(numbers.get("not_finite"))
            for field in self.schema
            if isinstance(numbers := self.statistics.get(field.name), Mapping)
        }
        return {name: count for name, count in counts.items() if count}

    @property
    def images(self) -> dict[str, str]:
        """How each field of images is stored, in words, by the name of the field."""
        return {field.name: self._image_text(field) for field in self.schema if holds_images(field)}

    def _image_text(self, field: Field) -> str:
        form = field.image_form
        fields = [one for one in self.schema if one.form == field.form] if form.in_shared_files else [field]
        stored = sum(entry.bytes for entry in self.files if form.is_file_of_images(entry.path))
        pixels = sum(one.step_bytes * (self.steps + self.episodes * one.shared) for one in fields)
        if form.is_array or not stored:
            return "raw"
        is_smaller = pixels > 1.05 * stored
        return f"{form.summary}, {f'{pixels / stored:,.1f} times' if is_smaller else 'not'} smaller than the pixels"

    @property
    def unverified(self) -> str:
        """Sentence on the raw files that were not compared with an upstream digest. Empty if all were compared."""
        unverified = [entry for entry in self.raw if entry.checked != "catalog"]
        if not unverified:
            return ""
        skipped = any(entry.checked == "skipped" for entry in unverified)
        reason = "the comparison was skipped" if skipped else "no digest was known"
        count = f"{len(unverified):,} of {len(self.raw):,} raw files, such as {unverified[0].path}"
        return f"no upstream digest vouches for {count}: {reason}"

    @property
    def bytes(self) -> int:
        """Total bytes of the dataset's files, without the manifest."""
        return sum(entry.bytes for entry in self.files)


def concatenated(steps: Sequence[Mapping[str, Any]], fitted: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that steps of a recipe concatenate, in order and each with a size, by the name of the result.

    Args:
        steps: The steps as JSON.
        fitted: What the steps were fitted to, by the place and the name of the step: ``0.concatenate/order``.
    """
    names = {f"{place}.{step.get('use')}/order": step.get("key", "observation") for place, step in enumerate(steps)}
    return {key: str(fitted[name]) for name, key in names.items() if name in fitted}


def _element_names(names: Any, field: Column) -> tuple[str, ...] | None:
    """Return the names of the elements of a field, or None if not each element has a name."""
    stated = names.get(dotted_name(field.key)) if isinstance(names, Mapping) else None
    if not isinstance(stated, list) or len(stated) != math.prod(field.shape) or field.text:
        return None
    return tuple(map(str, stated))


def _sum(value: Any) -> int:
    """Return the sum of the integers in nested lists."""
    return sum(map(_sum, value)) if isinstance(value, list) else value if type(value) is int else 0


def checked_manifest(document: Any, *, where: str) -> Manifest:
    """Return the manifest in a document that was published by others, after comparing the document with its digest.

    Raises:
        ManifestError: If it is not a valid manifest, states no digest or another digest, or lists a file twice or a
            file that is not a file of a dataset.
    """
    manifest = Manifest.from_json(document, where=where)
    paths = [entry.path for entry in manifest.files]
    problems = [f"{path} is listed {paths.count(path)} times" for path in sorted(set(paths)) if paths.count(path) > 1]
    problems += [f"{path} cannot be a file of a dataset" for path in paths if not _is_data_path(path)]
    if document.get("digest") != (digest := digest_of(document)):
        stated = short_text(document.get("digest"))
        problems.append(
            f"the digest is {digest}, expected {stated}: a value of the manifest changed after it was written"
        )
    if problems:
        raise ManifestError(where, problems)
    return manifest


def _is_data_path(path: str) -> bool:
    """Return whether a path is that of an array, of texts or of a dictionary, not of the manifest or a hidden file."""
    hidden = any(part.startswith(".") for part in PurePosixPath(path).parts)
    return path.endswith(DATA_SUFFIXES) and not hidden


_OMITTED_IF_EMPTY = frozenset(
    {"spikes", "selection", "revision", "score", "history", "copied_from", "recordings", "request", "parent"}
)
_BUILT = frozenset({"schema", "files", "raw", "decisions", "known_issues", "spikes", "history", "recordings"})
"""Fields with values that differ from the values of the document."""
_COUNTS = {"steps": 1, "episodes": 1, "final_unknown": 0, "time_limit": 1}
_TYPES: Sequence[tuple[tuple[str, ...], type, str]] = (
    (("id", "converter", "license", "citation", "homepage", "revision", "request", "parent"), str, "text"),
    (("statistics", "specs", "metadata", "selection", "score", "copied_from"), dict, "an object"),
)
_LISTS: Sequence[tuple[str, type, str]] = (
    ("known_issues", str, "a list of sentences"),
    ("spikes", str, "a list of sentences"),
    ("history", dict, "a list of objects"),
    ("recordings", str, "a list of ids"),
)
_REQUIRED_FIELDS = (
    (NEXT_REWARD, ("float32", "float64"), (1,)),
    (NEXT_TERMINATED, ("bool",), (1,)),
    (NEXT_TRUNCATED, ("bool",), (1,)),
    (NEXT_DONE, ("bool",), (1,)),
    (EPISODE, ("int8", "int16", "int32", "int64"), ()),
)
_ENTRY_FIELDS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "files": {"path": str, "bytes": int, "digest": str},
    "raw": {"path": str, "bytes": int, "sha256": str, "url": str, "checked": str, "etag": (str, type(None))},
    "decisions": {"rule": str, "text": str, "count": int},
}


_TYPE_NAMES = {str: "text", int: "an integer >= 0", (str, type(None)): "text or null"}


def _is_count(minimum: int, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _document_problems(document: Mapping[str, Any]) -> Iterator[str]:
    for name, minimum in _COUNTS.items():
        value = document.get(name)
        if not _is_count(minimum, value) and (name, value) != ("time_limit", None):
            yield f"{name} is {short_text(value)}, expected an integer >= {minimum}"
    for names, kind, expected in _TYPES:
        for name in names:
            if not isinstance(document.get(name, kind()), kind):
                yield f"{name} is {short_text(document[name])}, expected {expected}"
    yield from _score_problems(document.get("score"))
    yield from _origin_problems(document)
    for name, kind, expected in _LISTS:
        items = document.get(name, [])
        if not isinstance(items, list) or not all(isinstance(item, kind) for item in items):
            yield f"{name} is {short_text(items)}, expected {expected}"
    for name, kinds in _ENTRY_FIELDS.items():
        entries = document.get(name)
        if not isinstance(entries, list):
            yield f"{name} is {short_text(entries)}, expected a list"
        else:
            yield from (
                problem
                for number, entry in enumerate(entries)
                for problem in _entry_problems(f"{name}[{number}]", entry, kinds)
            )


def _score_problems(score: Any) -> Iterator[str]:
    if not isinstance(score, dict) or not score:
        return
    numbers: list[Any] = [score.get(name) for name in ("low", "high")]
    are_numbers = all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in numbers)
    if not are_numbers or numbers != sorted(set(numbers)) or not isinstance(score.get("origin"), str) or len(score) > 3:
        yield f"score is {short_text(score)}, expected the numbers low and high, low below high, and the text origin"


def _origin_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each part of the selection, the original of a copy, and the history that has another form."""
    copied, history = document.get("copied_from", {}), document.get("history", [])
    selections = {"selection": document.get("selection", {})}
    if isinstance(copied, dict):
        selections["copied_from.selection"] = copied.get("selection", {})
        if not isinstance(address := copied.get("address", ""), str):
            yield f"copied_from.address is {short_text(address)}, expected text"
    for name, selection in selections.items():
        if not isinstance(selection, dict) or not isinstance(selection.get("options", {}), dict):
            yield f"{name} is {short_text(selection)}, expected an object, with options that are an object"
    for number, run in enumerate(history if isinstance(history, list) else ()):
        if isinstance(run, dict):
            yield from _run_problems(f"history[{number}]", run)


def _run_problems(where: str, run: Mapping[str, Any]) -> Iterator[str]:
    recipe, merged = run.get("recipe", {}), run.get("merged", [])
    if not isinstance(recipe, dict) or not _are_objects(recipe.get("steps", [])):
        yield f"{where}.recipe is {short_text(recipe)}, expected an object with steps, a list of objects"
    if not _are_objects(merged):
        yield f"{where}.merged is {short_text(merged)}, expected a list of objects"
        merged = []
    inputs = [("of", run["of"])] if "of" in run else []
    for name, one in [*inputs, *((f"merged[{number}]", one) for number, one in enumerate(merged))]:
        if not isinstance(one, dict) or not all(isinstance(one.get(key), str) for key in ("id", "files")):
            yield f"{where}.{name} is {short_text(one)}, expected an object with the texts id and files"


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def missing_field_problems(schema: Schema) -> Iterator[str]:
    """Yield a problem for each required TED field that is missing from a schema or has another dtype or shape."""
    for key, dtypes, shape in _REQUIRED_FIELDS:
        if key not in schema:
            yield f"{dotted_name(key)} is not in the schema"
        elif (field := schema[key]).dtype.name not in dtypes or field.shape != shape or field.shared or field.wide:
            actual, expected = (
                f"{dtype} {list(size)}"
                for dtype, size in ((field.dtype.name, field.shape), (" or ".join(dtypes), shape))
            )
            yield f"{dotted_name(key)} is {actual}, expected {expected}, a narrow field that is not shared"


def _entry_problems(where: str, entry: Any, kinds: Mapping[str, type | tuple[type, ...]]) -> Iterator[str]:
    if not isinstance(entry, dict) or set(entry) != set(kinds):
        shown = sorted(entry) if isinstance(entry, dict) else entry
        yield f"{where} has the fields {short_text(shown)}, expected {sorted(kinds)}"
        return
    for name, kind in kinds.items():
        value = entry[name]
        if not isinstance(value, kind) or (kind is int and not _is_count(0, value)):
            yield f"{where}.{name} is {short_text(value)}, expected {_TYPE_NAMES[kind]}"
    path = entry.get("path")
    if isinstance(path, str) and not _stays_inside(path):
        yield f"{where}.path is {short_text(path)}, expected a relative path that stays in the dataset's folder"


def _stays_inside(path: str) -> bool:
    pure = PurePosixPath(path)
    portable = path.isprintable() and not set(path) & set("\\:")
    return bool(pure.parts) and portable and not pure.is_absolute() and ".." not in pure.parts
