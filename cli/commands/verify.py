"""``rlds verify``: is a stored dataset what it should be?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datasets_rl.errors import IntegrityError

from ..errors import code_of
from ..options import Outcome, Shell, Targets, dataset_arguments, each, exit_code, is_id
from ..output import Lines, Result, size_text

if TYPE_CHECKING:
    from datasets_rl.verification import Verification

BROKEN = code_of(IntegrityError("", ()))


def run(
    shell: Shell,
    datasets: Targets,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Also every rule of TED, NaN, jumps, statistics, and the raw files where they are available."
        ),
    ] = False,
) -> Result:
    """Check stored datasets: the manifest, and sizes and checksums of all files.

    \b
    Examples:
      rlds verify demo/pendulum
      rlds verify d4rl/hopper-medium-v2 --deep
      rlds verify ./my-dataset --json
    """
    from datasets_rl.verification import verify

    found = each(shell, datasets, lambda one: verify(**dataset_arguments(shell, one), deep=deep))
    return Result(
        {"datasets": [_document(one) for one in found], "deep": deep},
        [Lines(tuple(line for one in found if one.value for line in _lines(shell, one.value)))],
        quiet=[one.item for one in found if one.value and one.value.problems],
        code=exit_code([_code(one) for one in found]),
    )


def _code(one: Outcome[Verification]) -> int:
    if one.error is not None:
        return one.error.code
    return BROKEN if one.value is None or one.value.problems else 0


def _document(one: Outcome[Verification]) -> dict[str, Any]:
    found = one.value
    return {
        "id": found.id if found else one.item,
        "folder": str(found.folder) if found else None,
        "intact": found is not None and not found.problems,
        "files": found.files if found else 0,
        "bytes": found.bytes if found else 0,
        "problems": list(found.problems) if found else [],
        "remarks": list(found.remarks) if found else [],
        "checked": list(found.checked) if found else [],
        "error": one.error_json(),
    }


def _lines(shell: Shell, found: Verification) -> Iterator[str]:
    count = f"{len(found.problems)} problem{'s' * (len(found.problems) > 1)}"
    verdict = count if found.problems else "intact"
    yield f"{found.id}: {verdict} ({found.files} files, {size_text(found.bytes)}, {found.folder})"
    yield from (f"  problem: {text}" for text in found.problems)
    yield from (f"  remark: {text}" for text in found.remarks)
    if not found.problems:
        yield from (f"  checked: {text}" for text in found.checked)
    else:
        yield f"  next: {_remedy(shell, found)}"


def _remedy(shell: Shell, found: Verification) -> str:
    """Return what makes this folder whole again; other folders of the same id may be intact."""
    from datasets_rl import store

    again = shell.rlds("download", found.id, "--force")
    if (
        is_id(found.id)
        and store.dataset_paths(found.id, settings=shell.settings).folder.resolve() == found.folder.resolve()
    ):
        return f"{again}, then preprocess it again" if found.preprocessed else again
    return f"delete {found.folder}, and copy or download the dataset to that place again"
