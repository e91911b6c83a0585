"""``rlds audit``: findings, their remedies, exit codes, and audits that were killed."""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from markdown_it import MarkdownIt
from stored_data import trajectory, write_dataset

from datasets_rl import Audit, Recipe, audit, load
from datasets_rl.auditing import CHECKS, Finding
from datasets_rl.auditing.remedy import clip
from datasets_rl.cli.commands.audit import _markdown_row
from datasets_rl.format.manifest import Manifest

DEMO = "demo/pendulum"


@pytest.fixture
def broken(tmp_path):
    """A dataset with a NaN in episode 1, and with episode 3 again as episode 7."""
    episodes = [trajectory(20 + number, seed=number, terminated=number % 2 == 0) for number in range(10)]
    actions = np.array(episodes[1].steps["action",])
    actions[4, 1] = np.nan
    episodes[1] = replace(episodes[1], steps={**episodes[1].steps, ("action",): actions})
    episodes[7] = episodes[3]
    return write_dataset(tmp_path / "broken", episodes).folder


def test_a_finding_names_the_fault_the_episode_and_the_step_that_corrects_it(rlds, broken):
    out = rlds("audit", broken, "--checks", "not_finite,duplicate_episodes").out.splitlines()

    assert out[0].endswith(": findings: 2 proof (241 steps, 10 episodes, 2 checks)")
    assert any(line.startswith("  proof: not_finite: action has 1 ") for line in out)
    assert "    remedy: -t drop_episodes:1" in out
    assert "    remedy: -t drop_episodes:7" in out


def test_the_printed_command_applies_a_remedy_and_the_result_has_no_finding(rlds, broken, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broken = broken.rename(tmp_path / "my données")
    ran = rlds("audit", broken, "--checks", "not_finite")
    (line,) = [line for line in ran.err.splitlines() if line.endswith(" applies one remedy")]
    assert "rows over all episodes. A result has other numbers" in ran.err

    assert rlds(*shlex.split(line)[1:-3]).code == 0
    assert "no findings" in rlds("audit", "./corrected", "--checks", "not_finite").out


def test_what_the_length_of_episodes_has_to_do_with_what_is_named_is_a_line(rlds, broken):
    checks = ["--checks", "not_finite,duplicate_episodes"]
    lines = [line for line in rlds("audit", broken, *checks).out.splitlines() if line.startswith("  length: ")]
    (found,) = rlds("audit", broken, *checks, "--json").json["datasets"]
    of_nan, of_copies = sorted(found["lengths"], key=lambda one: one["check"], reverse=True)

    assert [line.split(":")[1].strip() for line in lines] == ["not_finite, action", "duplicate_episodes"]
    assert lines[0].endswith("apart from the length, 1 of 1 named still stand out")
    assert (of_nan["named"], of_nan["standing"], of_nan["scored"]) == (1, 1, True)
    assert (of_copies["named"], of_copies["standing"], of_copies["scored"]) == (2, None, False)
    assert any(
        line.startswith("* duplicate_episodes: ") for line in rlds("audit", broken, "--markdown").out.splitlines()
    )


def test_the_json_document_has_the_findings_with_evidence_and_steps(rlds, broken):
    ran = rlds("audit", broken, "--json", "--checks", "duplicate_episodes,frozen_frames")
    (found,) = ran.json["datasets"]

    assert ran.code == 0
    assert (found["episodes"], found["checked"]) == (10, ["duplicate_episodes"])
    assert found["skipped"] == {"frozen_frames": "the dataset has no images"}
    (finding,) = found["findings"]
    assert finding.keys() == {"check", "level", "message", "episodes", "rows", "evidence", "remedy", "step", "key"}
    assert (finding["check"], finding["level"]) == ("duplicate_episodes", "proof")
    assert finding["episodes"] == [3, 7]
    assert finding["remedy"] == "-t drop_episodes:7"
    assert finding["step"] == {"use": "drop_episodes", "numbers": [7]}


def test_two_folders_of_one_id_are_told_apart_in_the_document(rlds, broken, tmp_path):
    copy = shutil.copytree(broken, tmp_path / "copy")
    ran = rlds("audit", broken, copy, "--json", "--checks", "not_finite")

    assert [one["id"] for one in ran.json["datasets"]] == [str(broken), str(copy)]
    assert "rlds preprocess DATASET -t STEP --out corrected applies a remedy" in ran.err


def test_markdown_is_a_table_for_a_pull_request(rlds, broken):
    lines = rlds("audit", broken, "--markdown", "--checks", "duplicate_episodes").out.splitlines()

    assert lines[0] == f"## Audit of {broken}"
    assert lines[4:6] == ["| level | check | finding | remedy |", "| --- | --- | --- | --- |"]
    assert lines[6].startswith("| proof | duplicate_episodes | episode 3 is stored 2 times")
    assert lines[6].endswith("| `-t drop_episodes:7` |")
    assert f"`rlds audit {broken} --remedies corrected.toml` writes the remedies" in lines[8]


def test_markdown_of_any_message_is_a_row_that_shows_the_message():
    """Texts of a dataset may have the marks of Markdown."""
    message = "the text is 'a | b', `<b>` *now* _x_ [c](d)\nin episode_3"
    row = _markdown_row(Finding("texts_unlike", "strong", message, remedy=clip("action", -1, 1)))
    page = MarkdownIt("commonmark").enable("table").render(f"| a | b | c | d |\n| - | - | - | - |\n{row}\n")
    cells = [html.unescape(cell) for cell in re.findall("<td>(.*?)</td>", page)]

    assert cells[:3] == ["strong", "texts_unlike", " ".join(message.split())]
    assert cells[3:] == ["<code>-t 'clip:low=-1.0,high=1.0,in_keys=[action]'</code>"]


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("words", "code"),
    [([], 0), (["--fail-on", "hint"], 1), (["--fail-on", "strong"], 1), (["--fail-on", "proof"], 1)],
)
def test_a_finding_fails_the_command_only_if_that_is_asked_for(rlds, broken, words, code):
    assert rlds("audit", broken, *words).code == code
    assert rlds("audit", DEMO, *words).code == 0
    assert rlds("audit", DEMO, broken, *words).code == code


