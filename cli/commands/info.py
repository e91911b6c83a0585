"""``rlds info``: the description of a dataset, and its stored copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datasets_rl.errors import InvalidArgumentError, ManifestError, NotADatasetError, UnknownIdError
from datasets_rl.sources import split_derived

from ..evidence_page import evidence_blocks, evidence_json
from ..info_page import catalog_blocks, catalog_json, description_facts, figure_text, mixture_result
from ..options import KnownOrMixture, Shell, dataset_arguments, id_or_folder, name_of
from ..output import Block, Facts, Lines, Result, Table, count_text, number_text, size_text

if TYPE_CHECKING:
    from datasets_rl.catalog.listing import DatasetInfo
    from datasets_rl.downloading.planning import Plan
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.sources import Entry
    from datasets_rl.sources.local.files import FilesDescription
    from datasets_rl.store import DatasetPaths

_FLAGS = ("episode", "next.done", "next.terminated", "next.truncated")
_STATISTICS = ("mean", "std", "min", "max", "q50", "q01", "q99")
"""The columns, the most important first: a narrow terminal shows only the first columns."""
_ELEMENTS = 24
"""Maximum number of elements of a field with statistics. `--json` has all elements."""
_CATALOG = ("title", "license", "citation", "homepage", "known_issues", "score", "time_limit", "deprecated")
_STORED = (
    *("selection", "steps", "episodes", "final_unknown", "bytes", "statistics", "spikes", "decisions", "known_issues"),
    *("raw", "metadata", "license", "citation", "homepage", "time_limit", "converter", "history"),
)
"""The attributes of a catalog entry and of a manifest that the document has."""
GROUP = "Choose"


def run(
    shell: Shell,
    dataset: KnownOrMixture,
    layout: Annotated[
        str, typer.Option(metavar="SOURCE", help="Source with the layout of the files at an address, if several fit.")
    ] = "",
) -> Result:
    """Show the environment, spaces, sizes, license and scores of a dataset, and the contents of a stored dataset.

    For an address, the layout is shown, with the evidence. Only lists and parts of files are fetched. For your own
    files, the output shows how each array is read and how episodes end.

    \b
    Examples:
      rlds info d4rl/hopper-medium-v2
      rlds info demo/pendulum --json
      rlds info hf://datasets/USER/NAME
    """
    if dataset.endswith(".toml"):
        from datasets_rl.catalog import listing

        return mixture_result(shell, listing.info(dataset, settings=shell.settings))
    from datasets_rl import sources, store
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.sources.addressed import Addressed
    from datasets_rl.store.find import locate

    wanted, where = id_or_folder(dataset), dataset_arguments(shell, dataset)
    entry = sources.find(wanted) if isinstance(wanted, str) else None
    if layout and entry is not None and not isinstance(sources.get_source(entry.source), Addressed):
        raise InvalidArgumentError(f"{dataset} is an id of the source {entry.source}, expected an address for a layout")
    try:
        folder = locate(**where)
    except NotADatasetError as error:
        if entry is None:
            raise
        paths = store.find_paths(**where)
        found = _found(shell, dataset, entry, layout, is_derived=paths.name != entry.name)
        return _not_stored_result(shell, entry, str(wanted), paths, error, found)
    manifest = Manifest.read(folder)
    name = name_of(shell, folder, manifest)
    entry = entry or _find_entry(name) or _find_entry(manifest.id)
    versions = _version_chain(store.paths_of(folder))
    data = {
        "id": name,
        "catalog": None if entry is None else _catalog_json(entry),
        "stored": _stored_json(manifest, folder),
        "versions": versions,
        "found": None,
    }
    return Result(data, [*_stored_blocks(name, entry, manifest, folder), *_version_blocks(versions)], quiet=[name])


def _found(shell: Shell, dataset: str, entry: Entry, layout: str, *, is_derived: bool) -> Plan | None:
    """Return the plan of a download from an address, with the layout of the files. None for an id of a catalog.

    Raises:
        FetchError, ConversionError: If the address does not answer, or no layout or several layouts fit the files.
    """
    from datasets_rl import sources
    from datasets_rl.downloading import DownloadOptions
    from datasets_rl.downloading.planning import plan_download
    from datasets_rl.sources.addressed import Addressed

    if not isinstance(sources.get_source(entry.source), Addressed):
        return None
    if is_derived:  # the plan would be that of the original dataset
        return None
    selection = sources.Selection(options={"layout": layout} if layout else {})
    return plan_download(dataset, DownloadOptions(selection=selection, settings=shell.settings))


def _not_stored_result(
    shell: Shell, entry: Entry, asked: str, paths: DatasetPaths, error: NotADatasetError, found: Plan | None
) -> Result:
    """Return the catalog's facts, and why the dataset cannot be read: the dataset is absent, or no version is current."""
    name = asked if split_derived(asked)[1] else entry.id
    versions = _version_chain(paths)
    explanation = shell.explained(error)
    state = "; ".join(
        (*([str(paths.folder)] if versions else []), explanation.why or explanation.what, explanation.hint)
    )
    data = {"id": name, "catalog": _catalog_json(entry), "stored": None, "versions": versions, "found": None}
    size: int | None = None
    evident: list[Block] = []
    if found is not None:
        source, _, evidence = found.layout.partition(": ")
        first = found.assets[0].path.removeprefix(f"{entry.name}/")
        sizes = [asset.size for asset in found.assets]
        size = None if None in sizes else sum(filter(None, sizes))
        described = _described_files(entry, source)
        data["found"] = {
            "layout": source,
            "evidence": evidence,
            "files": len(sizes),
            "first": first,
            "bytes": size,
            "read_as": None if described is None else evidence_json(described),
        }
        files = f"{count_text(len(sizes), 'file')}, {size_text(size)}, the first {first}"
        shown = [] if described is None else evidence_blocks(described)
        evident = [Facts((("layout", found.layout), ("files", files)), title=f"at {_address_of(entry)}"), *shown]
    unknown = "unknown size" if size is None else size_text(size)
    blocks = [*evident, *catalog_blocks(_info_of(entry), name, state, unknown), *_version_blocks(versions)]
    return Result(data, blocks, quiet=[name])


