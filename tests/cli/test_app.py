"""Options that all commands have, help, wrong usage, errors and interrupts."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

import datasets_rl.cli
from datasets_rl.cli.app import main
from datasets_rl.cli.commands import GROUPS, command_names, subcommand_names
from datasets_rl.cli.frame import make_command
from datasets_rl.cli.help_page import split_help
from datasets_rl.cli.options import Shell
from datasets_rl.downloading import run
from datasets_rl.errors import FetchError

ALL_COMMANDS = [
    path for name in command_names() for path in ((name,), *((name, below) for below in subcommand_names(name)))
]
"""The words that name each command, also those of commands that are folders."""


def module_of(path):
    return importlib.import_module(".".join(["datasets_rl.cli.commands", *path]))


def test_the_folder_is_the_list_of_commands():
    files = Path(datasets_rl.cli.__file__).parent.joinpath("commands").glob("[a-z]*")

    assert sorted(path.stem for path in files) == list(command_names())
    assert {"download", "info", "list", "path", "remove", "sample", "score", "verify"} <= set(command_names())
    assert subcommand_names("cache") == ("ls", "move", "prune", "verify")


@pytest.mark.parametrize("path", ALL_COMMANDS, ids=" ".join)
def test_the_help_of_every_command_has_a_summary_and_three_examples_that_parse(path):
    command = make_command()
    for name in path:
        command = command.commands[name]
    paragraphs, examples = split_help(command.help)

    assert paragraphs[0].endswith(".")
    assert len(examples) >= 3
    for example in examples:
        words = re.search(r"(?:^|\$\()rlds ([^)]*?)(?:$|\)| > .*| \| .*)", example)
        assert words is not None, example
        arguments = shlex.split(words[1])
        assert [word for word in arguments if word in path][: len(path)] == list(path), example
        parse(make_command(), arguments)


def parse(command, words):
    """Parse a command line without running it."""
    context = command.make_context("rlds", words, obj=Shell(words))
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
        if hasattr(command, "commands") and not context._protected_args:
            return


def test_examples_that_do_not_parse_are_found():
    with pytest.raises(typer.BadParameter.__mro__[1]):
        parse(make_command(), ["cache", "prune", "--everything"])


def test_every_command_is_in_a_group():
    assert {name: module_of((name,)).GROUP for name in command_names() if module_of((name,)).GROUP not in GROUPS} == {}


@pytest.mark.first(1, of="path")
@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("path", [(), *ALL_COMMANDS], ids=" ".join)
def test_no_line_of_a_help_page_is_wider_than_the_window(rlds, path, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = rlds(*path, "--help").out

    assert [line for line in shown.splitlines() if len(line) > columns] == []
    assert " ".join(shown.split()).startswith(f"Usage: rlds {' '.join(path)}".strip())


def test_a_wide_window_shows_summaries_in_one_line_and_a_broken_example_can_be_copied(rlds, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert "  sample      Draw a batch" in rlds("--help").out
    assert max(map(len, rlds("--help").out.splitlines())) > 100

    monkeypatch.setenv("COLUMNS", "40")
    shown = rlds("mix", "--help").out.split("Examples:")[1].split("Arguments:")[0]
    assert " ".join(shown.replace("\\\n", "").split()).startswith(
        "rlds mix d4rl/hopper-medium-v2 d4rl/hopper-expert-v2 --weights 0.7,0.3 > mix.toml rlds mix ./mine"
    )


def test_help_lists_the_commands_under_their_groups(rlds):
    shown = rlds("--help").out

    headings = [line[:-1] for line in shown.splitlines() if line.endswith(":") and line[:-1] in GROUPS]
    assert headings == [name for name in GROUPS if name in headings]
    assert shown.index("Choose:") < shown.index("\n  list ") < shown.index("Get:") < shown.index("\n  download ")


def test_python_m_is_the_command():
    ran = subprocess.run([sys.executable, "-m", "datasets_rl", "--version"], capture_output=True, text=True, check=True)

    assert ran.stdout == f"rlds {version('datasets-rl')}\n"


def test_the_command_help_prints_the_same_help(rlds):
    assert rlds("help", "cache", "move").out == rlds("cache", "move", "--help").out
    assert rlds("help").out == rlds("--help").out
    assert rlds("help", "list").out == rlds("list", "--help").out


def test_without_a_command_the_help_is_printed(rlds):
    ran = rlds()

    assert (ran.code, ran.err) == (0, "")
    assert ran.out == rlds("--help").out


@pytest.mark.parametrize("words", [["--version"], ["-V"], ["list", "--version"], ["-V", "list"]])
def test_the_version_is_that_of_the_installed_distribution(rlds, words):
    assert rlds(*words).out == f"rlds {version('datasets-rl')}\n"


def test_the_version_as_json(rlds):
    assert rlds("--version", "--json").json["version"] == version("datasets-rl")


@pytest.mark.parametrize(
    ("before", "after"), [(["--json"], []), ([], ["--json"]), (["--json", "-q"], []), (["-q"], ["--json"])]
)
def test_options_for_all_commands_come_before_or_after_its_name(rlds, before, after):
    assert rlds(*before, "list", "pendulum", *after).json["datasets"][0]["id"] == "demo/pendulum"


def test_root_goes_before_the_environment_variable(rlds, stored, tmp_path):
    elsewhere = rlds("path", "demo/pendulum", "--root", tmp_path / "elsewhere")

    assert rlds("--root", stored.parents[1], "path", "demo/pendulum").out == f"{stored}\n"
    assert rlds("path", "demo/pendulum").code == 0
    assert elsewhere.code == 3


def test_an_invalid_environment_variable_is_wrong_usage_and_named(rlds, monkeypatch):
    monkeypatch.setenv("RLDS_JOBS", "many")

    ran = rlds("list")

    assert ran.code == 2
    assert "RLDS_JOBS is 'many'" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lst"], "did you mean 'list'"),
        (["list", "--jsn"], "--jsn"),
        (["download"], "ID..."),
        (["list", "--limit", "0"], "--limit"),
        (["list", "--sort", "age"], "age"),
        (["list", "--max-size", "big"], "'big' is not a size"),
        (["score", "demo/pendulum", "high"], "RETURN"),
        (["help", "exit-code"], "exit-codes"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong_and_what_to_do(rlds, words, said):
    ran = rlds(*words)

    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert [line.split(maxsplit=1)[0] for line in ran.err.splitlines()] == ["rlds:", "why:", "next:"]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["sizes"],
            [
                "No such command 'sizes'",
                "the commands are append, audit, bench, cache, cite, completion, config",
                "rlds --help",
            ],
        ),
        (["list", "--limit", "0"], ["--limit is '0'", "expected an integer of at least 1", "rlds list --help"]),
        (["list", "--limit", "x"], ["--limit is 'x'", "expected an integer of at least 1", "rlds list --help"]),
        (["list", "--sort", "age"], ["--sort is 'age'", "expected one of name, size", "rlds list --help"]),
        (
            ["download", "demo/pendulum", "--engine", "spark"],
            ["--engine is 'spark'", "expected one of local, ray", "rlds download --help"],
        ),
        (["score", "demo/pendulum", "x"], ["RETURN is 'x'", "expected a number", "rlds score --help"]),
        (["list", "--jsn"], ["No such option: --jsn", "the nearest are --env, --json", "rlds list --help"]),
        (["download"], ["ID is missing", "the usage is rlds download [OPTIONS] ID...", "rlds download --help"]),
        (
            ["list", "a", "b"],
            ["Got unexpected extra", "the usage is rlds list [OPTIONS] [PATTERN]", "rlds list --help"],
        ),
        (["list", "--limit"], ["Option '--limit' requires an argument", "rlds list --help"]),
        (
            ["download", "demo/pendulum", "--from-local"],
            ["Option '--from-local' requires an argument", "rlds download --help"],
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_names_the_value_the_expectation_and_the_help(rlds, words, lines):
    told = [line.split(": ", 1)[1] for line in rlds(*words).err.splitlines()]

    assert [line.startswith(wanted) for line, wanted in zip(told, lines, strict=True)] == [True] * len(lines), told


@pytest.mark.parametrize("name", command_names())
def test_help_shows_arguments_as_they_are_typed(rlds, name):
    shown = rlds(name, "--help").out

    assert not re.search(r"\[\[|\{(?!\")|<(str|list|float|int)", shown)  # braces of JSON are meant


def test_an_error_is_three_lines(rlds):
    ran = rlds("path", "demo/pendulum")

    assert [line.split(maxsplit=1)[0] for line in ran.err.splitlines()] == ["rlds:", "why:", "next:"]
    assert ran.err.endswith("next: rlds download demo/pendulum\n")


def test_an_unknown_id_names_the_nearest(rlds):
    ran = rlds("info", "d4rl/hoper-medium-v2")

    assert ran.code == 3
    assert "did you mean d4rl/hopper-medium-v2" in ran.err


@pytest.mark.parametrize("words", [["-vv"], ["-v", "-v"]])
def test_tracebacks_are_printed_only_on_request(rlds, words):
    assert "Traceback" not in rlds("path", "demo/pendulum", "-v").err
    assert "Traceback" in rlds("path", "demo/pendulum", *words).err


def test_rlds_debug_requests_tracebacks(rlds, monkeypatch):
    monkeypatch.setenv("RLDS_DEBUG", "1")

    assert "Traceback" in rlds("download", "d4rl/nothing").err


def test_verbose_prints_the_folder_and_quiet_prints_nothing(rlds, home):
    assert str(home) in rlds("-v", "list").err
    assert rlds("download", "demo/pendulum", "-q").err == ""


def test_an_interrupt_ends_with_130_and_prints_the_command_that_continues(rlds, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_download", interrupted)

    ran = rlds("download", "demo/pendulum", "--mirror", "http://lab/a b")

    assert ran.code == 130
    assert "rlds download demo/pendulum --mirror 'http://lab/a b'" in ran.err


def test_a_system_error_is_reported_without_a_traceback(rlds, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied", "/data")

    monkeypatch.setattr(run, "run_download", refused)

    ran = rlds("download", "demo/pendulum")

    assert ran.code == 1
    assert ran.err.splitlines()[:2] == ["rlds: /data cannot be used", "  why: Permission denied"]
    assert "--root, --out or RLDS_HOME" in ran.err


def test_a_home_that_is_a_file_is_reported_with_the_path_and_a_remedy(rlds, home):
    home.write_text("")

    ran = rlds("download", "demo/pendulum")

    assert (ran.code, ran.err.count("\n")) == (1, 3)
    assert str(home) in ran.err
    assert "fix its permissions" in ran.err


def test_an_error_is_a_json_document_with_the_option_json(rlds):
    ran = rlds("path", "demo/pendulum", "--json")

    assert ran.json["error"]["kind"] == "NotADatasetError"
    assert ran.json["error"]["code"] == ran.code == 3
    assert ran.err.startswith("rlds: ")


def test_wrong_usage_is_a_json_document_too(rlds):
    document = rlds("list", "--jsn", "--json").json

    assert (document["error"]["code"], document["command"]) == (2, "list")


def test_an_internal_error_is_reported_in_lines_and_ends_with_1(tmp_path):
    program = tmp_path / "broken.py"
    program.write_text(
        "import sys\n"
        "from datasets_rl.catalog import scores\n"
        "from datasets_rl.cli import app\n"
        "scores.normalized_score = lambda *_, **__: 1 / 0\n"
        "sys.argv = ['rlds', 'score', 'demo/pendulum', '1', *sys.argv[1:]]\n"
        "sys.exit(app.main())\n"
    )
    plain = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    loud = subprocess.run([sys.executable, program, "-vv"], capture_output=True, text=True, check=False)

    assert (plain.returncode, plain.stdout) == (1, "")
    assert plain.stderr.startswith("rlds: a fault of rlds itself\n  why: ZeroDivisionError")
    assert "Traceback" in loud.stderr


def test_failed_items_are_reported_and_the_others_are_done(rlds, home, monkeypatch):
    download = run.run_download

    def failing(dataset_id, options):
        if dataset_id.startswith("d4rl"):
            raise PermissionError(13, "Permission denied", "/data")
        return download(dataset_id, options)

    monkeypatch.setattr(run, "run_download", failing)

    ran = rlds("download", "d4rl/hopper-medium-v2", "demo/pendulum", "--json")

    failed, done = ran.json["datasets"]
    assert ran.code == 1
    assert (failed["error"]["kind"], failed["error"]["code"]) == ("PermissionError", 1)
    assert (done["error"], done["folder"]) == (None, str(home / "demo" / "pendulum"))


def test_a_single_failed_item_gives_its_own_code(rlds, monkeypatch):
    def failing(*_, **__):
        raise FetchError("a.hdf5", [("http://a/", "status 404")])

    monkeypatch.setattr(run, "run_download", failing)

    ran = rlds("download", "demo/pendulum")

    assert ran.code == 4
    assert ran.err.splitlines()[:2] == ["rlds: could not fetch a.hdf5", "  why: http://a/: status 404"]


def test_help_of_the_exit_codes_lists_them(rlds):
    codes = [int(line.split("\t")[0]) for line in rlds("help", "exit-codes").out.splitlines()]

    assert codes == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 130]
    assert json.loads(rlds("help", "exit-codes", "--json").out)["exit_codes"][3]["code"] == 3


def test_help_of_the_environment_names_every_variable_that_is_read(rlds):
    package = Path(datasets_rl.__file__).parent
    sources = [*package.glob("*.py"), *Path(datasets_rl.cli.__file__).parent.rglob("*.py")]
    read = {name for path in sources for name in re.findall(r"\bRLDS_[A-Z_]+", path.read_text())}

    shown = rlds("help", "environment").out
    assert {"RLDS_HOME", "RLDS_OFFLINE"} <= read
    assert [name for name in read if name not in shown] == []


@pytest.mark.usefixtures("home")
def test_the_entry_point_uses_the_arguments_of_the_process(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rlds", "list", "demo/pendulum", "-q"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    assert main() == 0
    assert capsys.readouterr().out == "demo/pendulum\n"


@pytest.mark.parametrize(
    "words",
    [["--no-color", "help", "download"], ["help", "download", "-q"], ["--root", "/x", "help", "download"]],
    ids=" ".join,
)
def test_help_works_with_other_options(rlds, words):
    assert rlds(*words).out == rlds("download", "--help").out
    assert rlds("--json", "help").out == rlds("--help").out
    assert rlds("-q", "help", "exit-codes").out.startswith("0 done")
