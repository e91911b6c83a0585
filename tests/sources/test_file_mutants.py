"""Changed images, tables and stores of zarr: the right values, a counted decision, a question or a refusal. Never silent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import mutants_images
import mutants_tables
import mutants_zarr
import pytest
from mutants_oracle import ANSWERS, FileMutant, Judge

TABLE = Path(__file__).with_name("file_mutants.md")
FAMILIES = {"images": mutants_images, "tables": mutants_tables, "zarr": mutants_zarr}
ACCEPTED = ANSWERS[:4]
ONCE_SILENT = {
    "images": {
        "EXIF of an image says upside down",
        "thumbs in place of missing images",
        "images beside states",
        "folders of episodes, rgb",
        "an image is cut",
        "no frame numbers, beside states, videos from 1",
        "no frame numbers, beside states, one video of all rows and one frame more",
        "a video beside each table, of other names",
        "a record is missing",
        "two rows exchanged",
    },
    "tables": {
        "rows shuffled within an episode, with timestamp",
        "rows reversed, with timestamp",
        "lists as texts",
        "large integers in obs_0",
        "an episode in two parts",
        "shards without marks",
        "train and test without marks",
        "the last number of a file is the first of the next",
        "files of several episodes, the first without marks",
        "files of several episodes, the last without marks",
        "a further file backup",
        "a further file ep_1_copy",
        "a further CSV file",
        "the same table packed",
        "a sum in the last row",
        "the last line is cut within a number",
        "a value twice",
    },
    "zarr": {
        "a scale in the attributes",
        "a fill value in the attributes",
        "stale consolidated metadata, of fewer rows",
        "the same store as a zip file",
    },
}
"""Changes that gave wrong values without a word, before the rules that these tests hold."""


@cache
def mutants_of(family: str) -> dict[str, list[FileMutant]]:
    """Return the mutants of a family by layout."""
    found: dict[str, list[FileMutant]] = {}
    for mutant in FAMILIES[family].mutants():
        found.setdefault(mutant.layout, []).append(mutant)
    return found


def answers(mutants: Iterable[FileMutant], folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return the answer on each mutant by name, and what is said of the mutants that are silently wrong."""
    judge = Judge(folder)
    found = {str(mutant): judge.answer(mutant) for mutant in mutants}
    return found, [f"{name}: {judge.said[name]}" for name, answer in found.items() if answer not in ACCEPTED]


def row_of(layout: str, found: dict[str, str]) -> str:
    """Return the row of a layout in the table."""
    counts = Counter(found.values())
    return f"| {layout} | {' | '.join(str(counts[answer] or '-') for answer in ACCEPTED)} |"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_change_that_was_once_silent_is_refused_or_counted(tmp_path, family):
    by_mutation = {mutant.mutation: mutant for mutants in mutants_of(family).values() for mutant in reversed(mutants)}
    assert by_mutation.keys() >= ONCE_SILENT[family]

    found, silent = answers([by_mutation[mutation] for mutation in sorted(ONCE_SILENT[family])], tmp_path)

    assert not silent, "\n".join(silent)
    assert "right" not in found.values()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "layout"), [(family, layout) for family in FAMILIES for layout in mutants_of(family)]
)
def test_no_change_of_a_layout_is_silent(tmp_path, family, layout):
    found, silent = answers(mutants_of(family)[layout], tmp_path)

    assert not silent, "\n".join(silent)
    assert row_of(layout, found) in TABLE.read_text("utf-8").splitlines()


def main() -> None:
    """Write the table of the answers."""
    with TemporaryDirectory() as folder:
        found = {
            layout: answers(mutants, Path(folder) / f"{family}{number}")[0]
            for family in FAMILIES
            for number, (layout, mutants) in enumerate(mutants_of(family).items())
        }
    total = Counter(answer for row in found.values() for answer in row.values())
    lines = [
        "# What is said about changed images, tables and stores of zarr",
        "",
        "`python tests/sources/test_file_mutants.py` writes this table. The oracle of each change is in `tests/mutants_*.py`:",
        "the right values, or none if the files must be refused.",
        f"Of {total.total():,} changed files, "
        + ", ".join(f"{total[answer]:,} are {answer}" for answer in ANSWERS)
        + ".",
        "",
        f"| layout | {' | '.join(ACCEPTED)} |",
        "| --- " * (1 + len(ACCEPTED)) + "|",
        *(row_of(layout, row) for layout, row in found.items()),
    ]
    TABLE.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