def _described_files(entry: Entry, layout: str) -> FilesDescription | None:
    """Return how the user's own files are read. None for a layout of other sources, and for files elsewhere."""
    from datasets_rl import sources
    from datasets_rl.sources.address import path_of_id

    path = path_of_id(entry.id)
    if layout not in {"local", "torchrl"} or path is None:
        return None
    from datasets_rl.sources.local.files import describe_files, describe_folder

    return describe_files(path) if layout == "local" else describe_folder(path, sources.get_source(layout))


def _address_of(entry: Entry) -> str:
    from datasets_rl import sources

    return sources.get_source(entry.source).addresses(entry.name)[0]


def _find_entry(dataset_id: str) -> Entry | None:
    from datasets_rl import sources

    try:
        return sources.find(dataset_id)
    except UnknownIdError:
        return None


def _catalog_json(entry: Entry) -> dict[str, Any]:
    return {
        **catalog_json(_info_of(entry)),
        "wire_bytes": entry.bytes,
        **{name: getattr(entry, name) for name in _CATALOG},
    }


def _info_of(entry: Entry) -> DatasetInfo:
    from datasets_rl.catalog.listing import DatasetInfo

    return DatasetInfo(entry.id, entry, None)


def _stored_json(manifest: Manifest, folder: Path) -> dict[str, Any]:
    return {
        "folder": folder,
        "id": manifest.id,
        **{name: getattr(manifest, name) for name in _STORED},
        "copied_from": manifest.copied_from or None,
        "score": manifest.score or None,
        "images": manifest.images,
        "orders": manifest.orders,
        "keys": [dict(zip(("key", "dtype", "shape", "where"), row, strict=True)) for row in _key_rows(manifest)],
    }


def _key_rows(manifest: Manifest) -> Iterator[tuple[str, str, list[int], str]]:
    """Yield the keys of TED as a batch has them: name, dtype, shape of the whole dataset, place of the values."""
    for field in manifest.schema:
        yield field.name, field.read_dtype.name, [manifest.steps, *field.shape], field.file
    for field in manifest.schema:
        if field.shared:
            shape = [manifest.steps, *field.shape]
            yield f"next.{field.name}", field.read_dtype.name, shape, "the next row, or final.npy"
    for flag in ("done", "terminated", "truncated"):
        yield flag, "bool", [manifest.steps, 1], "False everywhere, not stored"
    if manifest.final_unknown:
        yield "next.final_known", "bool", [manifest.steps, 1], "episodes.npy"