def test_a_hint_does_not_fail_an_audit_for_strong_findings(rlds, tmp_path):
    still = [trajectory(20, seed=number) for number in range(6)]
    still = [
        replace(one, steps={**one.steps, ("next", "reward"): np.zeros_like(one.steps["next", "reward"])})
        for one in still
    ]
    folder = write_dataset(tmp_path / "still", still).folder
    only = ["--checks", "constant_rewards"]
    level = rlds("audit", folder, *only, "--json").json["datasets"][0]["findings"][0]["level"]

    assert level in {"hint", "strong"}
    assert rlds("audit", folder, *only, "--fail-on", level).code == 1
    assert rlds("audit", folder, *only, "--fail-on", "proof").code == 0


def test_the_list_has_every_check_with_its_rule_and_limits(rlds):
    document = rlds("audit", "--list", "--json").json["checks"]

    assert [one["name"] for one in document] == [*CHECKS, "conventions", "shared_episodes"]
    assert all(
        one["rule"].endswith(".") and one["why"].endswith(".") and one["limits"].endswith(".") for one in document
    )
    assert {one["training"] for one in document} == {"better", "not shown to help"}
    assert rlds("audit", "--list", "--quiet").out.split() == [*CHECKS, "conventions", "shared_episodes"]


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "no dataset is given"),
        ([DEMO, "--checks", "idle_span,noise"], 2, "checks are idle_span, noise"),
        ([DEMO, "--fail-on", "weak"], 2, "--fail-on is 'weak'\n  why: expected one of proof, strong, hint"),
        ([DEMO, DEMO + "@none", "--remedies", "x.toml"], 2, "--remedies is for one dataset"),
        ([DEMO, "--remedies", "x.json"], 2, "--remedies is x.json\n  why: expected FILE.toml"),
        (["demo/pendulm"], 3, "did you mean"),
        ([DEMO, "--checks", "conventions,not_finite"], 2, "no mixture is given"),
        ([DEMO, "--checks", "shared_episodes"], 2, "1 is given\n  why: expected 2 or more"),
    ],
)
def test_a_wrong_word_is_named_with_what_is_expected(rlds, words, code, said):
    ran = rlds("audit", *words)

    assert ran.code == code
    assert said in ran.err


