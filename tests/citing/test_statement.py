"""The statement of datasets for a paper: what is stated, from where, and what is left open."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stored_data import store_dataset, trajectory

from datasets_rl import Recipe, preprocess
from datasets_rl.citing import write_statement
from datasets_rl.errors import InvalidArgumentError, LockMismatchError, NotADatasetError
from datasets_rl.lockfile import Lock, write_lock
from datasets_rl.settings import Settings

HOSTILE = r"100% of a_b & {x} ~ ^2 #1 $5 \input{/etc/passwd} <b>"


@pytest.fixture
def lonely(tmp_path) -> Path:
    """A dataset of which nobody states anything, with a NaN in a reward and an unknown last state."""
    faulty = trajectory(9, seed=1, terminated=True)
    faulty.steps["next", "reward"][4] = np.nan
    return store_dataset(tmp_path / "lonely", [trajectory(7, known=False), faulty]).folder.parent


def stated(folder, *datasets, **options):
    written = write_statement(*datasets, out=folder, **options)
    return written, (folder / "appendix.tex").read_text()


def test_a_locked_dataset_is_stated_with_recipe_digest_and_citation(stored, tmp_path):
    settings = replace(stored, home=tmp_path / "home")
    shutil.copytree(stored.home, settings.home)
    recipe = Recipe.inline(["keep_top_returns:20", "normalize:observation"])
    preprocess("demo/pendulum", recipe, name="best", settings=settings)
    lock = write_lock("demo/pendulum@best", path=tmp_path / "rlds.lock", settings=settings).lock
    written, text = stated(tmp_path / "out", tmp_path / "rlds.lock", settings=settings)
    (locked,) = [one for one in lock.datasets if not one.is_parent]

    assert [one.statement.id for one in written] == ["demo/pendulum@best"]
    assert f"{locked.steps:,} steps of {locked.episodes} episodes of the environment Pendulum-v1" in text
    assert locked.digest in text.replace(r"\allowbreak ", "")
    assert (
        r"Preprocessing: keep\_top\_returns(percent=20), normalize() (recipe keep\_top\_returns:20, normalize:observation, seed 0)."
        in text
    )
    for key in re.findall(r"\\cite\{(.+?)\}", text)[0].split(","):
        assert f"{{{key}," in (tmp_path / "out" / "references.bib").read_text()
    sheet = (written[0].folder / "datasheet.md").read_text()
    assert "- locked by rlds.lock\n" in sheet
    assert f"- digest of the files: {locked.digest}\n" in sheet


def test_a_dataset_with_other_content_than_the_lock_is_refused_and_nothing_is_written(stored, tmp_path):
    lock = write_lock("demo/pendulum", path=tmp_path / "rlds.lock", settings=stored).lock
    (locked,) = lock.datasets
    replace(lock, datasets=(replace(locked, digest="0" * 64, files=()),)).write()

    with pytest.raises(LockMismatchError, match="demo/pendulum is not the dataset of"):
        write_statement(tmp_path / "rlds.lock", out=tmp_path / "out", settings=stored)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rlds.lock"]


def test_a_locked_dataset_that_is_not_stored_is_refused_with_what_makes_it(stored, tmp_path):
    write_lock("demo/pendulum", path=tmp_path / "rlds.lock", settings=stored)

    with pytest.raises(NotADatasetError, match=r"the lock .* has demo/pendulum\n?.*lockfile\.sync"):
        write_statement(tmp_path / "rlds.lock", out=tmp_path / "out", settings=replace(stored, home=tmp_path / "empty"))


def test_what_nobody_states_is_left_open_and_listed(lonely, tmp_path):
    ((one,), text) = stated(tmp_path / "out", lonely)
    sheet = (one.folder / "datasheet.md").read_text()

    topics = [
        *("purpose", "creators", "funding", "splits", "known issues", "personal data", "raw data", "policy"),
        *("time of collection", "alignment", "biases", "social impact", "license", "homepage", "publication"),
        *("date of publication", "version", "maintenance"),
    ]
    assert list(one.open_topics) == topics
    assert text.endswith(f"Left open: {'; '.join(topics)}.\n")
    listed = sheet.partition("## Motivation")[0]
    assert [line[2:].partition(":")[0] for line in listed.splitlines() if line.startswith("- ")] == topics
    assert sheet.count("**Open.**") == len(topics)
    assert '- license: croissant.json has the text "not stated"\n' in listed


def test_findings_of_the_audit_and_missing_states_are_stated(lonely, tmp_path):
    ((one,), text) = stated(tmp_path / "out", lonely)
    _, unaudited = stated(tmp_path / "plain", lonely, audited=False)

    assert one.statement.audit.findings[0].check == "not_finite"
    assert re.search(r"An audit of all steps made \d+ checks and has \d+ findings?: next.reward .*\(proof\)", text)
    assert "The observation after the last action is unknown in 1 of 2 episodes" in text
    assert "audit" not in unaudited.partition("Left open")[0]
    assert "; audit;" in unaudited


def test_texts_of_an_upstream_cannot_change_the_paper_or_the_datasheet(tmp_path):
    folder = store_dataset(tmp_path / "data", [trajectory(5)], known_issues=(HOSTILE,), license=HOSTILE).folder.parent
    ((one,), text) = stated(tmp_path / "out", folder, audited=False)
    (line,) = [line for line in text.splitlines() if line.startswith("Known issues")]

    escaped = (
        r"100\% of a\_b \& \{x\} \textasciitilde{} \textasciicircum{}2 \#1 \$5 \textbackslash{}input\{/etc/passwd\} "
        r"\textless{}b\textgreater{}"
    )
    assert line == f"Known issues: {escaped}."
    assert "<b>" not in (one.folder / "datasheet.md").read_text()


def test_splits_of_an_upstream_and_shares_of_a_mixture_are_stated(stored, tmp_path):
    parts = [trajectory(5, seed=seed, split=np.array(part)) for seed, part in enumerate(["train", "train", "val"])]
    store_dataset(tmp_path / "data", parts)
    (tmp_path / "mix.toml").write_text(
        '[[member]]\ndataset = "demo/pendulum"\nweight = 0.25\n[[member]]\ndataset = "./data"\nweight = 0.75\n'
    )
    write_lock(tmp_path / "mix.toml", path=tmp_path / "rlds.lock", settings=stored)
    written, text = stated(tmp_path / "out", tmp_path / "rlds.lock", audited=False, settings=stored)

    assert {one.statement.id for one in written} == {"demo/pendulum", "./data"}
    assert "Splits: the mixture ./mix.toml has the dataset with the weight 0.25." in text
    assert (
        "Splits: 2 episodes have the split train, as the upstream states; 1 episode has the split val, as the upstream "
        "states; the mixture ./mix.toml has the dataset with the weight 0.75."
    ) in text
    assert Lock.read(tmp_path / "rlds.lock").mixtures[0].file == "./mix.toml"
    # The members of the file itself, without a lock.
    members = write_statement(tmp_path / "mix.toml", out=tmp_path / "mixed", audited=False, settings=stored)
    assert [one.statement.id for one in members] == ["demo/pendulum", "toy/data"]


def test_an_answered_datasheet_is_not_replaced(lonely, tmp_path):
    out = tmp_path / "out"
    ((one,), _) = stated(out, lonely, audited=False)
    (one.folder / "datasheet.md").write_text("The license is MIT.")

    with pytest.raises(InvalidArgumentError, match="is not replaced: it exists and is not an empty folder"):
        write_statement(lonely, out=out)
    assert (one.folder / "datasheet.md").read_text() == "The license is MIT."


def test_two_datasets_of_one_name_have_a_folder_each(lonely, tmp_path):
    other = store_dataset(tmp_path / "other", [trajectory(5)], id="toy-data").folder.parent
    written = write_statement(
        lonely, other, out=tmp_path / "out", audited=False, settings=Settings(home=tmp_path / "home")
    )

    assert sorted(one.folder.name for one in written) == ["toy-data", "toy-data-2"]
    assert {one.folder.name for one in written} <= {path.name for path in (tmp_path / "out").iterdir()}
