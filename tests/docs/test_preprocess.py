"""The tables of docs/preprocess.md agree with `rlds preprocess --list`."""

from __future__ import annotations

import re
from pathlib import Path

import datasets_rl
from datasets_rl.preprocessing import DataStep
from datasets_rl.preprocessing.base import Step
from datasets_rl.preprocessing.naming import describe_steps
from datasets_rl.preprocessing.recipe import Recipe, shipped_recipes
from datasets_rl.preprocessing.steps import step_class
from datasets_rl.preprocessing.steps.corrections import FixSigns, FixWraps
from datasets_rl.preprocessing.steps.times import FrameSkip

PAGE = (Path(datasets_rl.__file__).parents[1] / "docs" / "preprocess.md").read_text(encoding="utf-8")


def rows(heading):
    section = re.split(rf"^## {heading}$", PAGE, flags=re.MULTILINE)[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def check_table(heading, expected):
    """Check a table, whose rows are sorted."""
    found = rows(heading)
    missing = ["| " + " | ".join([f"`{cells[0]}`", *cells[1:]]) + " |" for cells in expected if cells not in found]
    surplus = [cells[0] for cells in found if cells not in expected]

    assert not missing + surplus, (
        f"in the table {heading} of docs/preprocess.md, replace {', '.join(surplus) or 'nothing'} by these rows:\n"
        + "\n".join(missing)
    )
    assert found == expected, f"sort the table {heading} of docs/preprocess.md by the names"


def test_the_table_of_recipes_is_complete():
    check_table("Recipes", [[one.name, one.summary] for one in shipped_recipes()])


def test_the_table_of_steps_is_complete():
    expected = [
        [one.name, one.arguments, one.summary, in_environments(step_class(one.name))]
        for one in describe_steps()
        if issubclass(step_class(one.name), Step)
    ]
    check_table("Steps", expected)


def test_the_table_of_transforms_is_complete():
    assert rows("Transforms as steps") == [
        [one.name, step_class(one.name).__name__, one.summary.strip("`")]
        for one in describe_steps()
        if not issubclass(step_class(one.name), Step)
    ]


def in_environments(step):
    if issubclass(step, DataStep):
        return "not needed"
    return "refused" if step in {FrameSkip, FixSigns, FixWraps} else "applied"


def test_the_recipe_in_toml_can_be_read(tmp_path):
    (tmp_path / "mine.toml").write_text(re.search(r"^```toml\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)[1])

    assert [step.use() for step in Recipe.of(str(tmp_path / "mine.toml")).steps] == ["keep_top_returns", "cast"]
