"""What a stored dataset is and where it came from: `Manifest` and its JSON. No torch, so that `info` is instant."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

from datasets_rl import disk
from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.errors import InvalidArgumentError, ManifestError, NotADatasetError
from datasets_rl.format.schema import Schema, shorten, upgraded_schema
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, dotted

__all__ = [
    "FORMAT_VERSION",
    "KNOWN_KEYS",
    "MANIFEST_FILE",
    "AppliedDecision",
    "Manifest",
    "RawFile",
    "StoredFile",
    "converter_version",
    "digest_of",
    "lacking_fields",
    "read_document",
]

FORMAT_NAME = "datasets-rl/ted"
FORMAT_VERSION = 2
_FORMER_KEYS = {"faults": "known_issues", "licence": "license"}
"""The keys of version 1 that have another name in version 2."""
_MAX_BYTES = 256 << 20


def converter_version() -> str:
    """Return the version of this package, which every manifest names."""
    try:
        return version("datasets-rl")
    except PackageNotFoundError:  # imported from a source tree that is not installed
        return "0"


def digest_of(document: Mapping[str, Any]) -> str:
    """Return the digest of a manifest's document: the sha256, in hexadecimal, of its canonical JSON.

    The canonical JSON has sorted keys, no white space and no escapes that JSON does not require, as UTF-8; the key
    ``digest`` is left out.
    """
    content = {name: value for name, value in document.items() if name != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # JSON may escape half of a surrogate pair, which UTF-8 does not encode.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the dataset."""

    path: str
    """Relative POSIX path within the dataset's folder."""
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class RawFile:
    """An upstream file that the dataset was made of."""

    path: str
    """Its name among the upstream's files."""
    bytes: int
    sha256: str
    url: str
    """The address that gave it."""
    checked: str
    """'catalog': the digest was compared with a known one; 'recorded': none was known; 'skipped': the user said so."""
    etag: str | None = None
    """The upstream's own version mark."""


