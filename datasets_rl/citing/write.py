"""The folder of a statement: references.bib, appendix.tex, and a folder for each dataset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl import disk, store
from datasets_rl.catalog.mixture_file import read_mixture
from datasets_rl.citing.answers import open_answers
from datasets_rl.citing.croissant import croissant
from datasets_rl.citing.datasheet import datasheet
from datasets_rl.citing.paragraph import PREAMBLE, paragraph
from datasets_rl.citing.statement import Statement
from datasets_rl.errors import Argument, Call, IntegrityError, InvalidArgumentError, NotADatasetError, Remedy
from datasets_rl.format.integrity import check_files
from datasets_rl.format.reader import StoredDataset
from datasets_rl.hub.attached import CROISSANT_FILE, DATASHEET_FILE, TABLES, TABLES_FOLDER
from datasets_rl.lockfile.lock import LOCK_FILE, Lock
from datasets_rl.lockfile.opened import check_opened
from datasets_rl.progress import report
from datasets_rl.settings import Settings
from datasets_rl.store.find import locate, shown_id

if TYPE_CHECKING:
    from datasets_rl.auditing import Audit


@dataclass(frozen=True, slots=True)
class WrittenStatement:
    """The written statement of a dataset."""

    statement: Statement
    folder: Path
    """The folder with datasheet.md, croissant.json and the tables."""

    @property
    def open_topics(self) -> tuple[str, ...]:
        """The questions without an answer, a few words each."""
        return tuple(one.topic for one in open_answers(self.statement))


@dataclass(frozen=True, slots=True)
class _Subject:
    """A dataset to state, and the lock that has the dataset."""

    folder: Path
    """The folder of the version, so that all documents are about one version."""
    name: str
    lock: Lock | None = None


def write_statement(
    *datasets: str | Path,
    out: Path | str,
    tables: bool = False,
    audited: bool = True,
    root: Path | str | None = None,
    settings: Settings | None = None,
) -> tuple[WrittenStatement, ...]:
    """Write what a paper states about its datasets into a new folder, and return the statements.

    The folder appears at once, when everything is written.

        out/references.bib              the BibTeX of all datasets
        out/appendix.tex                a paragraph for each dataset
        out/DATASET/datasheet.md        questions and answers, and the open questions
        out/DATASET/croissant.json      Croissant 1.1 with the fields of Responsible AI
        out/DATASET/parquet/            with `tables`: the narrow fields, which croissant.json describes as record sets

    Everything is from the manifests, the lock, the catalog and an audit of all steps. What nobody stated is left open and listed. All files
    are read for their SHA-256, after a comparison with the digests of the manifest, which the statement states. No network is used.

    Args:
        datasets: Ids or folders of stored datasets, files of mixtures, or files of locks, whose datasets must be stored with
            the locked content.
        out: The folder, which does not exist or is empty.
        tables: Whether to write Parquet tables with the narrow fields, from which readers of Croissant load records.
        audited: Whether to audit the datasets.
        root: The folder of the source. By default ``<RLDS_HOME>/<source>``.
        settings: The settings. By default the settings of the environment.

    Raises:
        InvalidArgumentError: If no dataset is given, or the folder has files.
        UnknownIdError: If a dataset is not stored.
        IntegrityError: If a file of a dataset is damaged.
        LockMismatchError: If a stored dataset is not the dataset of the lock. The error names the differences.
        DiskFullError: If the disk is full.
        LockedError: If another process writes the same folder.
        MissingDependencyError: If pyarrow, which writes the tables, is not installed.
    """
    settings = settings or Settings.from_env()
    target = disk.expand_home(out).absolute()
    _check_target(target)
    named = [one for dataset in datasets for one in _subjects(dataset, root, settings)]
    # A dataset that is named twice is stated once, with the lock.
    subjects = {one.name: one for one in sorted(named, key=lambda one: one.lock is not None)}
    if not subjects:
        raise InvalidArgumentError("no dataset is given", hint="name the id of a stored dataset, or the file of a lock")
    build = target.with_name(f".{target.name}.rlds-statement")
    target.parent.mkdir(parents=True, exist_ok=True)
    with disk.lock(build.with_name(f"{build.name}.lock"), str(target), wait=0), disk.disk_errors(target.parent):
        disk.remove_tree(build)
        build.mkdir()
        entries: dict[str, str] = {}
        try:
            written = [
                _write(one, build, entries, tables=tables, audited=audited, settings=settings)
                for one in subjects.values()
            ]
            disk.write_text(build / "references.bib", "".join(f"{bibtex}\n\n" for bibtex in entries.values()))
            disk.write_text(
                build / "appendix.tex", "\n".join([PREAMBLE, *(paragraph(one.statement) for one in written)])
            )
            _check_target(target)  # others may have added files in the meantime
            disk.publish_folder(build, target)
        finally:
            disk.remove_tree(build)
    return tuple(replace(one, folder=target / one.folder.name) for one in written)


def _check_target(target: Path) -> None:
    disk.check_outside_versions(target)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        # Authors answer open questions in the datasheet, and an answer must not be lost.
        raise InvalidArgumentError(
            f"{target} is not replaced: it exists and is not an empty folder",
            hint=Remedy("choose another place with {}", Argument("out", ...)),
        )


def _subjects(dataset: str | Path, root: Path | str | None, settings: Settings) -> Iterator[_Subject]:
    path = disk.expand_home(dataset)
    if path.suffix == Path(LOCK_FILE).suffix and path.is_file():
        yield from _locked(Lock.read(path), settings)
    elif path.suffix == ".toml" and path.is_file():
        for member in read_mixture(path)[0]:
            yield from _subjects(member.dataset, root, settings)
    else:
        stored = StoredDataset(locate(store.id_or_path(dataset), root=root, settings=settings))
        yield _Subject(stored.folder, shown_id(stored.folder, stored.manifest.id, settings=settings))


def _locked(lock: Lock, settings: Settings) -> Iterator[_Subject]:
    """Yield the datasets that the inputs of a lock name, after a comparison with the lock."""
    for locked in lock.datasets:
        if not locked.is_parent:
            try:
                stored = StoredDataset(locate(lock.place(locked), settings=settings))
            except NotADatasetError as error:
                make = Remedy("{} makes the datasets of the lock", Call("lockfile.sync", lock.path))
                reason = f"{error.reason}, and the lock {lock.path} has {locked.id}"
                raise NotADatasetError(error.path, reason, hint=make) from error
            check_opened(lock, locked, stored.manifest)
            yield _Subject(stored.folder, locked.id, lock)


def _write(
    subject: _Subject, target: Path, entries: dict[str, str], *, tables: bool, audited: bool, settings: Settings
) -> WrittenStatement:
    """Write the folder of a dataset, and add the BibTeX that the dataset cites to the entries, by key."""
    stored = StoredDataset(subject.folder)
    with report(f"checking {subject.name}", stored.manifest.bytes, unit="B", show=settings.progress) as progress:
        problems = check_files(stored.folder, progress)
    if problems:
        raise IntegrityError(subject.name, problems)
    statement = Statement.of(
        stored.folder,
        subject.name,
        audit=_audit(subject.folder, settings) if audited else None,
        mixtures=subject.lock.mixtures if subject.lock else (),
        lock=subject.lock.path.name if subject.lock else "",
    )
    statement = replace(statement, citations=tuple(one.add_to(entries) for one in statement.citations))
    folder = _new_folder(target, subject.name)
    disk.make_folder(folder)
    files = _write_tables(stored, folder, settings) if tables else []
    total = stored.manifest.bytes + sum(file.stat().st_size for file in files)
    with report(f"hashing {subject.name}", total, unit="B", show=settings.progress) as progress:
        document = croissant(statement, stored.folder, files, base=folder, progress=progress)
    disk.write_json(folder / CROISSANT_FILE, document)
    disk.write_text(folder / DATASHEET_FILE, datasheet(statement))
    return WrittenStatement(statement, folder)


def _new_folder(target: Path, name: str) -> Path:
    """Return a folder for a dataset, named as the dataset, that does not exist."""
    plain = re.sub(r"[^\w.@=+-]+", "-", name).strip("-.")
    numbers = (f"{plain}-{number}" for number in count(2))
    return next(target / one for one in chain([plain], numbers) if not (target / one).exists())


def _audit(folder: Path, settings: Settings) -> Audit:
    from datasets_rl.auditing import audit

    return audit(folder, settings=settings)


def _write_tables(stored: StoredDataset, folder: Path, settings: Settings) -> Sequence[Path]:
    """Write the narrow fields as Parquet, and return the tables."""
    from datasets_rl.exporting import Content
    from datasets_rl.exporting.run import run_export

    narrow = [field.key for field in stored.schema if not field.wide and not field.image_form.holds_files]
    run_export(Content(stored, keys=narrow), "parquet", folder / TABLES_FOLDER, show=settings.progress)
    return [folder / path for path in TABLES]
