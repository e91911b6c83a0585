"""``rlds download``: from an id to a verified dataset on disk."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from datasets_rl.errors import IntegrityError, InvalidArgumentError

from ..errors import DISK_FULL
from ..options import Ids, Outcome, RayAddress, Shell, apply_to_each, combined_exit_code, is_id, make_engine, read_size
from ..output import Block, Facts, Lines, Result, count_text, size_text, steps_text
from ..remedies import spell_action
from ..source_options import source_choices, source_options
from .config import setting_text

if TYPE_CHECKING:
    from datasets_rl.downloading import DownloadOptions
    from datasets_rl.downloading.planning import Plan
    from datasets_rl.downloading.run import Downloaded
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.sources import Entry

__all__ = ["GROUP", "run", "source_options"]

GROUP = "Get"


_SHOWN_URLS = 12
_DOCUMENT: dict[str, Any] = {
    **dict.fromkeys(("folder", "steps", "episodes", "bytes")),
    "present": False,
    "selection": {},
    **dict.fromkeys(("history", "known_issues", "spikes", "decisions"), ()),
}
_PLAN = {**dict.fromkeys(("folder", "wire_bytes", "stored_bytes", "peak_bytes", "free_bytes")), "present": False}


def run(
    shell: Shell,
    ids: Ids,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print what would be fetched, and where the dataset would be stored. Fetch nothing."
        ),
    ] = False,
    from_local: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Read this raw file, or this folder of raw files, instead of a download."),
    ] = None,
    mirror: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Base address to try first. Can be repeated.")
    ] = None,
    no_hash_check: Annotated[
        bool, typer.Option("--no-hash-check", help="Accept a file with another digest. The manifest records this.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            "-f",
            help="Convert the dataset again. The present version stays until the new version is complete.",
        ),
    ] = False,
    keep_raw: Annotated[bool, typer.Option("--keep-raw", help="Also keep the upstream's files.")] = False,
    raw_only: Annotated[
        bool, typer.Option("--raw-only", help="Fetch and check the upstream's files, but do not convert the files.")
    ] = False,
    limit_rate: Annotated[
        str, typer.Option(metavar="SIZE", help="Maximal bytes per second of all connections together, such as 5MB.")
    ] = "",
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="Number of connections, and of processes.")
    ] = None,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Convert on this machine, or on a Ray cluster.")
    ] = "local",
    address: RayAddress = "",
    episodes: Annotated[
        str, typer.Option(metavar="RANGE", help="Only these episodes, such as 0:100, 0:100:2 or 1,5,9.")
    ] = "",
    keys: Annotated[
        str, typer.Option("--keys", "-k", metavar="KEY,...", help="Only these fields, such as observation,action.")
    ] = "",
    max_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Only the first files that fit into this size, such as 20GB.")
    ] = "",
    include: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only the upstream's files that match. Can be repeated.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Not the upstream's files that match. Can be repeated.")
    ] = None,
    **choices: str,
) -> Result:
    """Fetch, convert and check datasets. Prints the folders.

    Run the same command again to resume. Options such as --episodes and --keys fetch a part of a dataset. A stored part
    grows when another part is requested.

    \b
    Examples:
      rlds download d4rl/hopper-medium-v2
      rlds download d4rl/hopper-medium-v2 d4rl/walker2d-medium-v2 --dry-run
      rlds download d4rl/door-human-v1 --from-local ~/Downloads/door-human-v1.hdf5
      rlds download minari/D4RL/door/expert-v2 --episodes 0:100 --keys observation,action
    """
    from datasets_rl.downloading import DownloadOptions
    from datasets_rl.sources import Selection

    names = tuple(name.strip() for name in keys.split(",") if name.strip())
    if keys and not names:
        raise InvalidArgumentError(f"--keys {keys!r} names no field, expected names such as observation,action")
    selection = Selection(
        episodes=episodes,
        keys=names,
        max_size=read_size(max_size) if max_size else None,
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        options=source_choices(choices).options,
    )
    settings = shell.settings if jobs is None else dataclasses.replace(shell.settings, jobs=jobs)
    if from_local is not None and len(set(ids)) > 1 and not from_local.is_dir():
        raise InvalidArgumentError(
            f"--from-local {from_local} is a single file for {len(set(ids))} ids, expected a single id, or a folder"
        )
    options = DownloadOptions(
        force=force,
        from_local=from_local,
        mirrors=tuple(mirror or ()),
        hash_check=not no_hash_check,
        keep_raw=keep_raw,
        raw_only=raw_only,
        limit_rate=read_size(limit_rate) if limit_rate else None,
        selection=selection,
        engine=make_engine(engine, address),
        settings=settings,
    )
    # Unknown ids come first: an error comes before hours of work on the others.
    ids = sorted(ids, key=is_id)
    if dry_run:
        return _dry_run(shell, ids, options)
    _note_project_settings(shell)
    found = apply_to_each(shell, ids, lambda one: _download(shell, one, options))
    folders = [str(one.value.folder) for one in found if one.value]
    return Result(
        {"datasets": [one.document(_DOCUMENT) for one in found], "dry_run": False},
        [Lines(tuple(folders))],
        quiet=folders,
        code=combined_exit_code([one.code for one in found]),
    )


def _note_project_settings(shell: Shell) -> None:
    """Report the folder and the mirrors that a project's file sets."""
    from datasets_rl.settings import NEED_TRUST, project_file, setting_values

    values = setting_values()
    for key in NEED_TRUST:
        is_given = key == "home" and shell.root is not None
        if values[key].origin.startswith(f"{project_file()}:") and not is_given:
            shell.printer.note(f"{key} is {setting_text(values[key].value)}, by {values[key].origin}")


