"""Verification of stored datasets."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl import sources
from datasets_rl.disk import STATE_FILE
from datasets_rl.errors import (
    FetchError,
    IntegrityError,
    InvalidArgumentError,
    ManifestError,
    MissingDependencyError,
    UnknownIdError,
    join_names,
)
from datasets_rl.format.current import VERSION_NAME, in_current_version
from datasets_rl.progress import report
from datasets_rl.settings import Settings
from datasets_rl.store import DatasetPaths
from datasets_rl.store.find import locate, shown_id

if TYPE_CHECKING:
    from datasets_rl.format.check import Problems
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.format.reader import StoredDataset


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `verify`.

    >>> from datasets_rl import verify
    >>> report = verify("demo/pendulum")
    >>> report.problems
    ()
    """

    id: str
    folder: Path
    problems: tuple[str, ...]
    """The reasons why the dataset must not be used. Empty if the dataset is intact."""
    remarks: tuple[str, ...]
    """Observations about the data that are valid but worth knowing."""
    checked: tuple[str, ...]
    """Descriptions of the checks that were made."""
    files: int
    bytes: int
    preprocessed: bool = False
    """Whether the dataset is the result of preprocessing, and not converted from raw files alone."""


def verify(
    dataset: str | Path, *, deep: bool = False, root: Path | str | None = None, settings: Settings | None = None
) -> Verification:
    """Check a finished dataset, or a checkpoint of a replay buffer.

        >>> from datasets_rl import load, verify
        >>> dataset = load("demo/pendulum")
        >>> verify("demo/pendulum", deep=True).problems
        ()

    Args:
        dataset: The id or the folder of the dataset, or the folder of a checkpoint, from `ReplayBuffer.dumps`: every
            byte is compared with the digests.
        deep: In addition to sizes and digests, check every rule of TED, check every value against the spec, detect NaN,
            infinity and jumps inside episodes, and recompute everything that the manifest states, from the dataset
            itself and from the catalog. If the raw files are available, repeat the conversion, into temporary
            builds beside the dataset, and compare every value with the dataset.
        root: The folder of the source. By default ``<RLDS_HOME>/<source>``.
        settings: The settings. By default the settings of the environment.

    Raises:
        UnknownIdError: If there is no such id, or the dataset is not stored.
        ManifestError: If the manifest cannot be trusted.
        DiskFullError: If the disk has no space for a temporary build of the second conversion.
    """
    # Unlike the method of Path, this is False for a name that is too long for the file system.
    if isinstance(dataset, Path) and os.path.isfile(dataset / STATE_FILE):  # noqa: PTH113 - see above
        return _verify_checkpoint(dataset)
    settings = settings or Settings.from_env()
    folder = locate(dataset, root=root, settings=settings)
    return in_current_version(folder, partial(_verify_version, folder, deep=deep, settings=settings))


def _verify_checkpoint(folder: Path) -> Verification:
    from datasets_rl.format.checkpoint import read_state

    problems: tuple[str, ...] = ()
    try:
        read_state(folder, deep=True)
    except IntegrityError as error:
        problems = tuple(error.problems)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    checked = ("every byte of the checkpoint",)
    return Verification(str(folder), folder, problems, (), checked, len(sizes), sum(sizes))


def _verify_version(folder: Path, version: Path, *, deep: bool, settings: Settings) -> Verification:
    """Check a version of a dataset.

    Raises:
        FileNotFoundError: If the version is deleted in the meantime, because another version replaced this version.
    """
    from datasets_rl.format.integrity import check_files, check_manifest
    from datasets_rl.format.manifest import DIGESTS_FILE, Manifest

    manifest = Manifest.read(version)
    name = shown_id(folder, manifest.id, settings=settings)
    findings = check_manifest(version)
    checked = ["the digest of the manifest"] * (not findings.remarks)
    with report(f"checking {name}", manifest.bytes, show=settings.progress) as advance:
        broken = check_files(version, advance)
    findings.problems += broken
    checked.append(f"size and digest of {len(manifest.files)} files")
    if manifest.file(DIGESTS_FILE) is None:
        findings.remarks.append(
            f"{DIGESTS_FILE}, the digests of ranges, is missing: once published, the dataset cannot be streamed"
        )
    if manifest.unverified:
        findings.remarks.append(manifest.unverified)
    findings.remarks += manifest.spikes
    if deep and not broken:
        _check_deeply(version, findings, checked, settings)
    if findings.problems and not version.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(version))
    return Verification(
        id=name,
        folder=folder,
        problems=tuple(findings.problems),
        remarks=tuple(findings.remarks),
        checked=tuple(checked),
        files=len(manifest.files),
        bytes=manifest.bytes,
        preprocessed=bool(manifest.history),
    )


