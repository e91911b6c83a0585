"""What the manifest of a stored dataset states in short. Imports no numpy, so that many datasets are listed at once."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets_rl.disk import MANIFEST_FILE, MAX_MANIFEST_BYTES
from datasets_rl.errors import ManifestError, NotADatasetError
from datasets_rl.format.current import in_current_version
from datasets_rl.format.space_summary import SpaceSummary, summarize_action, summarize_states


@dataclass(frozen=True, slots=True)
class Summary:
    """Statements of a manifest that datasets are listed and chosen by."""

    id: str
    steps: int
    episodes: int
    bytes: int
    """Bytes of the dataset's files, without the manifest."""
    observation: SpaceSummary | None = None
    action: SpaceSummary | None = None
    environment: str = ""
    """The id of the environment, if the metadata states the id."""
    license: str = ""
    citation: str = ""
    homepage: str = ""
    known_issues: tuple[str, ...] = ()
    time_limit: int | None = None
    score: Mapping[str, Any] = field(default_factory=dict)
    selection: Mapping[str, Any] = field(default_factory=dict)
    """The selected part of the upstream's dataset. Empty for the whole dataset."""
    recipes: tuple[str, ...] = ()
    """The names of the recipes that were applied since the download, in order."""

    @classmethod
    def read(cls, folder: Path) -> Summary:
        """Return the summary of the dataset in a folder. Only the entries of the summary are validated.

        Raises:
            NotADatasetError: If the folder has no manifest.
            ManifestError: If the manifest lacks a statement.
        """
        document = read_document(folder)
        try:
            return cls._of(document)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            where = str(folder / MANIFEST_FILE)
            raise ManifestError(where, [f"a statement is missing or malformed: {error!r}"]) from error

    @classmethod
    def _of(cls, document: Mapping[str, Any]) -> Summary:
        fields = document["schema"]
        return cls(
            id=str(document["id"]),
            steps=int(document["steps"]),
            episodes=int(document["episodes"]),
            bytes=sum(int(entry["bytes"]) for entry in document["files"]),
            observation=summarize_states(fields),
            action=summarize_action(fields, document.get("specs", {})),
            environment=_environment(document.get("metadata", {})),
            license=str(document.get("license", "")),
            citation=str(document.get("citation", "")),
            homepage=str(document.get("homepage", "")),
            known_issues=_sentences(document.get("known_issues", [])),
            time_limit=None if document.get("time_limit") is None else int(document["time_limit"]),
            score=_score(document.get("score", {})),
            selection=_mapping(document.get("selection", {})),
            recipes=_recipes(document.get("history", ())),
        )


def read_document(folder: Path) -> Any:
    """Return the JSON value in the manifest file of the current version of a dataset, without validating it.

    Raises:
        NotADatasetError: If the folder has no manifest.
        ManifestError: If the file cannot be read, is not JSON, or has more than 256 MiB.
    """
    return in_current_version(folder, _read_document)


def _read_document(version: Path) -> Any:
    path = version / MANIFEST_FILE
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_MANIFEST_BYTES:
            raise ManifestError(
                str(path), [f"the manifest is not a regular file of at most {MAX_MANIFEST_BYTES:,} bytes"]
            )
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_reject_constant)
    except (FileNotFoundError, NotADirectoryError):
        raise NotADatasetError(version) from None
    except OSError as error:
        raise ManifestError(str(path), [f"the manifest cannot be read: {error}"]) from error
    except (ValueError, RecursionError) as error:
        raise ManifestError(str(path), [f"the manifest is not JSON: {error}"]) from error


def _environment(metadata: Mapping[str, Any]) -> str:
    """Return the id of the environment in the metadata, which Minari and recordings state as a specification."""
    stated = metadata.get("environment")
    if isinstance(stated, str):
        return stated
    try:
        spec = json.loads(metadata.get("env_spec", "{}"))
    except (TypeError, ValueError):
        return ""
    return str(spec.get("id", "")) if isinstance(spec, Mapping) else ""


def _sentences(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(sentence, str) for sentence in value):
        raise TypeError(f"{value!r:.60} is not a list of sentences")
    return tuple(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.60} is not an object")
    return value


def _score(value: Any) -> Mapping[str, Any]:
    score = _mapping(value)
    return {"low": float(score["low"]), "high": float(score["high"]), "origin": str(score["origin"])} if score else {}


def _recipes(history: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(str(run.get("recipe", {}).get("name", "")) for run in history)


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