def _download(shell: Shell, dataset_id: str, options: DownloadOptions) -> Downloaded:
    from datasets_rl.downloading.run import run_download

    try:
        found = run_download(dataset_id, options)
    except IntegrityError as error:
        if options.from_local is not None:
            edited = ", or accept this file with --no-hash-check" if options.hash_check else ""
            error.hint = f"give another file with --from-local{edited}"
        raise
    if found.manifest is not None:
        _note_result(shell, found.id, found.manifest, present=found.present)
        _note_digests(shell, found.manifest, found.entry, present=found.present)
    return found


def _note_result(shell: Shell, dataset_id: str, manifest: Manifest, *, present: bool) -> None:
    """Report what the user should know before training."""
    from datasets_rl.sources import Selection

    counts = f"{steps_text(manifest)}, {size_text(manifest.bytes)}"
    if manifest.selection:
        counts += f", a part: {spell_action(Selection.from_json(manifest.selection).call())}"
    shell.printer.note(f"{dataset_id}: {'already there, ' if present else ''}{counts}")
    if evidence := manifest.metadata.get("layout_evidence"):
        shell.printer.note(f"  its files have the layout of {manifest.metadata['layout']}: {evidence}")
    if manifest.history:
        shell.printer.note("  the dataset was preprocessed, as `rlds info` says, and --force makes it anew")
    for name, text in manifest.images.items():
        shell.printer.note(f"  images of {name}: {'pixels' if text == 'raw' else text}")
    for fault in manifest.known_issues:
        shell.printer.note(f"  known issue: {fault}")
    for one in () if present else manifest.decisions:
        shell.printer.note(f"  decision {one.rule} ({one.count:,}): {one.text}")
    for name, count in manifest.not_finite.items():
        values = "value of the source is" if count == 1 else "values of the source are"
        shell.printer.note(f"  {name}: {count:,} {values} NaN or infinite, and kept")
    for spike in manifest.spikes:
        shell.printer.note(f"  spike, kept: {spike}")


def _note_digests(shell: Shell, manifest: Manifest, entry: Entry, *, present: bool) -> None:
    """Say which raw files were not compared with a known digest."""
    from datasets_rl.downloading.copies import copied_files

    if any(file.checked == "skipped" for file in manifest.raw):
        shell.printer.note("  its raw files were not compared with the known digests (--no-hash-check)")
    recorded = sum(file.checked == "recorded" for file in manifest.raw)
    if recorded and not present:
        share = f"{recorded:,} of {count_text(len(manifest.raw), 'file')}"
        shell.printer.note(f"  no digest is known of {share}: the sha256 was recorded, not compared")
    for file in copied_files(manifest, entry):
        shell.printer.note(f"  {file.url} is a copy by others, and was compared with the catalog")


