"""``rlds digest``: what the catalog, a stored copy and each address state about the bytes of a file."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..options import Ids, Outcome, Shell, apply_to_each, combined_exit_code
from ..output import Block, Lines, Result, Table

if TYPE_CHECKING:
    from datasets_rl.downloading.digests import FileDigests

GROUP = "Maintain"


def run(shell: Shell, ids: Ids) -> Result:
    """Print size and sha256 of a dataset's files, as each address states them, and the catalog's entry.

    Nothing is downloaded: the hub states the digests of its files, and web servers the sizes. A stored copy, whose
    digest was recorded, is compared too. The exit code is 5 if two places differ.

    \b
    Examples:
      rlds digest d4rl/kitchen-complete-v0
      rlds digest d4rl/hopper-medium-v2 --json
      rlds digest d4rl/kitchen-partial-v0 d4rl/kitchen-mixed-v0 -q
    """
    from datasets_rl.downloading.digests import file_digests
    from datasets_rl.errors import IntegrityError

    def digests(dataset_id: str) -> list[FileDigests]:
        found = file_digests(dataset_id, settings=shell.settings)
        for file in found:
            if not file.agree:
                stated = [f"{one.origin}: {_text(one.size)} bytes, sha256 {_text(one.sha256)}" for one in file.reported]
                raise IntegrityError(
                    file.path, stated, hint="an address serves another file: name the right address as a mirror"
                )
        return found

    outcomes = apply_to_each(shell, ids, digests)
    files = [file for one in outcomes for file in one.value or ()]
    entries = [entry for entry in map(_entry_line, files) if entry]
    blocks: list[Block] = [
        Table(
            ("from", "size", "sha256", "problem"),
            tuple((one.origin, _text(one.size), _text(one.sha256), one.problem) for one in file.reported),
            title=f"{file.dataset_id}: {file.path}",
        )
        for file in files
    ]
    if entries:
        blocks.append(Lines(tuple(entries), title="entries for the catalog"))
    return Result(
        {"datasets": [_document(one) for one in outcomes]},
        blocks,
        quiet=entries,
        code=combined_exit_code([one.code for one in outcomes]),
    )


def _document(outcome: Outcome[list[FileDigests]]) -> dict[str, Any]:
    files = [{**asdict(file), "entry": file.entry} for file in outcome.value or ()]
    return {"id": outcome.item, "files": files, "error": outcome.error}


def _entry_line(file: FileDigests) -> str:
    """Return the line of a catalog's JSON. Empty if the digest is not known."""
    name = file.dataset_id.partition("/")[2]
    return f"{json.dumps(name)}: {json.dumps(file.entry)}" if file.entry else ""


def _text(value: int | str | None) -> str:
    return "-" if value is None else str(value)