def test_two_folders_of_datasets_with_one_id_are_reports_of_two_names(rlds, broken, tmp_path):
    shutil.copytree(broken, tmp_path / "other")
    folders = [str(broken), str(tmp_path / "other")]
    reports = rlds("audit", *folders, "--checks", "not_finite", "--json").json["datasets"]

    assert [one["id"] for one in reports] == folders


@pytest.mark.usefixtures("stored")
def test_of_a_mixture_each_dataset_is_audited_once(rlds, broken, tmp_path):
    mixture = tmp_path / "mix.toml"
    mixture.write_text(
        f'[[member]]\ndataset = "{DEMO}"\n[[member]]\ndataset = "{broken}"\n[[member]]\ndataset = "{DEMO}"\n'
    )
    ran = rlds("audit", mixture, "--json", "--checks", "not_finite")

    assert [len(one["findings"]) for one in ran.json["datasets"]] == [0, 1]


@pytest.mark.usefixtures("stored")
def test_a_derived_dataset_is_audited_under_its_own_id_and_numbers(rlds):
    assert rlds("preprocess", DEMO, "-t", "keep_episodes:10:20", "--as", "ten").code == 0
    (found,) = rlds("audit", f"{DEMO}@ten", "--json").json["datasets"]

    assert (found["id"], found["episodes"]) == (f"{DEMO}@ten", 10)


def words_of(line):
    """The words after rlds of a command in a note."""
    return shlex.split(line.partition("rlds ")[2].partition(" writes ")[0])