def _check_deeply(version: Path, findings: Problems, checked: list[str], settings: Settings) -> None:
    from datasets_rl.format.check import check_rules
    from datasets_rl.format.fingerprints import fingerprint_problems
    from datasets_rl.format.integrity import check_content
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.specs.infer import from_manifest, misfits_of_columns
    from datasets_rl.verification.images import ReadableColumns

    stored = StoredDataset(version)
    manifest = stored.manifest
    columns = ReadableColumns(stored)
    violations = check_rules(stored.schema, stored.episodes, columns.column)
    findings.problems += violations.problems
    findings.remarks += violations.remarks
    checked.append(f"the rules of TED on {manifest.steps:,} steps of {manifest.episodes:,} episodes")
    findings.problems += check_content(stored)
    checked.append("statistics, counts and specs against the values")
    try:
        findings.problems += misfits_of_columns(from_manifest(manifest), columns.column, manifest.steps)
        checked.append("every value against the specs")
    except ManifestError as error:
        # A missing spec is a problem of the content, too.
        findings.problems += [problem for problem in error.problems if problem not in findings.problems]
    if damaged := columns.problems():
        findings.problems += damaged
        checked.append("not compared with raw files: images are damaged")
        return
    findings.problems += fingerprint_problems(stored)
    checked.append("the fingerprints of the episodes against the values")
    _check_against_upstream(stored, findings, checked, settings)


def _check_against_upstream(stored: StoredDataset, findings: Problems, checked: list[str], settings: Settings) -> None:
    """Compare a dataset with the catalog, and with the raw files if available."""
    from datasets_rl.format.manifest import converter_version
    from datasets_rl.verification.reconversion import ENTRY_FIELDS, entry_differences

    manifest = stored.manifest
    if manifest.history:
        checked.append("not compared with raw files: the dataset was preprocessed")
        return
    if manifest.copied_from:
        checked.append(f"not compared with raw files: the dataset is a copy of {manifest.copied_from.get('address')}")
        return
    same_version = manifest.converter == converter_version()
    try:
        head, name = sources.split_id(manifest.id)
        origin = sources.get_source(head)
        entry = origin.entry(name)
    except UnknownIdError as error:
        if same_version:
            findings.problems.append(f"id: {error.message}, although this version of datasets-rl wrote the dataset")
        checked.append(f"not compared with raw files: this version has no source for {manifest.id}")
        return
    if not same_version:
        findings.remarks.append(
            f"the dataset was written by datasets-rl {manifest.converter or 'of an unknown version'}, and this is "
            f"{converter_version()}: what the manifest states is not compared with what this version would state"
        )
    files = raw_files(manifest, stored.folder)
    changed = [] if files is None else [*_raw_differences(manifest, files)]
    findings.problems += changed
    if files is None:
        checked.append("not compared with raw files, which the download did not keep")
    if files is None or changed or not _convert_again(stored, files, findings, checked, settings):
        names = [field for field in ENTRY_FIELDS if field not in origin.restated]
        if same_version and names:
            findings.problems += entry_differences(manifest, entry, names)
            checked.append(f"{', '.join(names)} against the catalog")


def _convert_again(
    stored: StoredDataset, files: Mapping[str, Path], findings: Problems, checked: list[str], settings: Settings
) -> bool:
    """Convert the raw files again, compare the result with the dataset, and return whether that was possible."""
    from datasets_rl.verification.reconversion import reconversion_differences

    manifest = stored.manifest
    label = f"converting the raw files of {manifest.id} again"
    try:
        with report(label, manifest.steps, unit=" steps", show=settings.progress) as advance:
            findings.problems += reconversion_differences(stored, files, _raw_folder(stored.folder), advance)
    except (FetchError, MissingDependencyError) as error:
        checked.append(f"not compared with raw files: {error.message}")
        return False
    checked.append("description, metadata, decisions and the episode table against the raw files")
    checked.append(f"every converted value against {join_names([file.name for file in files.values()])}")
    return True


def _raw_differences(manifest: Manifest, files: Mapping[str, Path]) -> Iterator[str]:
    """Yield the raw files that differ from the manifest: either the file or the manifest has changed."""
    from datasets_rl.fetch.partial_download import digest_file

    for file in manifest.raw:
        path = files[file.path]
        size = path.stat().st_size
        if size != file.bytes:
            yield f"the raw file {path} is {size:,} bytes, expected {file.bytes:,} as in the manifest"
        elif (digest := digest_file(path).hexdigest()) != file.sha256:
            yield f"the raw file {path} has sha256 {digest[:12]}..., expected {file.sha256[:12]}... as in the manifest"


def raw_files(manifest: Manifest, version: Path) -> Mapping[str, Path] | None:
    """Return the paths of the raw files of a version of a dataset, or None unless all files are available.

    Files are available if the download kept the raw files, or if the dataset was converted from local files that still
    exist.
    """
    available: dict[str, Path] = {}
    raw = _raw_folder(version)
    for file in manifest.raw:
        kept = None if raw is None else raw / file.path
        path = kept if kept is not None and kept.is_file() else _path_in_place(file.url)
        if path is None or not path.is_file():
            return None
        available[file.path] = path
    return available or None


def _raw_folder(version: Path) -> Path | None:
    """Return the folder of the raw files of a version, if kept."""
    raw = DatasetPaths(version.parent.parent, version.parent.name).raw
    return raw if VERSION_NAME.fullmatch(version.name) and raw.is_dir() else None


def _path_in_place(url: str) -> Path | None:
    from datasets_rl.fetch.schemes import NotServedError, local_path

    try:
        return local_path(url)
    except (InvalidArgumentError, NotServedError):
        return None
