"""The pages about components name each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import datasets_rl
from datasets_rl import samplers, storages, transforms

OTHERS = {"MixtureSampler", "PaddedTrajectories", "Sampler", "Storage", "View"}
"""Base classes, and what `mixture` and `load` make."""
DOCS = Path(datasets_rl.__file__).parents[1] / "docs"


@pytest.mark.parametrize(
    ("module", "page"),
    [
        (samplers, "replay-buffers.md"),
        (storages, "replay-buffers.md"),
        (transforms, "transforms.md"),
    ],
    ids=["samplers", "storages", "transforms"],
)
def test_every_public_component_is_in_a_table(module, page):
    rows = [line for line in (DOCS / page).read_text("utf-8").splitlines() if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`(\w+)[(`]", row.split("|")[1])}
    missing = sorted({*module.__all__} - named - OTHERS)

    assert not missing, (
        f"give {', '.join(missing)} a row in the table of {module.__name__.rpartition('.')[2]} in docs/{page}"
    )
