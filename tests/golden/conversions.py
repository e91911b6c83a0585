"""What every case of tests/raw is converted to: the digest of each stored file, and how often each rule was applied.

``conversions.json`` is what the conversion made when the file was last written. A change of the code that reads the files
of an upstream leaves it as it is. ``python tests/golden/conversions.py`` writes the file again, after a change of the
cases or of the format. Prose, such as the texts of decisions, and the addresses of the servers of the tests are not in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import pytest
from raw.case import Case, cases_of_sources

from datasets_rl import Selection, disk, downloading
from datasets_rl.build import engines
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings

__all__ = ["FILE", "cases", "converted", "versions"]

FILE = Path(__file__).with_suffix(".json")
_LIBRARIES = ("numpy", "pillow", "zstandard")
_FIGURES = ("id", "steps", "episodes", "final_unknown", "specs", "selection", "time_limit")


def cases() -> Iterator[tuple[str, Case]]:
    """Yield the cases of all sources by a name, such as ``d4rl0``."""
    for name, number, case in cases_of_sources():
        yield f"{name}{number}", case


def versions() -> dict[str, str]:
    """Return the versions of the libraries on which the bytes of images and the last bits of statistics depend."""
    return {name: importlib.metadata.version(name) for name in _LIBRARIES}


def converted(case: Case, folder: Path) -> dict[str, Any]:
    """Convert a case in an empty folder, and return what does not depend on the time, the machine and prose."""
    (tree := folder / "raw").mkdir()
    case.write(tree)
    with pytest.MonkeyPatch.context() as patch, case.served(tree) as variables:
        for name in [name for name in os.environ if name.startswith(("RLDS_", "HF_", "MINARI_"))]:
            patch.delenv(name)
        for name, text in {"NO_PROXY": "*", "RLDS_NO_PROGRESS": "1", "RLDS_MAX_RETRIES": "0", **variables}.items():
            patch.setenv(name, text)
        for name, value in case.small.items():
            patch.setattr(name, value)
        patch.setattr(engines, "MIN_PARALLEL_BYTES", 0)
        patch.setattr(disk, "free_bytes", lambda _: 1 << 40)
        settings = dataclasses.replace(Settings.from_env(), home=folder / "home", jobs=1)
        stored = StoredDataset(
            downloading.download(case.id, settings=settings, selection=Selection(options=case.options))
        )
    manifest = stored.manifest
    document = manifest.to_json()
    in_images = [field.name for field in stored.schema if field.form != "raw"]
    files = {file.path: file.digest[:16] for file in manifest.files}
    images = {path for path in files for name in in_images if path.removeprefix("final.").startswith(f"{name}.")}
    images |= {"digests.npy"} if images else set()
    return {
        **{name: document[name] for name in _FIGURES if name in document},
        "schema": _digest(document["schema"]),
        "metadata": _digest({name: value for name, value in manifest.metadata.items() if not isinstance(value, str)}),
        "decisions": {one.rule: one.count for one in manifest.decisions},
        "raw": [file.path for file in manifest.raw],
        "files": {path: digest for path, digest in files.items() if path not in images},
        "exact": {"statistics": _digest(document["statistics"]), **{path: files[path] for path in sorted(images)}},
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _write(names: list[str]) -> None:
    """Write the file again, or only some of its cases."""
    known = json.loads(FILE.read_text()) if names and FILE.exists() else {}
    for name, case in cases():
        if not names or name in names:
            with tempfile.TemporaryDirectory() as folder:
                known[name] = converted(case, Path(folder))
    FILE.write_text(json.dumps({"versions": versions(), **known}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    _write(sys.argv[1:])
