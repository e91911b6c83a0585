"""Checks of an export, and its atomic publication.

An export is written beside its target, under a hidden name that is the same in every run, and renamed when
complete. A killed export therefore leaves nothing under the name of the target, and the same command removes the
remains.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from datasets_rl import disk
from datasets_rl.errors import Argument, DatasetsRLError, InvalidArgumentError, LockedError, LossyExportError, Remedy
from datasets_rl.exporting.base import ExportFormat
from datasets_rl.exporting.content import Content
from datasets_rl.exporting.formats import FORMATS, get_format
from datasets_rl.format.reader import StoredDataset
from datasets_rl.progress import report
from datasets_rl.settings import Settings
from datasets_rl.store.find import locate

MARKER = "rlds-export.json"
"""The file in an exported folder that records what was exported, and all files of the export. In HDF5 files an
attribute."""


@dataclass(frozen=True)
class ExportPlan:
    """What an export would do."""

    format: str
    path: Path
    steps: int
    episodes: int
    bytes: int
    """Size of the stored values, about that of the export."""
    problems: tuple[str, ...]
    """Why the dataset cannot be written in this format. Empty if it can."""
    losses: tuple[str, ...]
    """What the format cannot hold, a sentence each."""
    present: bool
    """Whether the same export is there already."""


def export(
    dataset: str | Path,
    to: str | ExportFormat,
    out: Path | str | None = None,
    *,
    force: bool = False,
    lossy: bool = False,
    fps: float | None = None,
    images: str = "",
    root: Path | str | None = None,
    settings: Settings | None = None,
) -> Path:
    """Write a stored dataset in the format of another project.

    The export appears under its name at once, when it is complete. If the process is killed, the same call completes it.
    What the format cannot hold is reported before anything is written, and listed in docs/export.md.

    Args:
        dataset: The id or the folder of the dataset.
        to: The name of the format, one of `FORMATS`, or the format of another package.
        out: The file or the folder to write. By default a path in the working directory, named after dataset and
            format.
        force: Replace an existing file or export.
        lossy: Leave out what the format cannot hold.
        fps: Steps per second, for LeRobot. By default the number in the metadata.
        images: How images are written, for LeRobot: "encoded", in the tables, or "video". By default, frames of stored
            videos stay videos, and others are encoded, so that nothing is lost.
        root: The folder of the source. By default ``<RLDS_HOME>/<source>``.
        settings: Settings instead of the settings of the environment.

    Returns:
        The path of the export. If the same export is there already, nothing is written.

    Raises:
        InvalidArgumentError: If there is no such format, the format cannot write images so, the target exists, or the
            dataset cannot be written in this format. The error names all reasons.
        LossyExportError: If the format cannot hold everything and `lossy` is False. The error names all losses.
        MissingDependencyError: If the library of the format is not installed.
        UnknownIdError: If there is no such dataset.
        DiskFullError: If the export does not fit on the disk.
        LockedError: If another process writes the same export.
    """
    settings = settings or Settings.from_env()
    folder = locate(dataset, root=root, settings=settings)
    return run_export(
        Content(StoredDataset(folder), fps=fps, images=images),
        to,
        out,
        force=force,
        lossy=lossy,
        show=settings.progress,
    )


def default_path(dataset_id: str, to: str | ExportFormat) -> Path:
    """Return the path of an export in the working directory: the name of the dataset and the format."""
    name = dataset_id.partition("/")[2] or dataset_id
    stem = name.replace("/", "-")
    exported = get_format(to)
    return Path(f"{stem}{exported.suffix}" if exported.suffix else f"{stem}-{exported.name}")


def plan_export(content: Content, to: str | ExportFormat, out: Path | str | None = None) -> ExportPlan:
    """Return what an export would do. Nothing is written.

    Raises:
        InvalidArgumentError: If there is no such format, the format cannot write images so, or the path is the root of
            a file system.
        MissingDependencyError: If its library is not installed.
    """
    exported = get_format(to)
    exported.check_library()
    if content.images and content.images not in exported.image_forms:
        reason = (
            f", expected {' or '.join(exported.image_forms)}"
            if exported.image_forms
            else f": the format {exported.name} has a single form of images"
        )
        raise InvalidArgumentError(f"images is {content.images!r}{reason}")
    path = disk.expand_home(out if out is not None else default_path(content.manifest.id, exported)).absolute()
    if not path.name:
        raise InvalidArgumentError(f"{path} is not replaced: the path is the root of a file system", hint=_ELSEWHERE)
    return ExportPlan(
        exported.name,
        path,
        content.steps,
        len(content.lengths),
        exported.estimate_bytes(content),
        tuple(exported.problems(content)),
        tuple(exported.losses(content)),
        _read_marker(path) == _marker(content, exported.name),
    )


def run_export(
    content: Content,
    to: str | ExportFormat,
    out: Path | str | None = None,
    *,
    force: bool = False,
    lossy: bool = False,
    show: bool = True,
) -> Path:
    """Write an export of some content and publish it, see `export`."""
    exported = get_format(to)
    plan = plan_export(content, exported, out)
    if plan.problems:
        raise InvalidArgumentError(
            f"{content.manifest.id} cannot be exported to {exported.name}: {'; '.join(plan.problems)}",
            hint=Remedy(
                "another format, or a preprocessed dataset, can hold it, and formats are {}", ", ".join(FORMATS)
            ),
        )
    path = plan.path
    hidden = path.with_name(f".{path.name}.rlds-export")
    if plan.present and not force:
        _remove_leftovers(hidden)
        return path
    _check_place(path, content)
    _check_target(path, exported, force=force)
    if plan.losses and not lossy:
        raise LossyExportError(content.manifest.id, exported.name, plan.losses)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(hidden):
        disk.remove_tree(hidden)
        disk.require_free(path.parent, plan.bytes, f"the export {path.name}")
        try:
            with _full_disk(path), report(f"export {path.name}", plan.steps, unit="step", show=show) as progress:
                if not exported.suffix:
                    hidden.mkdir()
                exported.write(content, hidden, progress)
                _write_marker(hidden, content, exported.name, plan.losses)
                _check_target(path, exported, force=force)  # others may have added files in the meantime
                _publish(hidden, path)
        finally:
            with suppress(OSError):
                disk.remove_tree(hidden)
    return path


def _locked(hidden: Path) -> AbstractContextManager[None]:
    """Return the lock of an export, with the name of the target in messages."""
    target = hidden.with_name(hidden.name[1:].removesuffix(".rlds-export"))
    return disk.lock(hidden.with_name(f"{hidden.name}.lock"), str(target), wait=0)


def _remove_leftovers(hidden: Path) -> None:
    """Delete the remains of an export that was killed between its publication and its end."""
    if any(hidden.parent.glob(f"{glob.escape(hidden.name)}*")):
        with suppress(LockedError), _locked(hidden):
            disk.remove_tree(hidden)


def _check_place(path: Path, content: Content) -> None:
    """Check that an export does not go among the files of datasets, which checks and sweeps treat as theirs."""
    resolved = path.parent.resolve() / path.name
    disk.check_nesting(resolved)
    folder = content.stored.folder
    levels = min(content.manifest.id.count("/"), len(folder.parents)) - 1  # an id is SOURCE/NAME, a folder ROOT/NAME
    roots = {Settings.from_env().home.resolve(), folder.parents[max(levels, 0)]}
    for root in roots:
        if resolved.is_relative_to(root) and any(name.startswith(".") for name in resolved.relative_to(root).parts):
            raise InvalidArgumentError(
                f"{path} is in a hidden folder of {root} with files of datasets", hint=_ELSEWHERE
            )


def _check_target(path: Path, exported: ExportFormat, *, force: bool) -> None:
    """Check that nothing exists at the target, or with `force` only an export, or a file where a file is written."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode) and not exported.suffix and not any(path.iterdir()):
        return
    if not force:
        raise InvalidArgumentError(
            f"{path} is not replaced: it exists",
            hint=Remedy("choose another place with {}, or replace it with {}", Argument("out", ...), _FORCE),
        )
    if exported.suffix:
        problem = "" if stat.S_ISREG(mode) else "is not a regular file"
    else:
        problem = _foreign_content(path) if stat.S_ISDIR(mode) else "is not a folder"
    if problem:
        raise InvalidArgumentError(f"{path} is not replaced: it {problem}", hint=_ELSEWHERE)