def _stored_blocks(name: str, entry: Entry | None, manifest: Manifest, folder: Path) -> Iterator[Block]:
    yield Facts(_description_facts(entry, folder), title=name)
    if manifest.known_issues:
        yield Lines(tuple(manifest.known_issues), title="known issues")
    if manifest.spikes:
        yield Lines(manifest.spikes, title="spikes")
    original = manifest.id if manifest.id != name else ""
    yield Facts((("original", original), *_stored_facts(manifest, folder)), title="stored")
    rows = tuple((key, dtype, str(shape), where) for key, dtype, shape, where in _key_rows(manifest))
    yield Table(("key", "dtype", "shape", "stored in"), rows, title="keys")
    if manifest.orders:
        yield Facts(tuple(manifest.orders.items()), title="vectors of several fields, in order")
    if spaces := tuple((name, _space_text(spec)) for name, spec in manifest.specs.items() if name not in _FLAGS):
        yield Facts(spaces, title="spaces")
    yield from _statistics_blocks(manifest)
    yield from _history_blocks(manifest)


def _version_blocks(versions: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    if versions:
        chain = tuple(
            (
                Path(one["folder"]).name,
                *("unknown" if one[name] is None else f"{one[name]:,}" for name in ("steps", "episodes")),
                size_text(one["bytes"]),
                str(one["made_by"]),
                "current" if one["current"] else "",
            )
            for one in versions
        )
        yield Table(("version", "steps", "episodes", "on disk", "made by", ""), chain, title="versions")


def _space_text(spec: Any) -> str:
    """Return the set of values that a spec of the manifest describes: ``from -2 to 2, float32 [3]``."""
    if not isinstance(spec, Mapping):
        return ""
    kind, shape = str(spec.get("kind", "")).replace("_", " "), spec.get("shape", [])
    if "low" in spec and "high" in spec:
        kind = f"from {_shortened(spec['low'])} to {_shortened(spec['high'])}"
    elif "n" in spec:
        kind = f"{kind}, 0 to {spec['n'] - 1}" if isinstance(spec["n"], int) else kind
    elif "nvec" in spec:
        kind = f"{kind}, numbers below {_shortened(spec['nvec'])}"
    return f"{kind}, {spec.get('dtype', '')} {shape}"


def _shortened(value: Any, most: int = 60) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _statistics_blocks(manifest: Manifest) -> Iterator[Block]:
    fields = {name: numbers for name, numbers in manifest.statistics.items() if isinstance(numbers, Mapping)}
    rows = [
        row
        for name, numbers in fields.items()
        for row in _statistics_rows(name, numbers, _element_names(manifest, name))
    ]
    if not rows:
        return
    shown = tuple((row[0], *(number_text(row[1].get(name)) for name in _STATISTICS)) for row in rows)
    yield Table(("field", *_STATISTICS), shown, title="statistics", listing=True, numbers=True)


def _element_names(manifest: Manifest, name: str) -> Sequence[str]:
    """Return the names of the elements of a field. Empty for returns, lengths and unnamed elements."""
    from datasets_rl.ted.keys import as_key

    key = as_key(name)
    return manifest.element_names(manifest.schema[key]) if key in manifest.schema else ()


def _statistics_rows(
    name: str, numbers: Mapping[str, Any], element_names: Sequence[str]
) -> Iterator[tuple[str, dict[str, float | None]]]:
    """Yield a row for each element of a field, at most `_ELEMENTS`, and a row for the number of the others."""
    flat = {one: dict(_flattened(value)) for one, value in numbers.items()}
    indices = list(flat.get("min", {}))
    labels = (
        [f"{name} {element}" for element in element_names]
        if len(element_names) == len(indices)
        else [f"{name}{list(index)}" for index in indices]
    )
    for index, label in zip(indices[:_ELEMENTS], [name] if len(indices) == 1 else labels, strict=False):
        yield label, {one: values.get(index) for one, values in flat.items()}
    if len(indices) > _ELEMENTS:
        yield f"{name}, {len(indices) - _ELEMENTS:,} more", {}


def _flattened(value: Any, index: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], float | None]]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _flattened(item, (*index, number))
    else:
        yield index, value if _is_number(value) else None


def _version_chain(paths: DatasetPaths) -> list[dict[str, Any]]:
    """Return the versions that `rlds use` can choose, by number. Empty if there is only the current version."""
    from datasets_rl import store

    found = store.versions_of(paths)
    chain = [
        {"number": one.number, "folder": one.folder, "current": one.is_current, **_version_facts(one.folder)}
        for one in found
    ]
    return [] if [one["current"] for one in chain] == [True] else chain