def _dry_run(shell: Shell, ids: list[str], options: DownloadOptions) -> Result:
    from datasets_rl.downloading import planning

    found = apply_to_each(shell, ids, lambda one: planning.plan_download(one, options))
    plans = [one.value for one in found if one.value]
    blocks: list[Block] = [_plan_facts(plan) for plan in plans]
    if len(plans) > 1:
        blocks.append(_sum_facts(plans))
    code = combined_exit_code([one.code for one in found])
    needed, free = _peak_bytes(plans), min((plan.free_bytes for plan in plans), default=0)
    if needed > free:
        shell.printer.note(f"does not fit: needs {size_text(needed)}, free {size_text(free)}")
        code = code or DISK_FULL
    return Result(
        {"datasets": [_plan_document(one) for one in found], "dry_run": True},
        blocks,
        quiet=[plan.id for plan in plans if not plan.present],
        code=code,
    )


def _plan_facts(plan: Plan) -> Facts:
    listed = [
        ("from" if not number else "or", url.partition("#")[0] if asset.is_packed else url)
        for asset in plan.assets
        for number, url in enumerate(asset.urls)
    ]
    urls = tuple(dict.fromkeys(listed))  # the files of an archive have the same address
    if plan.present:
        return Facts((("folder", str(plan.folder)), ("to do", "nothing: already there")), title=plan.id)
    return Facts(
        (
            ("folder", str(plan.folder)),
            ("part", spell_action(plan.selection.call())),
            ("layout", plan.layout),
            ("files", f"{len(plan.assets):,}"),
            *urls[:_SHOWN_URLS],
            ("", f"and {len(urls) - _SHOWN_URLS:,} more addresses" if len(urls) > _SHOWN_URLS else ""),
            ("over the network", size_text(plan.wire_bytes)),
            ("stored, about", _stored_text(plan)),
            *((f"with --{choice.replace('=', ' ')}", _choice_text(plan, choice)) for choice in plan.choices),
            ("peak disk use", size_text(plan.peak_bytes)),
            ("free now", size_text(plan.free_bytes)),
            ("free after", size_text(_free_after(plan))),
        ),
        title=plan.id,
    )


def _choice_text(plan: Plan, choice: str) -> str:
    """Return the size of a dataset with a choice, and the time to read images."""
    seconds = plan.read_seconds.get(choice)
    time = f", and a core reads the images of a step in about {seconds * 1e3:.2g} ms" if seconds else ""
    return size_text(plan.choices[choice]) + time


def _stored_text(plan: Plan) -> str:
    if plan.stored_bytes is None:
        return ""
    measured = next(iter(plan.choices), "") == "images=compressed" and "images" not in plan.selection.options
    return size_text(plan.stored_bytes) + ", if the images compress as expected" * measured


def _sum_facts(plans: list[Plan]) -> Facts:
    wire = [0 if plan.present else plan.wire_bytes for plan in plans]
    stored = [0 if plan.present else plan.stored_bytes or 0 for plan in plans]
    known = sum(size for size in wire if size is not None)
    unknown = sum(size is None for size in wire)
    more = f" and {unknown} of unknown size" if unknown else ""
    pairs = (("over the network", size_text(known) + more), ("stored, about", size_text(sum(stored))))
    return Facts(pairs, title="together")


def _peak_bytes(plans: list[Plan]) -> int:
    """Return the maximal number of bytes on the disk while the plans are carried out in this order."""
    most = kept = 0
    for plan in plans:
        if not plan.present:
            most = max(most, kept + (plan.peak_bytes or 0))
            kept += plan.stored_bytes or 0
    return most


def _free_after(plan: Plan) -> int | None:
    if plan.present:
        return plan.free_bytes
    kept = plan.stored_bytes if plan.stored_bytes is not None else plan.wire_bytes
    return None if kept is None else max(plan.free_bytes - kept, 0)


def _plan_document(outcome: Outcome[Plan]) -> dict[str, Any]:
    plan = outcome.value
    files = [
        {"path": one.path, "urls": one.urls, "bytes": one.size, "sha256": one.sha256}
        for one in (plan.assets if plan else ())
    ]
    return {**outcome.document(_PLAN), "files": files, "free_bytes_after": _free_after(plan) if plan else None}