def _foreign_content(folder: Path) -> str:
    """Return what a folder holds that is not of an export, by the record inside. Empty if everything is."""
    own = _recorded_files(folder)
    if own is None:
        return "is a folder that is not an export"
    own |= {parent.as_posix() for path in own for parent in PurePosixPath(path).parents}
    foreign = sorted(path for path in _paths_below(folder) if path not in own)
    if not foreign:
        return ""
    more = f" and {len(foreign) - 3:,} more" if len(foreign) > 3 else ""
    return f"holds files that are not the export's: {', '.join(foreign[:3])}{more}"


def _recorded_files(folder: Path) -> set[str] | None:
    """Return the paths that the record of an export names, with the record itself, or None without a record."""
    try:
        files = _read_document(folder / MARKER)["files"]
    except (OSError, KeyError, TypeError, ValueError, RecursionError):
        return None
    return {MARKER, *files} if isinstance(files, list) and all(isinstance(path, str) for path in files) else None


def _paths_below(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield Path(parent, name).relative_to(folder).as_posix()


_ELSEWHERE = Remedy("choose another place with {}", Argument("out", ...))
_FORCE = Argument("force", True)


@contextmanager
def _full_disk(path: Path) -> Iterator[None]:
    """Convert the errors of libraries that report a full disk in their own words."""
    try:
        with disk.disk_errors(path.parent):
            yield
    except (OSError, RuntimeError) as error:
        if isinstance(error, DatasetsRLError) or not _reports_full_disk(error):
            raise
        with disk.disk_errors(path.parent):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error


def _reports_full_disk(error: BaseException) -> bool:
    text = str(error).lower()
    return any(
        words in text for words in ("no space left", f"errno = {errno.ENOSPC}", "file too large", "quota exceeded")
    )


def _publish(hidden: Path, path: Path) -> None:
    if hidden.is_dir():
        disk.publish_folder(hidden, path)
    else:
        disk.publish_file(hidden, path)


def _marker(content: Content, to: str) -> dict[str, Any]:
    """Return what identifies an export: the same dataset, part and format."""
    return {
        "dataset": content.manifest.id,
        "digest": content.manifest.digest,
        "format": to,
        "steps": content.steps,
        "episodes": len(content.lengths),
        "selected": hashlib.sha256(content.episodes.tobytes()).hexdigest(),
        "fields": [field.name for field in content.fields],
        **({"fps": content.fps} if content.fps is not None else {}),
        **({"images": content.images} if content.images else {}),
    }


def _write_marker(target: Path, content: Content, to: str, losses: Sequence[str]) -> None:
    marker = _marker(content, to)
    if not target.is_dir():
        import h5py

        with h5py.File(target, "r+") as file:
            file.attrs["rlds_export"] = json.dumps(marker)
        return
    manifest = content.manifest.to_json()
    kept = ("license", "citation", "homepage", "known_issues", "time_limit", "score", "specs", "metadata", "history")
    about = {name: manifest[name] for name in kept if manifest.get(name)}
    texts = {field.name: content.stored.texts(field.key) for field in content.fields if field.text}
    files = sorted(path for path in _paths_below(target) if not (target / path).is_dir())
    disk.write_json(target / MARKER, {**marker, "files": files, "losses": list(losses), "about": about, "texts": texts})


def _read_marker(path: Path) -> dict[str, Any] | None:
    """Return what an existing file or folder states as its dataset, or None without a statement."""
    try:
        if path.is_dir():
            document = _read_document(path / MARKER)
        elif path.is_file():
            import h5py

            with h5py.File(path, "r", locking=False) as file:
                document = json.loads(file.attrs["rlds_export"])
        else:
            return None
    except (OSError, KeyError, TypeError, ValueError, RecursionError):
        return None
    names = ("dataset", "digest", "format", "steps", "episodes", "selected", "fields", "fps", "images")
    return {name: document[name] for name in names if name in document} if isinstance(document, dict) else None


def _read_document(path: Path) -> Any:
    if not stat.S_ISREG(path.lstat().st_mode):  # reading a named pipe would block
        raise ValueError(f"{path} is not a regular file")
    return json.loads(path.read_text(encoding="utf-8"))
