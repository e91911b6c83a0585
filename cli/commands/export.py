"""``rlds export``: stored datasets in the formats of other projects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from datasets_rl.errors import InvalidArgumentError
from datasets_rl.exporting.formats import FORMATS

from ..options import Outcome, Shell, TargetsOrNone, apply_to_each, combined_exit_code, dataset_arguments
from ..output import Block, Facts, Lines, Result, Table, size_text, steps_text

if TYPE_CHECKING:
    from datasets_rl.exporting import Content, ExportPlan

GROUP = "Share"

_USAGE = 2
_DOCUMENT = {
    **dict.fromkeys(("path", "format", "steps", "episodes", "bytes")),
    "present": False,
    "problems": (),
    "losses": (),
}


def run(
    shell: Shell,
    datasets: TargetsOrNone = None,
    to: Annotated[
        str,
        typer.Option("--to", metavar="FORMAT", help=f"Format: {', '.join(FORMATS[:-1])} or {FORMATS[-1]}."),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="PATH",
            help="File or folder to write; for several datasets, the folder that holds their exports.",
        ),
    ] = None,
    lossy: Annotated[bool, typer.Option("--lossy", help="Leave out what the format cannot hold.")] = False,
    fps: Annotated[
        float | None,
        typer.Option(
            "--fps", metavar="NUMBER", help="Steps per second, for lerobot. By default the number in the metadata."
        ),
    ] = None,
    images: Annotated[
        str,
        typer.Option(
            "--images",
            metavar="FORM",
            help="How lerobot has images: encoded or video. By default, stored videos stay videos, and others are encoded.",
        ),
    ] = "",
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an existing file or export.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be written or lost, and write nothing.")
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="List the formats.")] = False,
) -> Result:
    """Write stored datasets in the format of another project. Prints the paths.

    \b
    If the format cannot hold a part of the data, nothing is written unless --lossy is given.
    The file or folder appears when it is complete. Run the same command again to resume it.

    \b
    Examples:
      rlds export demo/pendulum --to hdf5
      rlds export demo/pendulum --to minari --out ./pendulum --dry-run
      rlds export d4rl/hopper-medium-v2 d4rl/walker2d-medium-v2 --to d3rlpy --lossy --out ./buffers
    """
    if show:
        return _list_formats()
    if not datasets or not to:
        missing = "dataset" if not datasets else "format"
        hint = f"{shell.rlds('export', 'ID', '--to', 'FORMAT')}, and {shell.rlds('export', '--list')} shows the formats"
        raise InvalidArgumentError(f"no {missing} is named", hint=hint)
    from datasets_rl.exporting import plan_export
    from datasets_rl.exporting.formats import get_format

    get_format(to).check_library()
    targets = _targets(datasets, to, out)
    if dry_run:
        found = apply_to_each(
            shell, datasets, lambda one: plan_export(_content(shell, one, fps, images), to, targets[one])
        )
        return _planned(found, lossy=lossy)
    outcomes = apply_to_each(
        shell,
        datasets,
        lambda one: _export(shell, _content(shell, one, fps, images), to, targets[one], force=force, lossy=lossy),
    )
    paths = [str(one.value.path) for one in outcomes if one.value]
    return Result(
        {"exports": [one.document(_DOCUMENT) for one in outcomes], "dry_run": False},
        [Lines(tuple(paths))],
        quiet=paths,
        code=combined_exit_code([one.code for one in outcomes]),
    )


def _list_formats() -> Result:
    from datasets_rl.exporting.formats import get_format

    rows = [(name, get_format(name).title, get_format(name).extra) for name in FORMATS]
    documents = [{"name": name, "title": title, "extra": extra or None} for name, title, extra in rows]
    return Result({"formats": documents}, [Table(("format", "output", "needs the extra"), tuple(rows))], quiet=FORMATS)


def _targets(datasets: list[str], to: str, out: Path | None) -> dict[str, Path | None]:
    """Return the path of each export. None for the default path."""
    from datasets_rl.exporting.run import default_path

    if out is None or len(datasets) == 1:
        return dict.fromkeys(datasets, out)
    return {
        one: out / default_path(one.rstrip("/").rpartition("/")[2] if _is_path(one) else one, to) for one in datasets
    }


def _is_path(text: str) -> bool:
    return text.startswith((".", "/", "~"))


def _content(shell: Shell, dataset: str, fps: float | None, images: str) -> Content:
    from datasets_rl.exporting import Content
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.store.find import locate

    if dataset.endswith(".toml"):
        raise _mixture_error(shell, dataset)
    return Content(StoredDataset(locate(**dataset_arguments(shell, dataset))), fps=fps, images=images)


def _mixture_error(shell: Shell, dataset: str) -> InvalidArgumentError:
    """Return the error for a mixture: weights and transforms exist only while batches are drawn."""
    from datasets_rl.catalog.mixture_file import read_mixture

    words = [one.dataset for one in read_mixture(Path(dataset))[0]]
    return InvalidArgumentError(
        f"{dataset} is a mixture, with shares and transforms that exist only in batches",
        hint=f"export its members: {shell.rlds('export', *words, '--to', 'FORMAT', '--out', 'DIR')}",
    )


def _export(shell: Shell, content: Content, to: str, out: Path | None, *, force: bool, lossy: bool) -> ExportPlan:
    from datasets_rl.exporting import plan_export, run_export

    plan = plan_export(content, to, out)
    run_export(content, to, out, force=force, lossy=lossy, show=shell.settings.progress)
    presence = "already there, " if plan.present and not force else ""
    shell.printer.note(f"{plan.path.name}: {presence}{steps_text(plan)}, in the format {to}")
    for loss in plan.losses:
        shell.printer.note(f"{plan.path.name}: {loss}")
    return plan


def _planned(found: list[Outcome[ExportPlan]], *, lossy: bool) -> Result:
    blocks = [block for one in found if one.value for block in _plan_blocks(one.item, one.value)]
    codes = [one.code for one in found]
    refused = [bool(one.value and (one.value.problems or (one.value.losses and not lossy))) for one in found]
    code = combined_exit_code([code or (_USAGE if no else 0) for code, no in zip(codes, refused, strict=True)])
    quiet = [str(one.value.path) for one in found if one.value and not one.value.present]
    return Result(
        {"exports": [one.document(_DOCUMENT) for one in found], "dry_run": True}, blocks, quiet=quiet, code=code
    )


def _plan_blocks(dataset: str, plan: ExportPlan) -> Iterator[Block]:
    facts = (
        ("path", str(plan.path)),
        ("to do", "nothing: already there" if plan.present else ""),
        ("steps", f"{plan.steps:,}"),
        ("episodes", f"{plan.episodes:,}"),
        ("values stored", size_text(plan.bytes)),
        ("lost", "" if plan.losses or plan.problems else "nothing"),
    )
    yield Facts(facts, title=f"{dataset} to {plan.format}")
    if plan.problems:
        yield Lines(plan.problems, title="cannot be written")
    if plan.losses:
        yield Lines(plan.losses, title="lost, so the export needs --lossy")
