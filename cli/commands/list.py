"""``rlds list``: every known id, and the facts to compare datasets by, without a request unless --remote is given."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from datasets_rl.sources import source_names
from datasets_rl.sources.purposes import PURPOSES

from .. import candidates
from ..errors import Explanation
from ..options import Shell, dataset_arguments, is_id, read_size
from ..output import Result, Table, count_text, short_count_text, size_text

if TYPE_CHECKING:
    from datasets_rl.catalog.listing import DatasetInfo, Query
    from datasets_rl.sources import Source
    from datasets_rl.store import DatasetPaths

NO_MATCH = 3
"""The exit code where no dataset matches: that of an unknown id."""
_MARKS = {"exact": "{}", "estimated": "~{}", "recorded": "{}*"}
_LEGEND = "~ estimated. * recorded once, the upstream may have changed. Others are exact"

GROUP = "Choose"


@dataclass(frozen=True)
class _Stored:
    """A stored dataset, and the sizes of its raw files and other versions."""

    info: DatasetInfo
    raw_bytes: int
    version_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {**self.info.to_json(), "raw_bytes": self.raw_bytes, "version_bytes": self.version_bytes}

    @property
    def is_unknown(self) -> bool:
        """Whether no command knows the id, because the folder was copied or renamed."""
        from datasets_rl import sources
        from datasets_rl.errors import UnknownIdError

        try:
            sources.find(self.info.id)
        except UnknownIdError:
            return True
        return False

    @property
    def notes(self) -> tuple[str, ...]:
        from datasets_rl.sources import Selection

        summary = self.info.summary
        part = ""
        with suppress(TypeError, ValueError):  # others may have written the manifest
            part = str(Selection.from_json(summary.selection)) if summary is not None and summary.selection else ""
        notes = (
            self.info.origin,
            f"not in the catalog, open the folder: {self.info.folder}" if self.is_unknown else "",
            f"part: {part}" if part else "",
            f"raw files kept: {size_text(self.raw_bytes)}" if self.raw_bytes else "",
            f"other versions: {size_text(self.version_bytes)}" if self.version_bytes else "",
        )
        return tuple(filter(None, notes))


def run(
    shell: Shell,
    pattern: Annotated[
        str, typer.Argument(metavar="[PATTERN]", help="Part of an id, or a glob.", autocompletion=candidates.all_ids)
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help=f"List only datasets of this source: {', '.join(source_names())}.",
            autocompletion=candidates.source_names,
        ),
    ] = "",
    env: Annotated[str, typer.Option(metavar="TEXT", help="Part of the environment's name, or a glob.")] = "",
    kind: Annotated[
        Literal["pixels", "state"] | None, typer.Option(help="List only datasets with such observations.")
    ] = None,
    action: Annotated[
        Literal["discrete", "continuous"] | None, typer.Option(help="List only datasets with such actions.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD", help="List only datasets with this tag, such as expert or locomotion. Can be repeated."
        ),
    ] = None,
    used_for: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            metavar="PURPOSE",
            help=f"List only datasets that papers use for a purpose: {', '.join(PURPOSES)}. Can be repeated.",
            autocompletion=lambda: list(PURPOSES),
        ),
    ] = None,
    downloaded: Annotated[
        bool, typer.Option("--downloaded", help="List only stored datasets, with sizes on disk.")
    ] = False,
    remote: Annotated[bool, typer.Option("--remote", help="Also ask the upstreams for the present ids.")] = False,
    max_size: Annotated[
        str, typer.Option(metavar="SIZE", help="List only downloads up to this size, such as 500MB or 2GiB.")
    ] = "",
    sort: Annotated[
        Literal["name", "size"], typer.Option(help="Sort by id, with the best matches first, or by size.")
    ] = "name",
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="List only the first N datasets.")] = None,
) -> Result:
    """List datasets, with sizes, spaces and environments.

    The network is used only with --remote. The exit code is 3 if no dataset matches.

    \b
    Examples:
      rlds list hopper --tag expert
      rlds list --env pong --kind pixels --action discrete
      rlds list --for goal-conditioned --for image
      rlds list --max-size 50MB --sort size
      rlds list --downloaded --json
    """
    from datasets_rl import sources
    from datasets_rl.catalog.listing import Query, candidates, known_purposes, search

    origins, errors = ((sources.get_source(source),), ()) if source else sources.importable_sources()
    for error in errors:
        shell.printer.note(f"left out: {error.message}")
    names = (source,) if source else sources.source_names()
    most = read_size(max_size) if max_size else None
    query = Query(pattern, env, kind, action, tuple(tag or ()), known_purposes(tuple(used_for or ())))
    more = _upstream_ids(shell, origins) if remote else None
    every = list(candidates(origins, names, shell.settings.home, stored_only=downloaded, more=more))
    matching = search(query, every)
    sized = attrgetter("disk_bytes" if downloaded else "download_bytes")
    rows = [one for one in matching if most is None or ((size := sized(one)) is not None and size <= most)]
    if most is not None and (unsized := sum(sized(one) is None for one in matching)):
        shell.printer.note(f"{unsized} of unknown size left out")
    if sort == "size":
        rows.sort(key=lambda one: (sized(one) is None, sized(one) or 0, one.id))
    shown = rows[:limit]
    if len(shown) < len(rows):
        shell.printer.note(f"{len(shown)} of {len(rows)} datasets shown")
    _report_damage(shell, shown)
    lay = _stored_result if downloaded else _catalog_result
    result = lay(shell, shown, len(rows), source)
    is_chosen = query != Query() or most is not None or not downloaded
    return result if rows or not is_chosen else _report_no_match(shell, result, query, every, matching)


def _report_damage(shell: Shell, shown: Sequence[DatasetInfo]) -> None:
    """Say what is wrong with the stored datasets that cannot be read, and what to do next."""
    from datasets_rl.errors import DatasetsRLError
    from datasets_rl.format.summary import Summary
    from datasets_rl.store.find import locate

    for one in shown:
        if one.damaged:
            try:
                Summary.read(locate(**dataset_arguments(shell, one.id if is_id(one.id) else str(one.folder))))
            except DatasetsRLError as error:
                explanation = shell.explained(error)
                shell.printer.note(
                    f"damaged: {one.id}: {explanation.why or explanation.what}, next: {explanation.hint}"
                )


def _upstream_ids(shell: Shell, origins: Sequence[Source]) -> dict[str, Sequence[str]]:
    from datasets_rl.downloading import planning

    return {one.name: planning.list_upstream_ids(one.name, settings=shell.settings) for one in origins}


def _catalog_result(shell: Shell, shown: Sequence[DatasetInfo], total: int, _: str) -> Result:
    header = ("id", "here", "size", "steps", "obs", "action", "episodes", "environment", "for", "license", "title")
    if shell.printer.json or shell.printer.quiet or shell.printer.width(sys.stdout) is None:
        table = Table(header, (), listing=True, piped=tuple(map(_piped_cells, shown)))
    else:
        rows = tuple(_catalog_cells(one) for one in shown)
        marked = any(cell[:1] == "~" or cell[-1:] == "*" for row in rows for cell in row[2:7])
        table = Table(header, rows, listing=True, legend=_LEGEND if marked else "")
    # Building the descriptions of all datasets takes as long as the rest.
    data = {"datasets": [one.to_json() for one in shown], "total": total} if shell.printer.json else {}
    return Result(data, [table], quiet=[one.id for one in shown])


def _issues_text(dataset: DatasetInfo) -> str:
    return count_text(len(dataset.known_issues), "known issue") if dataset.known_issues else ""


def _catalog_cells(dataset: DatasetInfo) -> tuple[str, ...]:
    notes = (dataset.origin, "deprecated" if dataset.deprecated else "", _issues_text(dataset), dataset.title)
    return (
        dataset.id,
        "yes" if dataset.folder is not None else "-",
        _marked(dataset, "bytes", dataset.download_bytes, lambda size: "-" if size is None else size_text(size)),
        _marked(dataset, "steps", dataset.steps, short_count_text),
        *_space_cells(dataset, piped=False),
        _marked(dataset, "episodes", dataset.episodes, short_count_text),
        dataset.environment or "-",
        ", ".join(dataset.used_for) or "-",
        _license_text(dataset.license),
        "; ".join(filter(None, notes)),
    )


def _piped_cells(dataset: DatasetInfo) -> tuple[str, ...]:
    """Return the cells of the listing in full, with plain numbers, and the accuracy of each."""
    notes = filter(None, (dataset.origin, "deprecated" if dataset.deprecated else "", _issues_text(dataset)))
    return (
        dataset.id,
        "yes" if dataset.folder is not None else "-",
        _plain(dataset.download_bytes),
        _plain(dataset.steps),
        *_space_cells(dataset, piped=True),
        _plain(dataset.episodes),
        dataset.environment or "-",
        ", ".join(dataset.used_for) or "-",
        dataset.license or "-",
        dataset.title,
        ", ".join(f"{name} {basis.kind}" for name, basis in dataset.basis.items()),
        ", ".join(notes),
    )


def _marked(dataset: DatasetInfo, name: str, value: int | None, write: Callable[[int | None], str]) -> str:
    basis = dataset.basis.get(name)
    return write(value) if basis is None else _MARKS[basis.kind].format(write(value))


def _license_text(license_: str) -> str:
    """Return the name of a license, or a dash for a license that is not stated or is described by a sentence."""
    name = re.split(r",| by | that ", license_)[0]
    return "-" if not name or "not stated" in license_ or name.startswith("that of") else name


def _stored_result(shell: Shell, shown: Sequence[DatasetInfo], total: int, source: str) -> Result:
    from datasets_rl import store
    from datasets_rl.store.usage import kept_bytes

    stored = []
    for one in shown:
        paths = store.paths_of(one.folder) if one.folder is not None else None
        kept = None if paths is None else kept_bytes(paths)
        stored.append(_Stored(one, *((0, 0) if kept is None else (kept.raw, kept.versions))))
    unfinished = {} if total != len(shown) else dict(_unfinished(shell, source, {one.id for one in shown}))
    sums = {
        "disk_bytes": sum(one.info.disk_bytes or 0 for one in stored),
        "raw_bytes": sum(one.raw_bytes for one in stored),
        "version_bytes": sum(one.version_bytes for one in stored),
        "unfinished_bytes": sum(unfinished.values()),
        "steps": sum(one.info.steps or 0 for one in stored),
        "episodes": sum(one.info.episodes or 0 for one in stored),
    }
    _print_totals(shell, stored, sums, unfinished)
    header = ("id", "on disk", "steps", "episodes", "obs", "action", "notes")
    rows, piped = (tuple(_stored_cells(one, piped=to_pipe) for one in stored) for to_pipe in (False, True))
    data = {
        "datasets": [one.to_json() for one in stored],
        "total": total,
        "sums": sums,
        "unfinished": [{"id": name, "bytes": size} for name, size in unfinished.items()],
    }
    return Result(data, [Table(header, rows, listing=True, piped=piped)], quiet=[one.id for one in shown])


def _stored_cells(stored: _Stored, *, piped: bool) -> tuple[str, ...]:
    dataset = stored.info
    return (
        dataset.id,
        _plain(dataset.disk_bytes) if piped else size_text(dataset.disk_bytes),
        *(_plain(count) if piped else short_count_text(count) for count in (dataset.steps, dataset.episodes)),
        *_space_cells(dataset, piped=piped),
        "; ".join(stored.notes),
    )


def _plain(count: int | None) -> str:
    return "-" if count is None else str(count)


def _space_cells(dataset: DatasetInfo, *, piped: bool) -> tuple[str, ...]:
    """Return the observation and the action, in full for a pipe."""
    spaces = (dataset.observation, dataset.action)
    return tuple("-" if one is None else one.text if piped else one.short for one in spaces)


def _print_totals(shell: Shell, stored: Sequence[_Stored], sums: dict[str, int], unfinished: dict[str, int]) -> None:
    for name, size in unfinished.items():
        again = shell.rlds("download", name)
        shell.printer.note(
            f"unfinished: {name}, {size_text(size)}; `{again}` completes the dataset, `rlds remove` deletes it"
        )
    if stored:
        counts = (count_text(sums["steps"], "step"), count_text(sums["episodes"], "episode"))
        shell.printer.note(f"total: {size_text(sums['disk_bytes'])} on disk, {', '.join(counts)}")
        besides = [
            f"{size_text(sums[name])} of {text}"
            for name, text in (("raw_bytes", "raw files"), ("version_bytes", "other versions"))
            if sums[name]
        ]
        if besides:
            shell.printer.note(f"besides: {', '.join(besides)}")
    else:
        shell.printer.note(f"no dataset is stored in {shell.settings.home}")


def _unfinished(shell: Shell, source: str, stored: set[str]) -> Iterator[tuple[str, int]]:
    """Yield the datasets that are not stored, but of which files are there: interrupted downloads, and raw files."""
    from datasets_rl import disk, sources, store

    for name in (source,) if source else sources.source_names():
        for paths in store.dataset_places(shell.settings.home / name):
            size = sum(map(disk.tree_bytes, _resumable(paths)))
            if f"{name}/{paths.name}" not in stored and not paths.exists and size:
                yield f"{name}/{paths.name}", size


def _resumable(paths: DatasetPaths) -> Iterator[Path]:
    """Yield what a command would complete: builds with a journal or fetched files, and raw files."""
    from datasets_rl import disk, store

    if not store.has_only_copy(paths):
        yield from disk.claims_of(paths.raw)
    # Without a journal nothing can be completed.
    yield from (folder for folder in paths.builds() if (folder / "journal.jsonl").exists())


def _report_no_match(
    shell: Shell, result: Result, query: Query, every: Sequence[DatasetInfo], matching: Sequence[DatasetInfo]
) -> Result:
    """Report that nothing matches, with what is spelled nearly as the query."""
    near = [] if matching else _nearest(query, every)
    meant = (
        f"did you mean {', '.join(near)}?"
        if near
        else "`rlds list` shows every dataset, `rlds list --help` the filters"
    )
    asked = (
        ", ".join(filter(None, (query.pattern, query.env, query.kind, query.action, *query.tags, *query.purposes)))
        or "the filters"
    )
    what = f"no dataset matches {asked}"
    why = "each dataset is left out by the pattern or by a filter" if every else "no dataset is stored"
    explanation = Explanation("NoMatch", what, why, meant, NO_MATCH)
    shell.printer.failed(shell.command, explanation, document=False)
    return Result({**result.data, "nearest": near}, code=NO_MATCH)


def _nearest(query: Query, every: Sequence[DatasetInfo]) -> list[str]:
    """Return what is spelled nearly as the first part of a query that no dataset matches."""
    from datasets_rl.catalog.listing import Query

    if query.pattern and not any(Query(query.pattern).accepts(one) for one in every):
        return _nearest_ids(query.pattern, [one.id for one in every])
    if query.env and not any(Query(env=query.env).accepts(one) for one in every):
        return _nearest_words(query.env, [one.environment for one in every])
    for tag in query.tags:
        if not any(Query(tags=(tag,)).accepts(one) for one in every):
            return _nearest_words(tag, [word for one in every for word in one.tags])
    return []


def _nearest_words(text: str, words: Sequence[str]) -> list[str]:
    by_lower = {word.lower(): word for word in words if word}
    return [by_lower[one] for one in difflib.get_close_matches(text.lower(), by_lower, n=3, cutoff=0.5)]


def _nearest_ids(pattern: str, ids: Sequence[str]) -> list[str]:
    """Return what is spelled nearly as a pattern that matches no id: ids, or words of ids, which match some."""
    wanted = re.sub(r"[*?\[\]]+", "", pattern).lower().strip("-_/.@")
    words = {word: word for one in ids for word in re.split(r"[-_/.@]", one) if len(word) > 2 and not word.isdigit()}
    known = words | {one.partition("/")[2]: one for one in ids} | {one: one for one in ids}
    lower = {name.lower(): meant for name, meant in known.items()}
    found = (difflib.get_close_matches(text, lower, n=3, cutoff=0.7) for text in (wanted, wanted.rpartition("/")[2]))
    return list(dict.fromkeys(lower[one] for one in next(filter(None, found), [])))
