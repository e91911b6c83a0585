"""Whether a stored dataset is what it should be: `verify`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets_rl import sources
from datasets_rl.errors import BadArgument, UnknownId, UnknownKey
from datasets_rl.library import Place, locate
from datasets_rl.progress import report
from datasets_rl.settings import Settings

if TYPE_CHECKING:
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.manifest import Manifest
    from datasets_rl.ted.keys import Key

__all__ = ["Verification", "raw_files", "verify"]


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found."""

    id: str
    folder: Path
    problems: tuple[str, ...]
    """Why the dataset must not be used; empty if it is intact."""
    remarks: tuple[str, ...]
    """What is allowed and worth knowing."""
    checked: tuple[str, ...]
    """What was looked at, a sentence each."""
    files: int
    bytes: int
    preprocessed: bool = False
    """Whether the dataset was made of another dataset, and not of raw files alone."""


def verify(
    dataset: str | Path, *, deep: bool = False, root: Path | str | None = None, settings: Settings | None = None
) -> Verification:
    """Check a finished dataset.

    Args:
        dataset: Its id, or its folder.
        deep: Beside sizes and digests, check every rule of TED and every value against its spec, look for values that
            are no data, and, where the raw files are at hand, compare the converted values with theirs, column by
            column.
        root: The source's folder; by default ``<RLDS_HOME>/<source>``.
        settings: By default those of the environment.

    Raises:
        UnknownId: If there is no such id, or nothing finished is there.
        ManifestInvalid: If the manifest cannot be trusted.
    """
    from datasets_rl.format.verify import check_files, check_manifest
    from datasets_rl.manifest import Manifest

    settings = settings or Settings.from_env()
    folder = locate(dataset, root=root, settings=settings)
    manifest = Manifest.read(folder)
    findings = check_manifest(folder)
    checked = ["the digest of the manifest"] * (not findings.remarks)
    with report(f"checking {manifest.id}", manifest.bytes, show=settings.progress) as advance:
        broken = check_files(folder, advance)
    findings.problems += broken
    checked.append(f"size and sha256 of {len(manifest.files)} files")
    if manifest.unverified:
        findings.remarks.append(manifest.unverified)
    if deep and not broken:
        from datasets_rl.format.reader import StoredDataset
        from datasets_rl.specs.infer import from_manifest, misfits_of_columns
        from datasets_rl.ted.check import check_rules

        stored_dataset = StoredDataset(folder)
        found = check_rules(stored_dataset.schema, stored_dataset.episodes, stored_dataset.column)
        findings.problems += found.problems
        findings.remarks += found.remarks
        checked.append(f"the rules of TED on {manifest.steps:,} steps of {manifest.episodes:,} episodes")
        findings.problems += misfits_of_columns(from_manifest(manifest), stored_dataset.column, manifest.steps)
        checked.append("every value against the specs")
        findings.problems += _compare(stored_dataset, folder, checked)
    return Verification(
        id=manifest.id,
        folder=folder,
        problems=tuple(findings.problems),
        remarks=tuple(findings.remarks),
        checked=tuple(checked),
        files=len(manifest.files),
        bytes=manifest.bytes,
        preprocessed=bool(manifest.history),
    )


def _compare(stored_dataset: StoredDataset, folder: Path, checked: list[str]) -> list[str]:
    manifest = stored_dataset.manifest
    if manifest.history:
        checked.append("not compared with raw files: it was preprocessed")
        return []
    try:
        head, name = sources.split_id(manifest.id)
        origin = sources.source(head)
        origin.entry(name)
    except UnknownId:
        checked.append(f"not compared with raw files: this version has no source for {manifest.id}")
        return []
    spot = Place(folder.parents[name.count("/")], name) if folder.as_posix().endswith(f"/{name}") else None
    files = raw_files(manifest, spot)
    if files is None:
        checked.append("not compared with raw files: they are not at hand (rlds download --keep-raw keeps them)")
        return []
    try:
        problems = origin.compare(name, files, _with_texts(stored_dataset), stored_dataset.episodes)
    except UnknownKey:
        checked.append("not compared with raw files: fields of theirs were left out")
        return []
    named = [file.name for file in files.values()]
    more = f" and {len(named) - 3:,} more files" if len(named) > 3 else ""
    checked.append(f"every converted value against {', '.join(named[:3])}{more}")
    return problems


def _with_texts(stored_dataset: StoredDataset) -> Callable[[Key, int, int], Any]:
    """Return what reads a field of some rows, with texts in the place of their numbers."""
    import numpy as np

    words: dict[Key, Any] = {}

    def column(key: Key, start: int, stop: int) -> Any:
        values = stored_dataset.column(key, start, stop)
        field = key if key in stored_dataset.schema else key[1:]
        if field not in stored_dataset.schema or not stored_dataset.schema[field].text:
            return values
        if field not in words:
            words[field] = np.array(stored_dataset.texts(field), object)
        return words[field][values]

    return column


def raw_files(manifest: Manifest, spot: Place | None) -> Mapping[str, Path] | None:
    """Return where the raw files of a dataset lie, or None unless all of them are at hand.

    They are when they were kept, or when the dataset was made of local files that are still as they were.
    """
    found: dict[str, Path] = {}
    for file in manifest.raw:
        kept = spot.raw / file.path if spot is not None else None
        path = kept if kept is not None and kept.is_file() else _in_place(file.url)
        if path is None or not path.is_file() or path.stat().st_size != file.bytes:
            return None
        found[file.path] = path
    return found or None


def _in_place(url: str) -> Path | None:
    from datasets_rl.fetch.schemes import NotThere, scheme_of

    try:
        scheme = scheme_of(url)
        found = scheme.resolve(url, _no_requests) if scheme.IN_PLACE else None
    except (BadArgument, NotThere):
        return None
    return found if isinstance(found, Path) else None


def _no_requests(url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
    raise BadArgument(f"{url} would need a request with {len(headers)} headers; local files need none")
