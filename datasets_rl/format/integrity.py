"""Integrity checks of a stored dataset: digest of the manifest, files, and recomputed content."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from datasets_rl.disk import MANIFEST_FILE
from datasets_rl.errors import IntegrityError
from datasets_rl.format.check import Problems
from datasets_rl.format.current import version_folder
from datasets_rl.format.digests import RangeDigests, digest_of_ranges, range_digests
from datasets_rl.format.episode_log import EPISODES_FILE
from datasets_rl.format.manifest import DIGESTS_FILE, Manifest, StoredFile, array_file, digest_of
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.spikes import spikes
from datasets_rl.format.statistics import statistics_differences
from datasets_rl.format.summary import read_document
from datasets_rl.progress import Report


def check_manifest(folder: Path) -> Problems:
    """Compare the manifest with the digest that the manifest states.

    Returns:
        A problem if the digests differ, or the manifest states none.

    Raises:
        NotADatasetError: If the folder has no manifest.
        ManifestError: If the manifest is not valid.
    """
    findings = Problems()
    document = read_document(folder)
    Manifest.from_json(document, where=str(folder / MANIFEST_FILE))
    stated = document.get("digest")
    if stated is None:
        findings.problems.append(f"{MANIFEST_FILE} has no digest: nothing vouches for the manifest")
    elif stated != (digest := digest_of(document)):
        findings.problems.append(
            f"{MANIFEST_FILE} has the digest {digest[:12]}... and states {str(stated)[:12]}...: a value "
            "changed after it was written"
        )
    return findings


def check_content(stored: StoredDataset) -> Iterator[str]:
    """Recompute the manifest's values that the dataset's files determine, and yield a problem for each difference.

    The values are the statistics, the spikes, the number of unknown final observations, the dtype and shape of the
    specs, and the list of files. Opening already compared steps, episodes and schema with the headers of the files.
    """
    manifest = stored.manifest
    unknown = int((~stored.episodes["final_known"]).sum())
    if manifest.final_unknown != unknown:
        yield f"final_unknown is {manifest.final_unknown:,}, but the episode table has {unknown:,} such episodes"
    fields = {field.name: field for field in stored.schema}
    for name in sorted(fields.keys() ^ manifest.specs.keys()):
        yield f"specs.{name} is missing" if name in fields else f"specs.{name} is not a field of the schema"
    for name, field in fields.items():
        spec = manifest.specs.get(name, {})
        expected = {"dtype": field.read_dtype.name, "shape": list(field.shape)}
        for attribute, value in expected.items():
            if isinstance(spec, dict) and name in manifest.specs and spec.get(attribute) != value:
                yield f"specs.{name}.{attribute} is {spec.get(attribute)!s:.60}, but the field has {value}"
    wrong = [
        *statistics_differences(manifest.statistics, stored.schema, stored.episodes, stored.column, stored.take_fields)
    ]
    yield from wrong
    if not wrong:  # spikes are found by the statistics
        found = tuple(spikes(stored.schema, manifest.statistics, stored.episodes, stored.column))
        if found != manifest.spikes:
            yield f"spikes is {list(manifest.spikes)!s:.200}, but the values have {list(found)!s:.200}"
    arrays = [file for value in manifest.metadata.values() if (file := array_file(value))]
    shared = [path for field in stored.schema for path in field.image_form.shared_files(stored)]
    needed = {*stored.schema.array_files, EPISODES_FILE, *arrays, *stored.schema.whole_files, *shared}
    for path in sorted(needed ^ ({entry.path for entry in manifest.files} - {DIGESTS_FILE})):
        yield (
            f"{path} is not among the files"
            if path in needed
            else f"{path} is listed, but no field or metadata of the manifest uses the file"
        )


def check_files(folder: Path, report: Report) -> list[str]:
    """Compare every file with the stated size and digests, and every header with the schema.

    Args:
        folder: The dataset.
        report: Called with the number of bytes that were checked.

    Returns:
        All problems. Empty if the files are intact.

    Raises:
        NotADatasetError: If the folder has no manifest.
        ManifestError: If the manifest is not valid.
    """
    folder = version_folder(folder)
    folder = folder.resolve()
    manifest = Manifest.read(folder)
    problems: list[str] = []
    ranges = _read_ranges(folder, manifest)
    for entry in manifest.files:
        path = folder / entry.path
        if path.is_symlink() or not path.is_file():
            problems.append(f"{entry.path} is missing")
            continue
        size = path.stat().st_size
        if size != entry.bytes:
            problems.append(f"{entry.path} is {size:,} bytes, expected {entry.bytes:,}")
        elif problem := _digest_problem(path, entry, ranges, report):
            problems.append(problem)
    if isinstance(ranges, str):
        problems.append(ranges)
    listed = {entry.path for entry in manifest.files} | {MANIFEST_FILE}
    existing = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    problems += [f"{path} is not in the manifest" for path in sorted(existing - listed)]
    return problems or _header_problems(folder)


def _read_ranges(folder: Path, manifest: Manifest) -> RangeDigests | str | None:
    """Return the digests of the ranges, a problem if they cannot be read, or None for a dataset without digests."""
    if manifest.file(DIGESTS_FILE) is None:
        return None
    try:
        return RangeDigests((folder / DIGESTS_FILE).read_bytes(), manifest)
    except (OSError, ValueError) as error:
        return f"{DIGESTS_FILE} cannot be read: {error}"


def _digest_problem(path: Path, entry: StoredFile, ranges: RangeDigests | str | None, report: Report) -> str:
    found = range_digests(path, report)
    if (digest := digest_of_ranges(found)) != entry.digest:
        return f"{entry.path} has the digest {digest[:12]}..., expected {entry.digest[:12]}..."
    expected = ranges.of_file(entry) if isinstance(ranges, RangeDigests) else None
    if expected not in {None, found}:
        return f"{entry.path} differs from the digests of its ranges in {DIGESTS_FILE}"
    return ""


def _header_problems(folder: Path) -> list[str]:
    """Return how the headers of the arrays, which opening reads, and the episode table differ from the manifest."""
    try:
        _ = StoredDataset(folder).episodes
    except IntegrityError as error:
        return list(error.problems)
    return []
