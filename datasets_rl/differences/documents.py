"""What two manifests state, compared: schema, decisions, metadata and statistics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from datasets_rl.differences.difference import Change, different_parts
from datasets_rl.format.manifest import Manifest, array_file
from datasets_rl.format.schema import Field

_DESCRIPTION = ("specs", "metadata", "time_limit", "selection")
_ORIGIN = (
    "id",
    "license",
    "homepage",
    "citation",
    "known_issues",
    "score",
    "revision",
    "converter",
    "raw",
    "history",
    "copied_from",
    "recordings",
)
_OF_FILES = frozenset({"layout", "layout_evidence"})
"""Metadata about the files that a dataset was converted from."""
_TEXT = 120


def changes(before: Manifest, after: Manifest, renamed: Mapping[str, str]) -> Iterator[Change]:
    """Yield the differences of what describes the data. A renamed field differs if more than its name does.

    Args:
        before: The first manifest.
        after: The second manifest.
        renamed: The dotted key in the second dataset by the dotted key in the first, of renamed fields.
    """
    titles = {name: f"{old} -> {new}" for old, new in renamed.items() for name in (old, new)}
    yield from _changes(
        "schema",
        *({titles.get(field.name, field.name): _field_text(field) for field in one.schema} for one in (before, after)),
    )
    yield from _changes(
        "decision",
        *(
            {one.rule: f"{one.count:,} time{'s' * (one.count != 1)}" for one in each.decisions}
            for each in (before, after)
        ),
    )
    yield from (change for change in _named_changes(_DESCRIPTION, before, after, titles) if not _is_of_files(change))


def origins(before: Manifest, after: Manifest) -> Iterator[Change]:
    """Yield the differences of where the data came from, and of how the data were made."""
    yield from _named_changes(_ORIGIN, before, after)
    yield from (change for change in _named_changes(("metadata",), before, after) if _is_of_files(change))


def _is_of_files(change: Change) -> bool:
    return change.name in {f"metadata: {name}" for name in _OF_FILES}


def statistics_that_differ(before: Manifest, after: Manifest) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the statistics of both datasets by the names whose statistics differ. Empty for a name that a dataset lacks."""
    names = dict.fromkeys([*before.statistics, *after.statistics])
    pairs = {name: (before.statistics.get(name, {}), after.statistics.get(name, {})) for name in names}
    return {name: (one, other) for name, (one, other) in pairs.items() if one != other}


def _named_changes(
    names: tuple[str, ...], before: Manifest, after: Manifest, titles: Mapping[str, str] | None = None
) -> Iterator[Change]:
    titles = titles or {}
    documents = (before.to_json(), after.to_json())
    for name in names:
        first, second = (document.get(name) for document in documents)
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            sides = ((before, first), (after, second))
            yield from _changes(
                name, *({titles.get(key, key): _text(one, value) for key, value in side.items()} for one, side in sides)
            )
        elif first != second:
            yield from _changes(name, {"": _text(before, first)}, {"": _text(after, second)})


def _changes(kind: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for name in dict.fromkeys([*before, *after]):
        texts = before.get(name, ""), after.get(name, "")
        if texts[0] != texts[1]:
            yield Change(f"{kind}: {name}" if name else kind, *different_parts(*texts, _TEXT))


def _field_text(field: Field) -> str:
    kind = "text" if field.text else f"{field.dtype} {list(field.shape)}"
    words = [kind, field.form if field.wide else "", "" if field.shared else "not after the last action"]
    return ", ".join(filter(None, words))


def _text(manifest: Manifest, value: Any) -> str:
    """Return a value for readers. An array in a separate file is the digest of the file."""
    if value in (None, "", [], {}, ()):
        return ""
    if (path := array_file(value)) is not None and (file := manifest.file(path)) is not None:
        return f"array, sha256 {file.digest[:16]}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
