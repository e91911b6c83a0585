"""Make the datasets of a lock in a process of its own: ``python lock_rebuild.py LOCK PLACE JOBS ENGINE``. Prints the digests.

The shards and parts are small, so that several processes take part. ENGINE is "local" or "ray".
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from raw import minari

from datasets_rl import Manifest
from datasets_rl.build import engines
from datasets_rl.build.engines.local import LocalEngine
from datasets_rl.build.engines.ray import RayEngine
from datasets_rl.lockfile import Lock, sync
from datasets_rl.preprocessing import make

CASE = minari.CASES[1]
"""Episodes of a Minari dataset in Parquet, with images and texts, in several shards."""


def shrink() -> None:
    """Make the shards of the case and the parts of recipes small."""
    for dotted, value in CASE.small.items():
        module, _, attribute = dotted.rpartition(".")
        setattr(importlib.import_module(module), attribute, value)
    engines.MIN_PARALLEL_BYTES = 0
    make._PART_BYTES = 1 << 16


def main() -> None:
    """Run the command line."""
    lock, place, jobs, name = sys.argv[1:]
    shrink()
    engine: Any = RayEngine() if name == "ray" else LocalEngine(int(jobs)) if int(jobs) > 1 else None
    made = sync(lock, locked=True, places=[place], engine=engine, jobs=int(jobs))
    digests = {one.id: [one.origin, Manifest.read(one.folder).files_digest] for one in made}
    print(json.dumps({"digests": digests, "unchanged": Lock.read(lock).text == Path(lock).read_text("utf-8")}))


if __name__ == "__main__":
    main()
