"""``rlds preprocess``: make a dataset from another dataset by a recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from datasets_rl.errors import InvalidArgumentError

from .. import candidates
from ..errors import DISK_FULL
from ..options import (
    Outcome,
    RayAddress,
    Shell,
    TargetsOrNone,
    apply_to_each,
    combined_exit_code,
    dataset_arguments,
    make_engine,
    name_of,
    read_size,
)
from ..output import Block, Facts, Lines, Result, Table, size_text, steps_text, value_text

if TYPE_CHECKING:
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.format.schema import Column
    from datasets_rl.preprocessing import Preview, Recipe

GROUP = "Prepare"

_SHOWN = 4
_DOCUMENT = {**dict.fromkeys(("derived", "folder", "steps", "episodes", "bytes")), "present": False, "history": ()}
_PREVIEW = {
    **dict.fromkeys(
        ("folder", "recipe", "fingerprint", "steps", "episodes", "bytes", "seconds", "free_bytes", "orders")
    ),
    "present": False,
}


@dataclass(frozen=True)
class _Derived:
    """A dataset that is there now."""

    folder: Path
    present: bool
    """Whether the result was there before."""
    manifest: Manifest
    derived: str
    """The id of the result."""


def run(
    shell: Shell,
    datasets: TargetsOrNone = None,
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",
            "-r",
            metavar="NAME|FILE",
            help="Recipe: its name, FILE.toml, or FILE.py:NAME.",
            autocompletion=candidates.recipe_names,
        ),
    ] = "",
    transform: Annotated[
        list[str] | None,
        typer.Option(
            "--transform",
            "-t",
            metavar="STEP:ARGS",
            help="A step, such as resize:64. Can be repeated.",
            autocompletion=candidates.step_names,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="Folder for the result.")] = None,
    as_: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Name of the result, ID@NAME. By default the recipe's name.")
    ] = "",
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="Replace the dataset. Earlier versions are kept for `rlds use --undo`."),
    ] = False,
    num_frames: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Use only the first N steps, to try a recipe.")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="Number of processes.")] = None,
    max_ram: Annotated[str, typer.Option(metavar="SIZE", help="Memory of all processes together, such as 4GB.")] = "",
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Run on this machine, or on a Ray cluster.")
    ] = "local",
    address: RayAddress = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the expected result with a sample, and write nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Make an existing result again, from its input.")
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="List the recipes and the steps.")] = False,
) -> Result:
    """Apply a recipe to stored datasets. Prints the folders of the results.

    The result is a new dataset, ID@NAME, which every command accepts. With --out, the result is written to a folder, and
    several datasets become one dataset, without a recipe by a merge only. With --in-place, the result replaces the
    dataset, and `rlds use` restores the version before. Run the same command again to resume.

    \b
    Examples:
      rlds preprocess --list
      rlds preprocess d4rl/hopper-medium-v2 --recipe iql_locomotion --dry-run
      rlds preprocess d4rl/hopper-medium-v2 -t keep_lengths:100 -t cast:float16,observation --as long
      rlds preprocess d4rl/hopper-medium-v2 d4rl/hopper-expert-v2 --out ./both
      rlds preprocess demo/pendulum --recipe td3_bc --in-place
    """
    if show:
        return _list_steps()
    if not datasets:
        hint = f"{shell.rlds('preprocess', 'ID', '--recipe', 'NAME')}, or --list"
        raise InvalidArgumentError("no dataset is named", hint=hint)
    together = out is not None and len(datasets) > 1
    items = {" + ".join(datasets): datasets} if together else {one: [one] for one in datasets}
    steps = _read_recipe(recipe, transform or [], merge=together)
    where = {"out": out, "name": as_, "in_place": in_place, "num_frames": num_frames}
    if dry_run:
        return _dry_run(shell, items, steps, where)
    options = {
        **where,
        "jobs": jobs,
        "max_ram": read_size(max_ram) if max_ram else None,
        "engine": make_engine(engine, address),
        "force": force,
        "settings": shell.settings if jobs is None else dataclasses.replace(shell.settings, jobs=jobs),
    }
    found = apply_to_each(
        shell, items, lambda one: _preprocess(shell, one, _find_folders(shell, items[one]), steps, options)
    )
    folders = [str(one.value.folder) for one in found if one.value]
    return Result(
        {"datasets": [one.document(_DOCUMENT) for one in found], "dry_run": False},
        [Lines(tuple(folders))],
        quiet=folders,
        code=combined_exit_code([one.code for one in found]),
    )


def _find_folders(shell: Shell, datasets: list[str]) -> Path | list[Path]:
    from datasets_rl.store.find import locate

    found = [locate(**dataset_arguments(shell, one)) for one in datasets]
    return found if len(found) > 1 else found[0]


def _read_recipe(name: str, inline: list[str], *, merge: bool) -> Recipe:
    """Return the requested recipe, followed by the requested steps. A merge needs neither."""
    from datasets_rl.preprocessing import Recipe

    if not name and not inline and merge:
        return Recipe([], "merge")
    if not name and not inline:
        raise InvalidArgumentError("no recipe and no step is named", hint="rlds preprocess --list shows all")
    parts = ([Recipe.of(name)] if name else []) + ([Recipe.inline(inline)] if inline else [])
    return Recipe(
        [step for part in parts for step in part.steps], " + ".join(part.name for part in parts), parts[0].summary
    )


def _list_steps() -> Result:
    from datasets_rl.preprocessing.naming import describe_steps
    from datasets_rl.preprocessing.recipe import shipped_recipes

    recipes, steps = list(shipped_recipes()), describe_steps()
    return Result(
        {"recipes": [{"name": one.name, "summary": one.summary} for one in recipes], "steps": steps},
        [
            Table(("name", "summary"), tuple((one.name, one.summary) for one in recipes), title="recipes"),
            Table(
                ("name", "arguments", "summary"),
                tuple((one.name, one.arguments, one.summary) for one in steps),
                title="steps",
            ),
        ],
        quiet=[one.name for one in recipes],
    )


def _preprocess(
    shell: Shell, name: str, source: Path | list[Path], recipe: Recipe, options: Mapping[str, Any]
) -> _Derived:
    from datasets_rl import store
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.preprocessing import plan_result

    where = {name: options[name] for name in ("out", "name", "in_place", "num_frames")}
    before = store.current_version(plan_result(source, recipe, **where).paths)
    shell.import_torch()
    from datasets_rl.preprocessing import preprocess
    from datasets_rl.preprocessing.steps.split import splits_in

    folder = preprocess(source, recipe, **options)
    manifest = Manifest.read(folder)
    derived = _Derived(
        folder,
        present=before == store.Version(store.version_folder(folder)),
        manifest=manifest,
        # In place, the folder is the target of a link.
        derived=name_of(shell, source if options["in_place"] and isinstance(source, Path) else folder, manifest),
    )
    presence = "already there, " if derived.present else ""
    called, origin = derived.derived or name, ""
    if options["out"] is not None:
        called, origin = folder.name, f", made of {name}"
    shell.printer.note(
        f"{called}: {presence}{steps_text(derived.manifest)}, {size_text(derived.manifest.bytes)}{origin}"
    )
    for key, order in derived.manifest.orders.items():
        shell.printer.note(f"{key} is, in this order: {order}")
    last = len(manifest.history) - 1
    for sentence in splits_in(manifest.history[last]["recipe"]["steps"], manifest.fitted(last)):
        shell.printer.note(f"{called}: {sentence}")
    return derived


def _dry_run(shell: Shell, items: Mapping[str, list[str]], recipe: Recipe, where: Mapping[str, Any]) -> Result:
    def look(item: str) -> Preview:
        folders = _find_folders(shell, items[item])
        shell.import_torch()
        from datasets_rl.preprocessing import preview

        return preview(folders, recipe, **where, settings=shell.settings)

    found = apply_to_each(shell, items, look)
    blocks: list[Block] = [block for one in found if one.value for block in _preview_blocks(one.value)]
    code = combined_exit_code([one.code for one in found])
    for one in found:
        if one.value and not one.value.present and one.value.bytes > one.value.free_bytes:
            needed, free = size_text(one.value.bytes), size_text(one.value.free_bytes)
            shell.printer.note(f"{one.item} does not fit: needs {needed}, free {free}")
            code = code or DISK_FULL
    return Result(
        {"datasets": [_preview_document(one) for one in found], "dry_run": True},
        blocks,
        quiet=[one.item for one in found if one.value and not one.value.present],
        code=code,
    )


def _preview_blocks(preview: Preview) -> Iterator[Block]:
    facts = (
        ("folder", str(preview.folder)),
        ("to do", "nothing: already there" if preview.present else ""),
        ("steps, about", f"{preview.steps:,}"),
        ("episodes, about", f"{preview.episodes:,}"),
        ("stored, about", size_text(preview.bytes)),
        ("time in a process, about", _duration(preview.seconds)),
        ("free now", size_text(preview.free_bytes)),
        ("fingerprint", preview.fingerprint),
        *((f"{key}, in order", order) for key, order in preview.orders.items()),
        *(("split", sentence) for sentence in preview.splits),
    )
    yield Facts(facts, title=preview.id)
    rows = tuple(
        (one["key"], one["dtype"], str(one["shape"]), one["stored"], ", ".join(map(value_text, one["values"])))
        for one in _keys_as_json(preview)
    )
    yield Table(("key", "dtype", "shape", "stored", "first values"), rows, title="keys")


def _keys_as_json(preview: Preview) -> Iterator[dict[str, Any]]:
    import numpy as np

    from datasets_rl.ted.keys import dotted_name

    for column in preview.columns:
        values = preview.sample.states if column.shared else preview.sample.steps
        # Few images are decoded for the preview.
        first = np.asarray(values[column.key][:_SHOWN])
        yield {
            "key": dotted_name(column.key),
            "dtype": column.dtype.name,
            "shape": [preview.steps, *column.shape],
            "stored": _storage_text(column, preview),
            "values": first.reshape(-1)[:_SHOWN].tolist(),
        }


def _storage_text(column: Column, preview: Preview) -> str:
    form = "" if column.form == "raw" else f", {column.form}"
    if column.shared:
        return f"once for t and t + 1{form}"
    return f"for t and for t + 1{form}" if column.key in preview.unshared else f"once a step{form}"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:,.0f} min"


def _preview_document(outcome: Outcome[Preview]) -> dict[str, Any]:
    return {**outcome.document(_PREVIEW), "keys": list(_keys_as_json(outcome.value)) if outcome.value else []}