def _version_facts(folder: Path) -> dict[str, Any]:
    """Return the counts and the origin of a version. A damaged version does not hide other versions."""
    from datasets_rl.format.manifest import Manifest

    try:
        manifest = Manifest.read(folder)
    except ManifestError:
        return {"steps": None, "episodes": None, "bytes": None, "made_by": "damaged: its manifest cannot be read"}
    return {
        "steps": manifest.steps,
        "episodes": manifest.episodes,
        "bytes": manifest.bytes,
        "made_by": manifest.history[-1].get("recipe", {}).get("name", "") if manifest.history else "download",
    }


def _description_facts(entry: Entry | None, folder: Path) -> tuple[tuple[str, str], ...]:
    """Return the description in the manifest, which may name another upstream than the catalog, else the catalog's."""
    from datasets_rl.catalog.listing import DatasetInfo
    from datasets_rl.format.summary import Summary

    summary = Summary.read(folder)
    info = DatasetInfo(summary.id, entry, folder, summary)
    return description_facts(info, (("download", figure_text(info, "bytes")),))


def _stored_facts(manifest: Manifest, folder: Path) -> tuple[tuple[str, str], ...]:
    from datasets_rl.sources import Selection

    return (
        ("folder", str(folder)),
        ("copied from", manifest.copied_from.get("address", "")),
        ("part", str(Selection.from_json(manifest.selection))),
        ("steps", f"{manifest.steps:,}"),
        ("episodes", f"{manifest.episodes:,}"),
        ("on disk", size_text(manifest.bytes)),
        ("images", "; ".join(f"{name}: {text}" for name, text in manifest.images.items())),
        ("return", _spread_text(manifest.statistics.get("return"))),
        ("length", _spread_text(manifest.statistics.get("length"))),
        ("final observation unknown", unknown_text(manifest) if manifest.final_unknown else "none"),
        ("NaN or infinite", "; ".join(f"{count:,} values of {name}" for name, count in manifest.not_finite.items())),
        ("written by", f"datasets-rl {manifest.converter}"),
    )


def unknown_text(manifest: Manifest) -> str:
    """Return in how many episodes the final observation is unknown, and how to leave the zeros out of targets."""
    counts = f"{manifest.final_unknown:,} of {manifest.episodes:,} episodes"
    return f"{counts}, zeros where next.final_known is False, dropped by `-t drop_unknown_final`"


def _spread_text(numbers: Any) -> str:
    if not isinstance(numbers, Mapping):
        return ""
    shown = (f"{name} {numbers[name]:,.2f}" for name in ("mean", "std", "min", "max") if _is_number(numbers.get(name)))
    return ", ".join(shown)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _history_blocks(manifest: Manifest) -> Iterator[Block]:
    if manifest.decisions:
        rows = tuple((one.rule, f"{one.count:,}", one.text) for one in manifest.decisions)
        yield Table(("rule", "count", "what was done"), rows, title="decisions")
    if manifest.raw:
        raw = tuple((one.path, size_text(one.bytes), one.checked, one.sha256, one.url) for one in manifest.raw)
        yield Table(("file", "size", "digest", "sha256", "from"), raw, title="made of")
        if manifest.unverified:
            yield Lines((manifest.unverified,))
    if manifest.history:
        done = tuple(row for number, one in enumerate(manifest.history) for row in _step_rows(number, one))
        yield Table(("", "step", "of", "bytes"), done, title="then preprocessed")
    facts = tuple(
        (name, _shortened(value, 200)) for name, value in manifest.metadata.items() if not isinstance(value, Mapping)
    )
    if facts:
        yield Facts(facts, title="metadata")


def _step_rows(number: int, run: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield a line for each step of a recipe. The first line names the input dataset."""
    for member in run.get("merged", ()):
        yield f"{number + 1}. merge", "", f"{member['id']}, {member['steps']:,} steps", member["files"]
    parent, recipe = run.get("of", {}), run.get("recipe", {})
    given = f"{parent.get('id')}, {parent.get('steps', 0):,} steps", str(parent.get("files", ""))
    for place, step in enumerate(recipe.get("steps", ())):
        arguments = ", ".join(f"{name}={value}" for name, value in step.items() if name != "use")
        text = f"{step.get('use')}({arguments})"
        yield (f"{number + 1}. {recipe.get('name', '')}", text, *given) if not place else ("", text, "", "")
