"""``rlds init``: a description of the user's own files, and what the files give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datasets_rl.errors import InvalidArgumentError, NotWritableError

from ..evidence_page import evidence_blocks, evidence_json
from ..options import Shell
from ..output import Block, Lines, Result, Table, count_text, number_text, value_text

if TYPE_CHECKING:
    from datasets_rl.sources.local.files import FilesCheck, ShownEpisode
    from datasets_rl.sources.local.template import Draft

GROUP = "Get"
_LONG = (1e5, 1e12)
"""Sizes of numbers, such as times, of which late digits are shown."""
_SHORT = 4
"""Elements of a vector that are shown. `--json` has all."""


def run(
    shell: Shell,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A file of arrays, or a folder of such files.")],
    check: Annotated[
        bool, typer.Option("--check", help="Read all files, and show what a download would store. Nothing is written.")
    ] = False,
    print_: Annotated[bool, typer.Option("--print", help="Print the description instead of writing the file.")] = False,
) -> Result:
    """Write a dataset.toml that describes your own files, with a question where only you know the answer.

    The file has what is certain, with the shapes and the first values of the arrays. An existing file is never
    replaced. With --check, the files are read as the dataset.toml describes them or, without one, as they show
    themselves: episodes, lengths, first and last rows, and the largest jumps between observations, which show a wrong
    boundary.

    \b
    Examples:
      rlds init ~/data/demos.npz
      rlds init ~/data/runs --print
      rlds init ~/data/runs --check --json
    """
    if check and print_:
        raise InvalidArgumentError("--check writes no description, expected --check or --print alone")
    return _check_result(shell, path) if check else _draft_result(shell, path, prints=print_)


def _draft_result(shell: Shell, path: Path, *, prints: bool) -> Result:
    from datasets_rl.disk import create_file, expand_home
    from datasets_rl.sources.local.description import FILE
    from datasets_rl.sources.local.files import draft_description

    target = expand_home(path).absolute()
    target = (target if target.is_dir() else target.parent) / FILE
    if not prints and target.exists():
        raise InvalidArgumentError(
            f"{target} is not replaced: it exists",
            hint=f"edit the file, and see what it gives: {shell.rlds('init', path, '--check')}. "
            f"{shell.rlds('init', path, '--print')} prints a new one",
        )
    draft = draft_description(path)
    text = f"{draft.text}\n"
    if not prints:
        try:
            create_file(target, text.encode())
        except NotWritableError as error:
            hint = (
                f"print the description, and put it beside a copy of the files: {shell.rlds('init', path, '--print')}"
            )
            raise NotWritableError(target, error.message.rpartition(": ")[2], hint=hint) from error
    data = {"file": None if prints else target, "toml": text, "certain": draft.is_certain, "questions": draft.questions}
    shown = Lines((draft.text if prints else str(target),))
    return Result(
        data, [shown], quiet=list(shown.lines), asides=[*_next_blocks(shell, path, target, draft, prints=prints)]
    )


def _next_blocks(shell: Shell, path: Path, target: Path, draft: Draft, *, prints: bool) -> Iterator[Block]:
    if draft.questions:
        yield Lines(draft.questions, title="questions")
    steps = [f"save the text as {target}"] if prints else []
    steps += [f"answer the questions in the comments of {target.name}"] if draft.questions else []
    check = shell.rlds("init", path, "--check")
    download = shell.rlds("download", target.parent)
    yield Lines((*steps, f"see what the files give: {check}", f"convert the files: {download}"), title="next")


def _check_result(shell: Shell, path: Path) -> Result:
    from datasets_rl.progress import waiting
    from datasets_rl.sources.local.files import check_files, described_path

    found = described_path(path)
    with waiting(f"reading {found}", show=shell.settings.progress):
        check = check_files(found)
    data = {
        "read_as": evidence_json(check.description),
        "steps": check.steps,
        "episodes": check.episodes,
        "lengths": check.lengths,
        "fields": [
            {"key": ".".join(one.key), "dtype": _dtype_text(one), "shape": list(one.shape)} for one in check.columns
        ],
        "first_episode": asdict(check.first),
        "last_episode": asdict(check.last),
        "decisions": [{"rule": one.rule, "text": one.text, "count": one.count} for one in check.decisions],
        "jumps": [asdict(one) for one in check.jumps],
    }
    quiet = [f"{check.steps}", f"{check.episodes}"]
    return Result(data, list(_check_blocks(check)), quiet=quiet)


def _dtype_text(column: Any) -> str:
    return "text" if column.text else column.dtype.name


def _check_blocks(check: FilesCheck) -> Iterator[Block]:
    lengths = " to ".join(f"{check.lengths[name]:,}" for name in ("min", "max"))
    facts = (
        ("steps", f"{check.steps:,}"),
        ("episodes", f"{check.episodes:,}"),
        ("lengths", f"{lengths}, median {check.lengths['median']:,g}"),
    )
    yield from evidence_blocks(check.description, facts)
    columns = tuple((".".join(one.key), _dtype_text(one), str(list(one.shape))) for one in check.columns)
    yield Table(("key", "dtype", "shape of a step"), columns, title="fields")
    yield _episode_table(check.first)
    if check.last.number != check.first.number:
        yield _episode_table(check.last)
    if check.decisions:
        yield Table(
            ("count", "decision"),
            tuple((f"{one.count:,}", f"{one.rule}: {one.text}") for one in check.decisions),
            title="decisions",
        )
    jumps = tuple(
        (
            one.key,
            number_text(one.median),
            number_text(jump.difference),
            f"{jump.episode:,}",
            f"{jump.step:,}",
            jump.file,
        )
        for one in check.jumps
        for jump in one.largest
    )
    if jumps:
        title = "largest jumps between consecutive observations of an episode"
        yield Table(("observation", "median", "jump", "episode", "step", "file"), jumps, title=title)


def _episode_table(episode: ShownEpisode) -> Table:
    keys = list(episode.rows[0].values)
    rows = [(f"{row.step:,}", *_cells(row.values, keys)) for row in episode.rows]
    if episode.final is not None:
        rows.append(("final", *_cells(episode.final, keys)))
    title = f"episode {episode.number:,}, {count_text(episode.steps, 'step')}"
    return Table(("step", *keys), tuple(rows), title=title)


def _cells(values: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    return [_cell(values[key]) if key in values else "" for key in keys]


def _cell(value: Any) -> str:
    if isinstance(value, float) and _LONG[0] <= abs(value) < _LONG[1]:
        return f"{value:.12g}"
    if not isinstance(value, list):
        return value_text(value)
    shown = ", ".join(map(_cell, value[:_SHORT]))
    if len(value) == 1:
        return shown
    return f"[{shown}{', ...' if len(value) > _SHORT else ''}]"
