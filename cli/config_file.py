"""Edits of a configuration file, which leave other lines and comments unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from datasets_rl import disk
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.settings import (
    SETTINGS,
    file_errors,
    line_of,
    parse_document,
    parse_mirror,
    trust_project,
    untrusted_keys,
    user_file,
)

MIRRORS = "mirrors"


def parse_setting(key: str, text: str) -> Any:
    """Return the value of a setting as in a file: a text, a number, true or false, or a list of addresses.

    Args:
        key: The key, or ``mirrors.SOURCE`` for the mirrors of a source.
        text: The value in a user's words.

    Raises:
        InvalidArgumentError: If there is no such setting, or the value is not valid.
    """
    table, source = split_key(key)
    expected = SETTINGS[table].expected if not source else "addresses with commas, as in https://lab.example/d4rl"
    try:
        value = parse_mirror(source, text) if source else SETTINGS[key].parse(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{key} is {text!r}, expected {expected}") from error
    return list(value) if source else str(value) if isinstance(value, Path) else value


def split_key(key: str) -> tuple[str, str]:
    """Split a key into the setting and, for mirrors, the source.

    Raises:
        InvalidArgumentError: If there is no such setting.
    """
    name, _, source = key.partition(".")
    if name not in SETTINGS or bool(source) != (name == MIRRORS):
        raise InvalidArgumentError(
            f"there is no setting {key!r}, expected {', '.join(_key_text(one) for one in SETTINGS)}"
        )
    return name, source


def _key_text(key: str) -> str:
    return f"{key}.SOURCE" if key == MIRRORS else key


def set_value(path: Path, key: str, value: Any) -> None:
    """Set a key in a file, and create a missing file.

    Raises:
        InvalidArgumentError: If the file is not valid TOML, or the present value cannot be replaced in its line.
    """
    table, source = split_key(key)
    text = _read(path, key)
    document = _parse(path, text)
    lines = text.splitlines()
    if source:
        document.setdefault(table, {})[source] = value
        _set_line(lines, source, value, table=table, known=source in _parse(path, text).get(table, {}))
    else:
        known = key in document
        document[key] = value
        _set_line(lines, key, value, table="", known=known)
    _write(path, lines, document, key)


def unset_value(path: Path, key: str) -> bool:
    """Remove a key, also a key that is not a setting, from a file, and return whether the file had the key.

    Raises:
        InvalidArgumentError: If the file is not valid TOML, or the value is not in a single line.
    """
    table, _, source = key.partition(".")
    text = _read(path, key)
    document = _parse(path, text)
    inside = document.get(table, {}) if source else document
    name = source or key
    if name not in inside:
        return False
    del inside[name]
    lines = text.splitlines()
    del lines[line_of(text, name, table=table if source else "") - 1]
    if source and not inside and (header := _header(lines, table)) >= 0:
        del lines[header]
    _write(path, lines, document, key)
    return True


@contextmanager
def keep_trust(path: Path, *, project: bool) -> Iterator[None]:
    """Trust a project file after an edit by the user, unless the file had untrusted settings before."""
    is_own = project and not untrusted_keys(path)
    yield
    if is_own and untrusted_keys(path):
        trust_project(path)


def _set_line(lines: list[str], name: str, value: Any, *, table: str, known: bool) -> None:
    shown = name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name, ensure_ascii=False)
    line = f"{shown} = {json.dumps(value, ensure_ascii=False)}"
    headers = [number for number, one in enumerate(lines) if one.lstrip().startswith("[")]
    if known:
        lines[line_of("\n".join(lines), name, table=table) - 1] = line
    elif not table:
        lines.insert(headers[0] if headers else len(lines), line)
    elif (header := _header(lines, table)) >= 0:
        lines.insert(header + 1, line)
    else:
        lines += [*[""] * bool(lines), f"[{table}]", line]


def _header(lines: Sequence[str], table: str) -> int:
    """Return the index of the line that begins a table, or -1."""
    return next((number for number, one in enumerate(lines) if one.split("#")[0].strip() == f"[{table}]"), -1)


def _read(path: Path, key: str) -> str:
    with _file_errors(path, key):
        try:
            return path.read_text("utf-8")
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"{path} is not UTF-8: {error.reason}", hint=f"edit {path}") from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return parse_document(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{path} is not valid TOML: {error}", hint=f"edit {path}") from error


def _write(path: Path, lines: Sequence[str], document: dict[str, Any], key: str) -> None:
    """Write the edited lines, if the lines give the intended document."""
    text = "\n".join(lines) + "\n" * bool(lines)
    try:
        done = {name: value for name, value in parse_document(text).items() if value != {}}
    except ValueError:
        done = {}
    if done != {name: value for name, value in document.items() if value != {}}:
        raise InvalidArgumentError(f"{path} has {key} in a form that cannot be edited here", hint=f"edit {path}")
    with _file_errors(path, key):
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.rewrite_file(path, text.encode())


def _file_errors(path: Path, key: str) -> AbstractContextManager[None]:
    """Say what helps where a file cannot be used: options name the place of the data, and not that of the file."""
    elsewhere = ", name another file with RLDS_CONFIG," if path == user_file() else ""
    setting = SETTINGS.get(key.partition(".")[0])
    variable = f" or set the variable {setting.variable} instead" if setting else ""
    return file_errors(path, f"fix its permissions{elsewhere}{variable}")