def test_the_commands_that_an_audit_prints_correct_the_dataset(rlds, broken, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broken.rename("my set")
    only = ["--checks", "not_finite,duplicate_episodes"]
    first = rlds("audit", "my set", *only).err
    second = rlds(*words_of(first), *only).err

    assert rlds(*words_of(second)).code == 0
    assert Manifest.read(tmp_path / "corrected").episodes == 8
    assert audit(tmp_path / "corrected", checks=["not_finite", "duplicate_episodes"]).findings == ()
    assert rlds("audit", "corrected", *only).err == ""
    assert words_of(rlds("audit", "my set", "--remedies", "again.toml", *only).err.partition("then ")[2])[-2:] == [
        "--out",
        "corrected2",
    ]


def test_the_remedies_are_a_recipe_that_corrects_the_dataset_and_keeps_the_reasons(rlds, broken, tmp_path):
    file = tmp_path / "corrected.toml"
    ran = rlds("audit", broken, "--remedies", file, "--checks", "not_finite,duplicate_episodes")
    assert ran.code == 0
    assert f"--recipe {file}" in ran.err
    assert [step.to_json()["numbers"] for step in Recipe.of(str(file)).steps] == [[1], [7]]

    made = tmp_path / "corrected"
    assert rlds("preprocess", broken, "--recipe", file, "--out", made).code == 0

    assert Manifest.read(made).episodes == 8
    reasons = [step["reason"] for step in Manifest.read(made).history[-1]["recipe"]["steps"]]
    assert reasons[0].startswith("not_finite: action has 1 value that is NaN")
    assert audit(made, checks=["not_finite", "duplicate_episodes"]).findings == ()


def test_a_file_of_remedies_is_not_replaced_unless_that_is_asked_for(rlds, broken, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("mine")
    ran = rlds("audit", broken, "--remedies", file)

    assert (ran.code, file.read_text()) == (2, "mine")
    assert "add --force" in ran.err
    assert rlds("audit", broken, "--remedies", file, "--force").code == 0
    assert "drop_episodes" in file.read_text()


@pytest.mark.usefixtures("stored")
def test_an_audit_without_a_remedy_writes_no_file(rlds, tmp_path):
    ran = rlds("audit", DEMO, "--remedies", tmp_path / "none.toml")

    assert ran.code == 0
    assert not (tmp_path / "none.toml").exists()
    assert "is not written" in ran.err


def test_an_audit_changes_nothing_in_the_dataset_and_in_the_home(rlds, stored, home):
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    rlds("audit", DEMO)

    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before
    assert stored.exists()


PROGRAM = """
import json, sys, time
from datasets_rl.auditing import run
from datasets_rl.cli.app import main

run._NARROW_BYTES, run._KEEP_AFTER, run._PARTS = 1 << 14, 0.0, 1_000
if sys.argv[1] == "slow":
    whole = run._measured_part
    def slow(*arguments):
        time.sleep(0.05)
        return whole(*arguments)
    run._measured_part = slow
sys.exit(main(["audit", "demo/pendulum", "--json", *sys.argv[2:]]))
"""
"""An audit with small parts, each of which is kept at once."""


@pytest.mark.usefixtures("stored")
def test_an_audit_that_is_killed_and_run_again_gives_the_same_report(home, rlds):
    words = ["--checks", "duplicate_episodes,not_finite,joined_episodes,stuck_elements"]
    program = [sys.executable, "-c", PROGRAM]
    folder = home / ".audit"
    running = subprocess.Popen([*program, "slow", *words], stdout=subprocess.DEVNULL, env={**os.environ})
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*/*.npz"))) < 5 and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL

    kept = list(folder.glob("*/*.npz"))
    assert len(kept) >= 5
    kept[0].write_bytes(b"torn")  # as after a power failure
    assert rlds("list", "--downloaded", "--quiet").out.split() == [DEMO]
    again = subprocess.run([*program, "fast", *words], capture_output=True, check=True)

    assert not folder.exists()
    fresh = subprocess.run([*program, "fast", *words], capture_output=True, check=True)
    assert again.stdout == fresh.stdout


def test_what_a_killed_audit_left_is_listed_and_can_be_deleted(rlds, stored, home):
    part = home / ".audit" / "0123456789abcdef0123456789abcdef" / "3.npz"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1_000)
    (home / ".audit" / "notes").mkdir()

    assert rlds("cache", "ls", "--json").json["audit_bytes"] == 1_000
    assert rlds("cache", "prune", "--json").code == 0
    assert part.exists()
    assert rlds("cache", "prune", "--builds", "--yes", "--json").json["freed"]["unfinished audits"] == 1_000
    assert not part.parent.exists()
    assert (home / ".audit" / "notes").exists()
    assert stored.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_in_a_home_that_cannot_be_written_the_audit_keeps_nothing(home, stored):
    home.chmod(0o500)
    try:
        ran = subprocess.run([sys.executable, "-c", PROGRAM, "fast"], capture_output=True, check=False)
    finally:
        home.chmod(0o700)

    assert ran.returncode == 0
    assert stored.exists()


@pytest.mark.usefixtures("stored")
def test_in_a_home_that_takes_no_folder_the_audit_keeps_nothing(home):
    (home / ".audit").write_text("a file in the way")
    ran = subprocess.run([sys.executable, "-c", PROGRAM, "fast"], capture_output=True, check=False)

    assert ran.returncode == 0, ran.stderr
    assert (home / ".audit").read_text() == "a file in the way"


def test_python_audits_an_open_dataset(pendulum):
    dataset = load(DEMO, root=pendulum / "demo")
    whole = audit(dataset)

    assert isinstance(whole, Audit)
    assert whole.episodes == 75
    assert audit(dataset.stored.folder).findings == whole.findings


def test_a_dataset_is_audited_without_a_network_and_without_torch(stored, home):
    code = (
        "import socket, sys\n"
        "def refuse(*_, **__): raise AssertionError('network')\n"
        "socket.socket.connect = refuse\n"
        "from datasets_rl.cli.app import main\n"
        "code = main(['audit', 'demo/pendulum'])\n"
        "assert 'torch' not in sys.modules\n"
        "sys.exit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("demo/pendulum: ")
    assert stored.exists()
    shutil.rmtree(home)
