"""``rlds verify``: check stored datasets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datasets_rl.errors import IntegrityError

from ..errors import exit_code_of
from ..options import Outcome, Shell, Targets, apply_to_each, combined_exit_code, dataset_arguments, is_id
from ..output import Lines, Result, size_text

if TYPE_CHECKING:
    from datasets_rl.verification.run import Verification

GROUP = "Get"

_DOCUMENT = {"folder": None, "files": 0, "bytes": 0, "problems": (), "remarks": (), "checked": ()}
BROKEN = exit_code_of(IntegrityError("", ()))


def run(
    shell: Shell,
    datasets: Targets,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Also check every rule of TED, NaN, jumps, statistics, and the raw files if available.",
        ),
    ] = False,
) -> Result:
    """Check the manifests, and the sizes and checksums of all files, of stored datasets or of a mixture's datasets.

    Of a checkpoint of a replay buffer, given by its folder, every byte is checked.

    \b
    Examples:
      rlds verify demo/pendulum
      rlds verify d4rl/hopper-medium-v2 --deep
      rlds verify mix.toml ./my-dataset --json
      rlds verify ./runs/buffer
    """
    return check_datasets(shell, datasets, deep=deep)


def check_datasets(shell: Shell, datasets: Iterable[str], *, deep: bool) -> Result:
    """Return what the checks of datasets, given by id or path, found."""
    from datasets_rl.verification.run import verify

    def check(dataset: str) -> Verification:
        arguments = dataset_arguments(shell, dataset)
        if deep:
            shell.import_torch()
        return verify(**arguments, deep=deep)

    found = apply_to_each(shell, members_of(datasets), check)
    return Result(
        {"datasets": [_document(one) for one in found], "deep": deep},
        [Lines(tuple(line for one in found if one.value for line in _lines(shell, one.value)))],
        quiet=[one.item for one in found if one.value and one.value.problems],
        code=combined_exit_code([one.code or BROKEN * bool(one.value and one.value.problems) for one in found]),
    )


def members_of(datasets: Iterable[str]) -> list[str]:
    """Return datasets, with the members of a mixture in place of the file."""
    from datasets_rl.catalog.mixture_file import read_mixture

    found: list[str] = []
    for one in datasets:
        members = [member.dataset for member in read_mixture(Path(one))[0]] if one.endswith(".toml") else [one]
        found += (member for member in members if member not in found)
    return found


def _document(outcome: Outcome[Verification]) -> dict[str, Any]:
    document = {**outcome.document(_DOCUMENT), "intact": outcome.value is not None and not outcome.value.problems}
    return document if outcome.value is None else {**document, "id": outcome.value.id}


def _lines(shell: Shell, verification: Verification) -> Iterator[str]:
    count = f"{len(verification.problems)} problem{'s' * (len(verification.problems) > 1)}"
    verdict = count if verification.problems else "intact"
    yield f"{verification.id}: {verdict} ({verification.files} files, {size_text(verification.bytes)}, {verification.folder})"
    yield from (f"  problem: {text}" for text in verification.problems)
    yield from (f"  remark: {text}" for text in verification.remarks)
    if not verification.problems:
        yield from (f"  checked: {text}" for text in verification.checked)
    else:
        yield f"  next: {_remedy(shell, verification)}"


def _remedy(shell: Shell, verification: Verification) -> str:
    """Return how to repair this folder. Other folders of the same id may be intact."""
    from datasets_rl import store
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.sources import split_derived
    from datasets_rl.store.layout import OWN_SOURCE

    if verification.id == str(verification.folder):
        return "load another checkpoint: this checkpoint cannot be trusted"
    again = shell.rlds("download", verification.id, "--force")
    if (
        is_id(verification.id)
        and Manifest.read(verification.folder).id == verification.id  # else the folder is a copy of another dataset
        and store.dataset_paths(verification.id, settings=shell.settings).folder.resolve()
        == verification.folder.resolve()
    ):
        parent, derived = split_derived(verification.id)
        if derived:
            return (
                f"{shell.rlds('preprocess', parent, '--recipe', 'NAME', '--force')}: the dataset was made from {parent}"
            )
        if parent.startswith(f"{OWN_SOURCE}/") and not Manifest.read(verification.folder).raw:
            return f"delete {verification.folder}, and restore a copy, or record the dataset again: it cannot be downloaded"
        return f"{again}, then preprocess it again" if verification.preprocessed else again
    return f"delete {verification.folder}, and copy or download the dataset to that place again"
