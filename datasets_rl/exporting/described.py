"""The ``dataset.toml`` beside exported arrays, with which the source ``local`` reads the arrays back bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from datasets_rl.exporting.content import Content
from datasets_rl.format.schema import Field

_STATES = frozenset({"observation", "info"})


def write_description(
    folder: Path, content: Content, file_format: str, files: str, episodes: Mapping[str, str], separator: str
) -> None:
    """Write the description of the arrays in a folder.

    Args:
        folder: The folder.
        content: What the arrays hold.
        file_format: ``hdf5``, ``npz`` or ``parquet``.
        files: Glob of the files with the steps.
        episodes: The table ``[episodes]``.
        separator: What joins the names of a key in the names of the arrays.
    """
    manifest = content.manifest
    texts = {"license": manifest.license, "citation": manifest.citation, "homepage": manifest.homepage}
    lines = [
        f"name = {_toml(manifest.id)}",
        f"format = {_toml(file_format)}",
        f"files = [{_toml(files)}]",
        *(f"{name} = {_toml(text)}" for name, text in texts.items() if text),
        *([f"known_issues = {_toml(list(manifest.known_issues))}"] if manifest.known_issues else []),
        "",
        "[episodes]",
        *(f"{name} = {_toml(value)}" for name, value in episodes.items()),
        "",
        "[fields]",
        *(_field_line(field, content, separator) for field in content.fields),
    ]
    (folder / "dataset.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _field_line(field: Field, content: Content, separator: str) -> str:
    values = {"array": separator.join(field.key), **dict(_spec_options(content.manifest.specs.get(field.name)))}
    if field.shared != (field.key[0] in _STATES) and field.key[0] != "next":
        values["state"] = field.shared
    key = ".".join(_toml(name) for name in field.key)
    if len(values) == 1:
        return f"{key} = {_toml(values['array'])}"
    return f"{key} = {{ {', '.join(f'{name} = {_toml(value)}' for name, value in values.items())} }}"


def _spec_options(spec: Any) -> Iterator[tuple[str, Any]]:
    """Yield the bounds or the number of choices of a spec, if finite, or that the spec is binary."""
    if not isinstance(spec, Mapping):
        return
    if spec.get("kind") == "bounded" and _finite(spec.get("low")) and _finite(spec.get("high")):
        yield from (("low", spec["low"]), ("high", spec["high"]))
    elif spec.get("kind") == "discrete" and spec.get("dtype") != "bool" and isinstance(spec.get("n"), int):
        yield "n", spec["n"]
    elif spec.get("kind") == "binary":
        yield "binary", True


def _finite(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_finite, value))
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value - value == 0


def _toml(value: Any) -> str:
    """Return a text, a number, a boolean or a list of such values in TOML, with the strings of JSON."""
    # TOML has no escape for DEL within JSON's rules, and JSON none that TOML lacks.
    return json.dumps(value).replace("\x7f", "\\u007f")
