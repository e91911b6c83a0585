"""Which structure a file of JSON has: lines of steps or of episodes, RLlib's batches, or a document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets_rl.sources.flat.arrays import ArrayFile
from datasets_rl.sources.flat.json_tables import LINE_MAX_BYTES, DocumentFile, EpisodeLinesFile, JsonLinesFile, opened
from datasets_rl.sources.flat.names import usual_keys
from datasets_rl.sources.flat.rllib import BATCHES, RllibFile
from datasets_rl.ted.keys import NEXT_DONE, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED


def open_json(path: Path, name: str) -> ArrayFile:
    """Open a file of JSON, compressed with gzip or not: lines of objects, RLlib's batches, or a document.

    Raises:
        ConversionError: If the file is damaged, or has another structure.
    """
    with opened(path, name) as stream:
        lines = filter(None, map(bytes.strip, iter(lambda: stream.readline(LINE_MAX_BYTES), b"")))
        line, is_single = next(lines, b""), next(lines, None) is None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and value.get("type") in BATCHES:
        return RllibFile(path, name)
    is_document = is_single or not isinstance(value, dict)
    if path.name.lower().removesuffix(".gz").endswith(".json") and is_document:
        return DocumentFile(path, name)
    return EpisodeLinesFile(path, name) if isinstance(value, dict) and _is_episode(value) else JsonLinesFile(path, name)


def _is_episode(value: Mapping[str, Any]) -> bool:
    """Return whether an object is an episode: the reward or a flag, which a step has one of, is a list."""
    keys = usual_keys(value)
    single = (NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, NEXT_DONE)
    return any(isinstance(value[name], list) and len(value[name]) != 1 for name, key in keys.items() if key in single)