@dataclass(frozen=True, slots=True)
class AppliedDecision:
    """A choice on alignment or repair that the converter took."""

    rule: str
    text: str
    count: int = 1
    """How many rows or episodes it touched."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a stored dataset is: enough to read it without any code of ours, and to check every byte of it."""

    id: str
    """With the source, ``d4rl/hopper-medium-v2``."""
    steps: int
    """N, the number of transitions."""
    episodes: int
    """E, the number of episodes."""
    final_unknown: int
    """Episodes whose observation after the last action is not known and reads as zeros."""
    schema: Schema
    files: tuple[StoredFile, ...]
    raw: tuple[RawFile, ...] = ()
    converter: str = ""
    """Version of datasets-rl that wrote the folder."""
    decisions: tuple[AppliedDecision, ...] = ()
    known_issues: tuple[str, ...] = ()
    """Known issues of the upstream's data, a sentence each."""
    statistics: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key: min, max, mean, std over all steps; and of the episodes' returns and lengths."""
    specs: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key: what the values may be."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What belongs to no step: scalars and text, or ``{"file": ...}`` for an array in a file of its own."""
    license: str = ""
    citation: str = ""
    homepage: str = ""
    time_limit: int | None = None
    """Steps after which the environment cuts an episode."""
    selection: Mapping[str, Any] = field(default_factory=dict)
    """Which part of the upstream's dataset this is; empty for the whole."""
    revision: str = ""
    """The upstream's own version mark of the whole, a commit."""
    score: Mapping[str, Any] = field(default_factory=dict)
    """The returns that a normalised score calls 0 and 1, "low" and "high", and their "origin"; empty if nobody said."""
    history: tuple[Mapping[str, Any], ...] = ()
    """What was done to it since it was made of raw files, in order: recipes, and what each was applied to."""

    @property
    def digest(self) -> str:
        """The digest of the document that `write` writes: it identifies the dataset with all its files."""
        return digest_of(self._content())

    def to_json(self) -> dict[str, Any]:
        """Return the document that manifest.json holds, with its digest."""
        content = self._content()
        return {**content, "digest": digest_of(content)}

    def _content(self) -> dict[str, Any]:
        return {
            "format": FORMAT_NAME,
            "format_version": FORMAT_VERSION,
            "id": self.id,
            "steps": self.steps,
            "episodes": self.episodes,
            "final_unknown": self.final_unknown,
            "record_bytes": self.schema.record_bytes,
            "schema": self.schema.to_json(),
            "files": [asdict(entry) for entry in self.files],
            "raw": [asdict(entry) for entry in self.raw],
            "converter": self.converter,
            "decisions": [asdict(entry) for entry in self.decisions],
            "known_issues": list(self.known_issues),
            "statistics": dict(self.statistics),
            "specs": dict(self.specs),
            "metadata": dict(self.metadata),
            "license": self.license,
            "citation": self.citation,
            "homepage": self.homepage,
            "time_limit": self.time_limit,
            **({"selection": dict(self.selection)} if self.selection else {}),
            **({"revision": self.revision} if self.revision else {}),
            **({"score": dict(self.score)} if self.score else {}),
            **({"history": [dict(one) for one in self.history]} if self.history else {}),
        }

    @classmethod
    def from_json(cls, document: Any, *, where: str = MANIFEST_FILE) -> Manifest:
        """Read a manifest of version 1 or 2, trusting nothing in it.

        Raises:
            ManifestError: If it is not a manifest of these versions, reaches out of its folder, or contradicts itself;
                all problems at once.
        """
        if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
            raise ManifestError(where, [f"it is not a {FORMAT_NAME} manifest"])
        version = document.get("format_version")
        if type(version) is not int or version not in {1, FORMAT_VERSION}:
            raise ManifestError(
                where,
                [f"format_version is {version!r}; this version reads 1 and {FORMAT_VERSION}"],
                hint="upgrade datasets-rl" if isinstance(version, int) and version > FORMAT_VERSION else "",
            )
        if version == 1:
            document = _upgraded(document)
        problems = ["id is missing; expected text"] * ("id" not in document) + list(_faults(document))
        schema: Schema | None = None
        try:
            schema = Schema.from_json(document.get("schema"))
            problems += lacking_fields(schema)
            if document.get("record_bytes") != schema.record_bytes:
                said = document.get("record_bytes")
                problems.append(f"record_bytes is {said!r}; the schema's records have {schema.record_bytes} bytes")
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
            history=tuple(document.get("history", [])),
            **{name: document[name] for name in _PLAIN if name in document},
        )

    def write(self, folder: Path) -> None:
        """Write manifest.json: the last file of a dataset, which makes the folder one."""
        disk.write_json(folder / MANIFEST_FILE, self.to_json())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a stored dataset; `verify` compares its digest.

        Raises:
            NotADatasetError: If the folder has none.
            ManifestError: If it cannot be what `write` wrote.
        """
        return cls.from_json(read_document(folder), where=str(folder / MANIFEST_FILE))

    def file(self, path: str) -> StoredFile | None:
        """Return the entry of a file of the dataset, or None."""
        return next((entry for entry in self.files if entry.path == path), None)

    @property
    def unverified(self) -> str:
        """A sentence on the raw files that no upstream digest vouches for; empty if every one was compared with one."""
        bare = [one for one in self.raw if one.checked != "catalog"]
        if not bare:
            return ""
        why = "the comparison was skipped" if any(one.checked == "skipped" for one in bare) else "none was known"
        return f"no upstream digest vouches for {len(bare):,} of {len(self.raw):,} raw files, such as {bare[0].path}: {why}"

    @property
    def bytes(self) -> int:
        """Bytes of all files of the dataset, the manifest left out."""
        return sum(entry.bytes for entry in self.files)


def _upgraded(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of version 1 with the keys of version 2."""
    renamed = {_FORMER_KEYS.get(name, name): value for name, value in document.items()}
    return {**renamed, "schema": upgraded_schema(document.get("schema"))}


def read_document(folder: Path) -> Any:
    """Return the JSON value that the manifest of a stored dataset holds, whatever it says.

    Raises:
        NotADatasetError: If the folder has no manifest.
        ManifestError: If it is not a file of JSON of a sensible size.
    """
    path = folder / MANIFEST_FILE
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            raise ManifestError(str(path), [f"it is not a file of at most {_MAX_BYTES:,} bytes"])
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_reject_constant)
    except (FileNotFoundError, NotADirectoryError):
        raise NotADatasetError(folder, hint="`rlds list --downloaded` shows what is there") from None
    except OSError as error:
        raise ManifestError(str(path), [f"it cannot be read: {error}"]) from error
    except (ValueError, RecursionError) as error:
        raise ManifestError(str(path), [f"it is not JSON: {error}"]) from error


