"""Are the files of a dataset, its manifest included, still the ones that were written?"""

from __future__ import annotations

from pathlib import Path

from datasets_rl.errors import IntegrityFailed
from datasets_rl.format.npy import file_sha256
from datasets_rl.format.reader import StoredDataset
from datasets_rl.manifest import KNOWN_KEYS, MANIFEST_FILE, Manifest, digest_of, read_document
from datasets_rl.progress import Report
from datasets_rl.rows import ROWS_FILE
from datasets_rl.ted.check import Findings

__all__ = ["check_files", "check_manifest"]


def check_manifest(folder: Path) -> Findings:
    """Compare the manifest with the digest that it carries of itself.

    Returns:
        The difference; or a remark that there is no digest, as in manifests of earlier versions.

    Raises:
        NotADataset: If the folder has no manifest.
        ManifestInvalid: If the manifest cannot be trusted.
    """
    findings = Findings()
    document = read_document(folder)
    Manifest.from_json(document, where=str(folder / MANIFEST_FILE))
    stated = document.get("digest")
    if stated is not None:
        if stated != (digest := digest_of(document)):
            findings.problems.append(
                f"{MANIFEST_FILE} has the digest {digest[:12]}... and states {str(stated)[:12]}...: a value in it "
                "changed after it was written"
            )
    elif unknown := sorted(document.keys() - KNOWN_KEYS):
        # A manifest without a digest is of an earlier version, which wrote no key that is unknown today.
        findings.problems.append(f"{MANIFEST_FILE} has no digest and the unknown keys {', '.join(unknown)}")
    else:
        findings.remarks.append(
            f"{MANIFEST_FILE} has no digest: it was written before manifests had digests, and nothing vouches for it"
        )
    return findings


def check_files(folder: Path, report: Report) -> list[str]:
    """Compare every file with its size and digest in the manifest, and every header with the schema.

    Args:
        folder: The dataset.
        report: Called with each number of further bytes.

    Returns:
        Every difference; empty if there is none.

    Raises:
        NotADataset: If the folder has no manifest.
        ManifestInvalid: If the manifest cannot be trusted.
    """
    folder = folder.resolve()
    manifest = Manifest.read(folder)
    problems: list[str] = []
    for entry in manifest.files:
        path = folder / entry.path
        if path.is_symlink() or not path.is_file():
            problems.append(f"{entry.path} is missing")
            continue
        size = path.stat().st_size
        if size != entry.bytes:
            problems.append(f"{entry.path} is {size:,} bytes; expected {entry.bytes:,}")
        elif (digest := file_sha256(path)) != entry.sha256:
            problems.append(f"{entry.path} has sha256 {digest[:12]}...; expected {entry.sha256[:12]}...")
        report(size)
    listed = {entry.path for entry in manifest.files} | {MANIFEST_FILE}
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    problems += [f"{path} is not in the manifest" for path in sorted(found - listed)]
    return problems or _header_faults(folder)


def _header_faults(folder: Path) -> list[str]:
    problems: list[str] = []
    try:
        stored = StoredDataset(folder)
    except IntegrityFailed as error:
        return list(error.problems)
    wanted = {ROWS_FILE, *(name for field in stored.schema for name in field.arrays)}
    for name in sorted(wanted):
        try:
            stored.map(name)
        except IntegrityFailed as error:
            problems += error.problems
    try:
        _ = stored.episodes
    except IntegrityFailed as error:
        problems += error.problems
    return problems
