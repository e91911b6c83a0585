"""The statement of datasets for a paper: what is stated, from where, and what is left open."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from stored_data import store_dataset, trajectory

from datasets_rl import Recipe, downloading, preprocess
from datasets_rl.citing import write as writing
from datasets_rl.citing import write_statement
from datasets_rl.citing.paragraph import latex
from datasets_rl.errors import IntegrityError, InvalidArgumentError, LockMismatchError, NotADatasetError
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
    written, text = stated(tmp_path / "out", tmp_path / "rlds.lock", audited=False, settings=settings)
    (locked,) = [one for one in lock.datasets if not one.is_parent]

    assert [one.statement.id for one in written] == ["demo/pendulum@best"]
    assert f"{locked.steps:,} steps of {locked.episodes} episodes of the environment Pendulum-v1" in text
    assert "License: MIT.\n" in text
    assert locked.digest in text.replace(r"\allowbreak ", "")
    assert (
        r"Preprocessing: keep\_top\_returns(percent=20, of=episodes), normalize(keys=['observation'], eps=0.001) (recipe keep\_top\_returns:20, normalize:observation, seed 0)."
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

    with pytest.raises(LockMismatchError, match="demo/pendulum under the lock"):
        write_statement(tmp_path / "rlds.lock", out=tmp_path / "out", settings=stored)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rlds.lock"]


def test_a_version_that_becomes_current_during_the_audit_is_not_stated(stored, tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    shutil.copytree(stored.home / "demo" / "pendulum", folder)
    lock = write_lock(folder, path=tmp_path / "rlds.lock", settings=stored).lock
    compared = writing.check_opened

    def check_and_replace(*arguments):
        compared(*arguments)
        preprocess(folder, Recipe.inline(["reward_scaling:scale=2"]), in_place=True, settings=stored)

    monkeypatch.setattr(writing, "check_opened", check_and_replace)
    (written,) = write_statement(tmp_path / "rlds.lock", out=tmp_path / "out", audited=False, settings=stored)

    assert written.statement.manifest.files_digest == lock.datasets[0].digest


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


def test_the_datasheet_of_the_demo_has_what_the_catalog_and_the_files_state(stored, tmp_path):
    ((one,), text) = stated(tmp_path / "out", "demo/pendulum", audited=False, settings=stored)
    sheet = (one.folder / "datasheet.md").read_text()
    missing = sheet.partition("**Is information missing")[2].partition("**Are there recommended")[0]

    assert (
        "- A pendulum is swung up and held upright. A random, a weak and a good policy took 25 episodes each." in sheet
    )
    assert "- observation: 3 values of float32 a step\n- action: 1 value of float32 a step\n" in sheet
    assert "- time limit: an episode is truncated after 200 steps\n" in sheet
    assert "- as the source states: The datasets-rl authors, rolled out in Gymnasium" in sheet
    assert "- the file does not store the info after the last step of a trajectory (75 times)\n" in missing
    assert r"was taken from next\_observations (75 times);" in text
    # The paper is on the environment: it does not present the dataset.
    assert "The dataset \\texttt{demo/pendulum} holds 15,000 steps" in text
    assert "Publications that the source cites:~\\cite{towers2024gymnasium}.\n" in text
    description = json.loads((one.folder / "croissant.json").read_text())["description"]
    assert description.startswith("A pendulum is swung up")


def test_a_damaged_dataset_is_refused_and_nothing_is_written(lonely, tmp_path):
    (rows,) = lonely.rglob("rows.npy")
    damaged = bytearray(rows.read_bytes())
    damaged[-3] ^= 1
    rows.write_bytes(damaged)

    with pytest.raises(IntegrityError, match=r"rows\.npy has the digest"):
        write_statement(lonely, out=tmp_path / "out", audited=False)
    assert not (tmp_path / "out").exists()


def test_a_derived_dataset_and_a_part_do_not_have_the_description_of_the_whole(stored, tmp_path):
    settings = replace(stored, home=tmp_path / "home")
    shutil.copytree(stored.home, settings.home)
    preprocess("demo/pendulum", Recipe.inline(["keep_top_returns:20"]), name="best", settings=settings)
    ((one,), _) = stated(tmp_path / "out", "demo/pendulum@best", audited=False, settings=settings)

    assert "25 episodes each" not in (one.folder / "datasheet.md").read_text().replace(
        "file itself, 25 episodes each", ""
    )


def test_findings_of_the_audit_and_missing_states_are_stated(lonely, tmp_path):
    ((one,), text) = stated(tmp_path / "out", lonely)
    _, unaudited = stated(tmp_path / "plain", lonely, audited=False)

    assert one.statement.audit.findings[0].check == "not_finite"
    assert re.search(
        r"An audit of all steps made \d+ checks and has \d+ findings?: next.reward .*\(level: proof\)", text
    )
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


COMMANDS = {
    "textbackslash{}": "\\",
    "textasciitilde{}": "~",
    "textasciicircum{}": "^",
    "textless{}": "<",
    "textgreater{}": ">",
    "textbar{}": "|",
    "char96{}": "`",
    "char34{}": '"',
    **{mark: mark for mark in "&%$#_{}"},
}
"""What each command prints that a paragraph may use for a letter."""


def printed(text: str) -> str:
    """Return what LaTeX prints for a text, and fail for a command or a letter with another meaning."""
    found, place = [], 0
    token = re.compile(
        "|".join(
            (
                r"\\rldsletter\{(?P<code>[0-9A-F]{4,6})\}\{(?P<letter>.)\}",
                r"\\texttt\{(?P<digits>[0-9a-f]+(?:\\allowbreak [0-9a-f]+)*)\}",
                r"\\(?P<command>" + "|".join(map(re.escape, COMMANDS)) + ")",
                r"-(?P<dash>\{\})(?=-)",
                r"(?P<plain>[^\\{}%$&#_~^<>|`\"])",
            )
        )
    )
    while place < len(text):
        match = token.match(text, place)
        assert match, text[place:]
        if match["letter"]:
            assert int(match["code"], 16) == ord(match["letter"])
        names = match.groupdict()
        shown = (
            COMMANDS.get(names["command"] or "") or names["letter"] or names["plain"] or ("-" if names["dash"] else "")
        )
        found.append(shown or match["digits"].replace("\\allowbreak ", ""))
        place = match.end()
    assert "--" not in text
    return "".join(found)


@given(st.text(st.characters() | st.sampled_from("_%&#${}~^\\<>|`\"'-é→中0a"), max_size=60))
def test_every_name_is_printed_as_it_is(name):
    expected = "".join(letter for letter in " ".join(name.split()) if letter.isprintable())

    assert printed(latex(name)) == expected


def test_a_digest_within_a_text_may_break():
    assert latex(f"a (sha256 {'0123456789abcdef' * 4}).") == (
        r"a (sha256 \texttt{" + r"\allowbreak ".join(["01234567", "89abcdef"] * 4) + "})."
    )


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pdflatex", "lualatex"])
def test_the_paragraphs_of_hostile_names_compile(tmp_path, program):
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    letters = "".join(map(chr, [*range(0x20, 0x17F), 0x2013, 0x2192, 0x4E2D, 0x1F600])) + HOSTILE + " ``--'' ?` !`"
    folder = store_dataset(tmp_path / "data", [trajectory(5)], known_issues=(letters,), license=letters).folder.parent
    write_statement("demo/pendulum", folder, out=tmp_path / "out", settings=Settings(home=stored_home(tmp_path)))
    (tmp_path / "out" / "paper.tex").write_text(
        "\\documentclass{article}\n\\begin{document}\n\\input{appendix}\n\\bibliographystyle{plain}\n"
        "\\bibliography{references}\n\\end{document}\n"
    )
    for words in ([program, "-halt-on-error", "paper"], ["bibtex", "paper"], [program, "-halt-on-error", "paper"]):
        done = subprocess.run(
            words, cwd=tmp_path / "out", capture_output=True, text=True, errors="replace", check=False
        )
        assert done.returncode == 0, done.stdout[-2000:]
        assert words[0] != "bibtex" or "Warning" not in done.stdout, done.stdout
    assert (tmp_path / "out" / "paper.pdf").stat().st_size > 10_000


def stored_home(folder: Path) -> Path:
    downloading.download("demo/pendulum", settings=Settings(home=folder / "home", progress=False))
    return folder / "home"


def test_a_text_of_an_upstream_is_no_markdown(tmp_path):
    texts = ("# Title", "![x](http://a.example)", "1. first", "- item", "snake_case and __bold__ and *x*", "a | b `c`")
    folder = store_dataset(tmp_path / "data", [trajectory(5)], known_issues=texts).folder.parent
    ((one,), _) = stated(tmp_path / "out", folder, audited=False)
    sheet = (one.folder / "datasheet.md").read_text()

    assert [line for line in sheet.partition("Are there known errors")[2].splitlines()[1:9] if line] == [
        r"- \# Title",
        r"- !\[x](http://a.example)",
        r"- 1\. first",
        r"- \- item",
        r"- snake_case and \__bold_\_ and \*x\*",
        r"- a \| b \`c\`",
    ]


def test_splits_of_an_upstream_and_shares_of_a_mixture_are_stated(stored, tmp_path):
    parts = [trajectory(5, seed=seed, split=np.array(part)) for seed, part in enumerate(["train", "train", "val"])]
    store_dataset(tmp_path / "data", parts)
    (tmp_path / "mix.toml").write_text(
        '[[member]]\ndataset = "demo/pendulum"\nweight = 0.25\n[[member]]\ndataset = "./data"\nweight = 0.75\n'
    )
    write_lock(tmp_path / "mix.toml", path=tmp_path / "rlds.lock", settings=stored)
    written, text = stated(tmp_path / "out", tmp_path / "rlds.lock", audited=False, settings=stored)

    assert {one.statement.id for one in written} == {"demo/pendulum", "./data"}
    assert "Splits: none stated.\nMixtures: ./mix.toml draws from the dataset with the weight 0.25 of 1.\n" in text
    assert (
        "Splits: 2 episodes have the split train, as the upstream states; 1 episode has the split val, as the upstream "
        "states.\nMixtures: ./mix.toml draws from the dataset with the weight 0.75 of 1.\n"
    ) in text
    assert {one.statement.id: "splits" in one.open_topics for one in written} == {
        "demo/pendulum": True,
        "./data": False,
    }
    assert Lock.read(tmp_path / "rlds.lock").mixtures[0].file == "./mix.toml"
    # The members of the file itself, without a lock.
    members = write_statement(tmp_path / "mix.toml", out=tmp_path / "mixed", audited=False, settings=stored)
    assert [one.statement.id for one in members] == ["demo/pendulum", "toy/data"]


def test_two_papers_with_one_key_are_both_cited(tmp_path):
    papers = [
        "@misc{example,\n  title = {One}\n}",
        "@misc{example,\n  title = {Two}\n}",
        "@misc{example,\n  title = {One}\n}",
    ]
    folders = [
        store_dataset(
            tmp_path / str(number), [trajectory(5, seed=number)], id=f"toy/{number}", citation=paper
        ).folder.parent
        for number, paper in enumerate(papers)
    ]
    written, text = stated(tmp_path / "out", *folders, audited=False)
    bibliography = (tmp_path / "out" / "references.bib").read_text()

    assert re.findall(r"\\cite\{(.+?)\}", text) == ["example", "example_2", "example"]
    assert re.findall(r"@misc\{(\w+),\n  title = \{(\w+)\}", bibliography) == [("example", "One"), ("example_2", "Two")]
    assert "{example_2," in json.loads((written[1].folder / "croissant.json").read_text())["citeAs"]


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
