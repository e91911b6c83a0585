"""``rlds list``: every id that is known, without a request unless one wants it."""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datasets_rl.errors import DatasetsRLError
from datasets_rl.sources import split_derived

from ..options import Shell, read_size
from ..output import Result, Table, size_text

if TYPE_CHECKING:
    from datasets_rl.sources import Entry, Source


class Sort(str, enum.Enum):
    """What `list` sorts by."""

    NAME = "name"
    SIZE = "size"


@dataclass(frozen=True)
class _Row:
    id: str
    title: str
    bytes: int | None
    time_limit: int | None
    folder: Path | None
    known_issues: tuple[str, ...] = ()
    deprecated: bool = False
    made: str = ""
    """How it was made here: "derived" or "in place", and by which recipe; empty for a download."""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "wire_bytes": self.bytes,
            "time_limit": self.time_limit,
            "downloaded": self.folder is not None,
            "folder": None if self.folder is None else str(self.folder),
            "known_issues": list(self.known_issues),
            "deprecated": self.deprecated,
            "preprocessed": self.made,
        }

    def cells(self) -> tuple[str, ...]:
        issues = (
            f"{len(self.known_issues)} known issue{'s' * (len(self.known_issues) > 1)}" if self.known_issues else ""
        )
        notes = ", ".join(filter(None, (self.made, "deprecated" if self.deprecated else "", issues)))
        here = "yes" if self.folder is not None else "-"
        return self.id, size_text(self.bytes), str(self.time_limit or "-"), here, notes


def run(
    shell: Shell,
    pattern: Annotated[
        str, typer.Argument(metavar="[PATTERN]", show_default=False, help="Part of an id, or a glob.")
    ] = "",
    source: Annotated[str, typer.Option(metavar="NAME", show_default=False, help="Of this source only.")] = "",
    downloaded: Annotated[bool, typer.Option("--downloaded", help="Only those that are stored here.")] = False,
    remote: Annotated[bool, typer.Option("--remote", help="Ask the upstreams which ids they have today.")] = False,
    max_size: Annotated[
        str, typer.Option(metavar="SIZE", show_default=False, help="No more bytes on the wire, as in 500MB or 2GiB.")
    ] = "",
    sort: Annotated[Sort, typer.Option(help="Sort by id, or by bytes on the wire.")] = Sort.NAME,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", show_default=False, help="The first N only.")] = None,
) -> Result:
    """List the ids of datasets; no network, unless --remote asks for it.

    \b
    Examples:
      rlds list 'hopper-*-v2'
      rlds list --max-size 50MB --sort size
      rlds list --downloaded --json
      rlds list --remote --source minari
    """
    from datasets_rl import sources
    from datasets_rl.catalog import matches

    origins, errors = ((sources.get_source(source),), ()) if source else sources.importable_sources()
    for error in errors:
        shell.printer.note(f"left out: {error.message}")
    most = read_size(max_size) if max_size else None
    every = list(
        _rows(shell, origins, (source,) if source else sources.source_names(), stored_only=downloaded, remote=remote)
    )
    matching = [row for row in every if matches(row.id, pattern)]
    rows = [row for row in matching if most is None or (row.bytes is not None and row.bytes <= most)]
    unsized = sum(row.bytes is None for row in matching)
    if most is not None and unsized:
        shell.printer.note(f"{unsized} of unknown size left out")
    rows.sort(key=lambda row: (row.bytes is None, row.bytes or 0, row.id) if sort is Sort.SIZE else row.id)
    shown = rows[:limit]
    if len(shown) < len(rows) or not rows:
        near = [] if matching else _nearest_ids(pattern, [row.id for row in every])
        meant = f"; did you mean {', '.join(near)}?" if near else ""
        shell.printer.note(f"{len(shown)} of {len(rows)} datasets shown" if rows else f"no dataset matches{meant}")
    return Result(
        {"datasets": [row.to_json() for row in shown], "total": len(rows)},
        [Table(("id", "size", "limit", "here", "notes"), tuple(row.cells() for row in shown), listing=True)],
        quiet=[row.id for row in shown],
    )


def _rows(
    shell: Shell, origins: Sequence[Source], names: Sequence[str], *, stored_only: bool, remote: bool
) -> Iterator[_Row]:
    from datasets_rl import planning, store

    home = shell.settings.home
    stored = {folder.relative_to(home).as_posix(): folder for folder in store.stored_folders(home)}
    for origin in origins:
        more = planning.list_upstream_ids(origin.name, settings=shell.settings) if remote else ()
        for one in dict.fromkeys((*origin.ids(), *more)):
            entry = origin.entry(one)
            folder = stored.pop(entry.id, None)
            if folder is not None or not stored_only:
                yield _row(entry, folder)
    # Stored datasets that no catalog has: copies from elsewhere, datasets of another version.
    for dataset_id, folder in stored.items():
        if dataset_id.partition("/")[0] in names:
            yield _Row(dataset_id, "", None, None, folder, made=_creation_text(folder))


def _row(entry: Entry, folder: Path | None) -> _Row:
    made = _creation_text(folder)
    return _Row(
        entry.id, entry.title, entry.bytes, entry.time_limit, folder, entry.known_issues, entry.deprecated, made
    )


def _creation_text(folder: Path | None) -> str:
    """Return how a stored dataset was made of another one; empty for a download."""
    from datasets_rl.format.manifest import Manifest

    if folder is None:
        return ""
    try:
        manifest = Manifest.read(folder)
    except DatasetsRLError:
        return "damaged"
    if not manifest.history:
        return ""
    name = manifest.history[-1].get("recipe", {}).get("name", "")
    how = "derived" if split_derived(manifest.id)[1] else "preprocessed in place"
    if not folder.as_posix().endswith(f"/{manifest.id}"):
        how = f"made of {manifest.id}"
    return f"{how}: {name}".rstrip(": ")


def _nearest_ids(pattern: str, ids: Sequence[str]) -> list[str]:
    """Return what is spelled nearly as a pattern that matches no id: ids, or words of ids, which match some."""
    wanted = re.sub(r"[*?\[\]]+", "", pattern).lower().strip("-_/.@")
    words = {word: word for one in ids for word in re.split(r"[-_/.@]", one) if len(word) > 2 and not word.isdigit()}
    known = words | {one.partition("/")[2]: one for one in ids} | {one: one for one in ids}
    lower = {name.lower(): meant for name, meant in known.items()}
    found = (difflib.get_close_matches(text, lower, n=3, cutoff=0.7) for text in (wanted, wanted.rpartition("/")[2]))
    return list(dict.fromkeys(lower[one] for one in next(filter(None, found), [])))