_PLAIN = (
    "id",
    "steps",
    "episodes",
    "final_unknown",
    "converter",
    "statistics",
    "specs",
    "metadata",
    "license",
    "citation",
    "homepage",
    "time_limit",
    "selection",
    "revision",
    "score",
)
KNOWN_KEYS = frozenset(
    {
        "format",
        "format_version",
        "record_bytes",
        "schema",
        "files",
        "raw",
        "decisions",
        "known_issues",
        "history",
        "digest",
    }
    | {*_PLAIN, *_FORMER_KEYS}
)
"""Every key of the documents that this version reads."""
_COUNTS = {"steps": 1, "episodes": 1, "final_unknown": 0, "time_limit": 1}
_KINDS: Sequence[tuple[tuple[str, ...], type, str]] = (
    (("id", "converter", "license", "citation", "homepage", "revision"), str, "text"),
    (("statistics", "specs", "metadata", "selection", "score"), dict, "an object"),
)
_LISTS: Sequence[tuple[str, type, str]] = (
    ("known_issues", str, "a list of sentences"),
    ("history", dict, "a list of objects"),
)
_NEEDED = (
    (NEXT_REWARD, "biuf", (1,)),
    (NEXT_TERMINATED, "b", (1,)),
    (NEXT_TRUNCATED, "b", (1,)),
    (NEXT_DONE, "b", (1,)),
    (EPISODE, "i", ()),
)
_ENTRY_FIELDS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "files": {"path": str, "bytes": int, "sha256": str},
    "raw": {
        "path": str,
        "bytes": int,
        "sha256": str,
        "url": str,
        "checked": str,
        "etag": (str, type(None)),
    },
    "decisions": {"rule": str, "text": str, "count": int},
}


_KIND_NAMES = {str: "text", int: "a whole number from 0", (str, type(None)): "text or null"}


def _counts_from(least: int, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _faults(document: Mapping[str, Any]) -> Iterator[str]:
    for name, least in _COUNTS.items():
        value = document.get(name)
        if not _counts_from(least, value) and (name, value) != ("time_limit", None):
            yield f"{name} is {shorten(value)}; expected a whole number from {least}"
    for names, kind, wanted in _KINDS:
        for name in names:
            if not isinstance(document.get(name, kind()), kind):
                yield f"{name} is {shorten(document[name])}; expected {wanted}"
    yield from _score_faults(document.get("score"))
    for name, kind, wanted in _LISTS:
        listed = document.get(name, [])
        if not isinstance(listed, list) or not all(isinstance(one, kind) for one in listed):
            yield f"{name} is {shorten(listed)}; expected {wanted}"
    for name, kinds in _ENTRY_FIELDS.items():
        entries = document.get(name)
        if not isinstance(entries, list):
            yield f"{name} is {shorten(entries)}; expected a list"
        else:
            yield from (
                fault for number, one in enumerate(entries) for fault in _entry_faults(f"{name}[{number}]", one, kinds)
            )


def _score_faults(score: Any) -> Iterator[str]:
    if not isinstance(score, dict) or not score:
        return
    numbers: list[Any] = [score.get(name) for name in ("low", "high")]
    plain = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in numbers)
    if not plain or numbers != sorted(set(numbers)) or not isinstance(score.get("origin"), str) or len(score) > 3:
        yield f"score is {shorten(score)}; expected the numbers low and high, low below high, and the text origin"


def lacking_fields(schema: Schema) -> Iterator[str]:
    """Name every field of TED that a schema lacks, or holds in another shape than TED gives it."""
    for key, kinds, shape in _NEEDED:
        if key not in schema:
            yield f"{dotted(key)} is not in the schema"
        elif (field := schema[key]).dtype.kind not in kinds or field.shape != shape or field.shared or field.wide:
            yield f"{dotted(key)} is {field.dtype.name} {list(field.shape)}; expected {list(shape)}, in the record"


def _entry_faults(where: str, entry: Any, kinds: Mapping[str, type | tuple[type, ...]]) -> Iterator[str]:
    if not isinstance(entry, dict) or set(entry) != set(kinds):
        shown = sorted(entry) if isinstance(entry, dict) else entry
        yield f"{where} has the fields {shorten(shown)}; expected {sorted(kinds)}"
        return
    for name, kind in kinds.items():
        value = entry[name]
        if not isinstance(value, kind) or (kind is int and not _counts_from(0, value)):
            yield f"{where}.{name} is {shorten(value)}; expected {_KIND_NAMES[kind]}"
    path = entry.get("path")
    if isinstance(path, str) and not _inside(path):
        yield f"{where}.path is {shorten(path)}; expected a relative path that stays in the dataset's folder"


def _inside(path: str) -> bool:
    pure = PurePosixPath(path)
    plain = path.isprintable() and not set(path) & set("\\:")
    return bool(pure.parts) and plain and not pure.is_absolute() and ".." not in pure.parts
