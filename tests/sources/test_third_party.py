"""A source in another package: the example of docs/contributing/adding-a-source.md, installed from the page."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import datasets_rl

ROOT = Path(datasets_rl.__file__).parents[1]
PAGE = (ROOT / "docs" / "contributing" / "adding-a-source.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```$', PAGE, flags=re.MULTILINE | re.DOTALL))
CONSOLE = re.search(r"^```console\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)[1]
FOLDER = "datasets_rl/sources/arm/"
pytestmark = pytest.mark.usefixtures("warm_python")
ENTRY_POINTS = """\
[datasets_rl.sources]
d4rl = arm_source
absent = no_such_module
raises = raises_source
renamed = arm_source
"""


def call(command, *, env=None, cwd=None):
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder with the installed package of the page."""
    project, target = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("target")
    (project / "arm_source").mkdir()
    for path in [path for path in FILES if path.startswith(FOLDER)]:
        text = FILES[path].replace("datasets_rl.sources.arm", "arm_source")
        (project / "arm_source" / path.removeprefix(FOLDER)).write_text(text, encoding="utf-8")
    (project / "pyproject.toml").write_text(FILES["pyproject.toml"], encoding="utf-8")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    call([sys.executable, "-m", "pip", "install", *options, "--target", target, project])
    return target


@pytest.fixture(scope="module")
def env(installed, tmp_path_factory):
    """The environment variables of a process with the package and an empty home folder."""
    home = tmp_path_factory.mktemp("home")
    return {"PYTHONPATH": str(installed), "RLDS_HOME": str(home), "RLDS_OFFLINE": "1", "RLDS_NO_PROGRESS": "1"}


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    """The folder with the raw files, written by the generator of the page."""
    folder = tmp_path_factory.mktemp("raw")
    names = {}
    exec(FILES["tests/raw/arm.py"], names)
    names["CASES"][0].write(folder / "sessions")
    return folder


@pytest.fixture(scope="module")
def broken(installed, env, tmp_path_factory):
    """An environment with additional entry points of invalid modules."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "broken-1.0.dist-info").mkdir()
    (folder / "broken-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (folder / "broken-1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "raises_source.py").write_text("raise RuntimeError('two\\nlines')\n")
    return {**env, "PYTHONPATH": os.pathsep.join([str(installed), str(folder)])}


def run(env, *commands, program="", cwd=None):
    """Run ``rlds`` commands and then a program in a new process; return the output of each."""
    driver = f"""
import contextlib, io, json, sys
from datasets_rl.cli.app import main

for words in {[list(words) for words in commands]!r}:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
exec({program!r}, {{}})
"""
    lines = call([sys.executable, "-c", driver], env=env, cwd=cwd).stdout.splitlines()
    results = [json.loads(line) for line in lines[: len(commands)]]
    assert [code for code, _, _ in results] == [0] * len(commands), results
    return [(out, err) for _, out, err in results], lines[len(commands) :]


def test_the_commands_and_the_program_of_the_page_run(env, sessions):
    commands = re.findall(r"^\$ rlds (.*)\n((?:[^$].*\n)*)", CONSOLE, flags=re.MULTILINE)
    program = f"{FILES['example.py']}\nprint(ArmExperienceReplay.__name__, ArmExperienceReplay.source)"

    outputs, printed = run(env, *(shlex.split(words) for words, _ in commands), program=program, cwd=sessions)

    assert [words.split()[0] for words, _ in commands] == ["list", "download", "verify", "sample"]
    for (_, shown), (output, _) in zip(commands, outputs, strict=True):
        assert shown in output
    assert "every converted value against session-0.npz, session-1.npz" in outputs[2][0]
    assert "the episode table against the raw files" in outputs[2][0]
    assert printed == ["ArmExperienceReplay arm"]


def test_the_comparison_of_the_page_finds_one_value_that_differs(sessions):
    names = {}
    exec(FILES["tests/oracles/arm.py"], names)
    files = {f"reach/session-{number}.npz": sessions / f"sessions/reach/session-{number}.npz" for number in (0, 1)}
    raw = [dict(np.load(path)) for path in files.values()]
    trajectories = [
        states for one in raw for states in np.split(one["observations"], np.cumsum(one["lengths"] + 1)[:-1])
    ]
    columns = {
        ("observation",): np.concatenate([states[:-1] for states in trajectories]),
        ("next", "observation"): np.concatenate([states[1:] for states in trajectories]),
        ("action",): np.concatenate([one["actions"] for one in raw]),
        ("next", "reward"): np.concatenate([one["rewards"] for one in raw])[:, None],
        ("next", "terminated"): np.concatenate([one["terminals"] for one in raw])[:, None],
    }

    def differences():
        return names["compare"]("arm/reach", files, lambda key, start, stop: columns[key][start:stop], None)

    assert differences() == []
    for key, values in columns.items():
        kept = values[7].copy()
        values[7] = ~kept if values.dtype == bool else kept + 1
        (difference,) = differences()
        assert difference.startswith(f"{'.'.join(key)} at row 7 is ")
        values[7] = kept


def test_built_in_sources_are_not_replaced_and_work_beside_invalid_ones(broken):
    commands = [
        ["list", "--source", "d4rl", "hopper-medium-v2"],
        ["list", "medium-v2"],
        ["download", "demo/pendulum", "--dry-run"],
    ]
    program = """
import warnings

from datasets_rl import info, list_datasets, sources
from datasets_rl.errors import UnknownIdError

print(sources.module_name("d4rl"), type(sources.get_source("d4rl")).__name__)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(*list_datasets("*/reach"))
print(len(caught), "no_such_module" in str(caught[0].message))
try:
    info("pendulum")
except UnknownIdError as error:
    print(error.nearest[0])
"""
    ((alone, quiet), (everything, noted), (dry_run, _)), printed = run(broken, *commands, program=program)

    assert (alone.split("\t")[0], quiet) == ("d4rl/hopper-medium-v2", "")
    assert "d4rl/hopper-medium-v2" in everything
    left_out = [line for line in noted.splitlines() if line.startswith("left out: ")]
    assert len(left_out) == 3
    assert "no_such_module" in left_out[0]
    assert dry_run.startswith("demo/pendulum\n")
    assert printed == ["datasets_rl.sources.d4rl D4RL", "arm/reach", "3 True", "demo/pendulum"]


def test_an_invalid_module_is_an_error_that_names_it(broken):
    program = """
import datasets_rl.datasets
from datasets_rl import sources
from datasets_rl.errors import InvalidArgumentError

for name in ("absent", "raises", "renamed"):
    for function in (sources.get_source, datasets_rl.datasets.dataset_class):
        try:
            function(name)
        except InvalidArgumentError as error:
            print(str(error).replace(chr(10), "; "))
print(datasets_rl.datasets.ArmExperienceReplay.__name__, hasattr(datasets_rl.datasets, "NoExperienceReplay"))
"""
    _, printed = run(broken, program=program)

    hint = "; correct or uninstall the package that registers it"
    absent = "the source absent cannot be imported from no_such_module: ModuleNotFoundError: No module named 'no_such_module'"
    raises = "the source raises cannot be imported from raises_source: RuntimeError: two lines"
    renamed = "SOURCE of arm_source is 'arm', expected a Source named 'renamed'"
    assert printed == [
        *(text + hint for text in (absent, absent, raises, raises, renamed, renamed)),
        "ArmExperienceReplay False",
    ]


def test_selected_episodes_whose_reader_gives_no_number_are_refused(installed, env, sessions, tmp_path):
    (tmp_path / "unnumbered-1.0.dist-info").mkdir()
    (tmp_path / "unnumbered-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: unnumbered\nVersion: 1.0\n"
    )
    (tmp_path / "unnumbered-1.0.dist-info" / "entry_points.txt").write_text(
        "[datasets_rl.sources]\nunnumbered = unnumbered\n"
    )
    (tmp_path / "unnumbered.py").write_text(
        """
from dataclasses import replace

import arm_source


class Unnumbered(arm_source.Arm):
    \"\"\"Selects sessions by the numbers of their episodes, and forgets these numbers.\"\"\"

    name = "unnumbered"
    catalog = arm_source.SOURCE.catalog
    selects = frozenset({"episodes"})

    def resolve(self, name, selection, upstream):
        listing = super().resolve(name, selection, upstream)
        return replace(listing, shards=listing.shards[1:] if selection.episodes == "2:" else listing.shards)


SOURCE = Unnumbered()
"""
    )
    program = f"""
from pathlib import Path

from datasets_rl import Selection, download
from datasets_rl.errors import ConversionError
from datasets_rl.settings import Settings

def convert(jobs, **options):
    settings = Settings(home=Path({str(tmp_path)!r}) / f"home{{jobs}}{{len(options)}}", jobs=jobs, progress=False)
    try:
        return download("unnumbered/reach", from_local={str(sessions / "sessions")!r}, settings=settings, **options).is_dir()
    except ConversionError as error:
        return str(error).replace(chr(10), "; ")

if __name__ == "__main__":
    for jobs in (1, 2):
        print(convert(jobs))
        print(convert(jobs, selection=Selection(episodes="2:")))
        print(convert(jobs, selection=Selection(episodes="0:")))
"""
    (tmp_path / "program.py").write_text(program)
    path = os.pathsep.join([str(ROOT), str(installed), str(tmp_path)])

    printed = call([sys.executable, tmp_path / "program.py"], env={**env, "PYTHONPATH": path}).stdout.splitlines()

    assert printed[::3] == ["True", "True"]
    for refused, episodes in ((printed[1], "2:"), (printed[2], "0:"), (printed[4], "2:"), (printed[5], "0:")):
        assert (
            f"the episodes {episodes} are selected, and the reader of the source unnumbered yields an episode without its"
            " number, expected the number of the episode upstream in metadata['source']" in refused
        )
        assert "report this to the authors of the source. Without " in refused


@pytest.mark.slow
def test_the_source_of_the_page_passes_the_conformance_suite(env, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "oracles").mkdir()
    for path in ("raw/arm.py", "oracles/arm.py"):
        (tmp_path / path).write_text(FILES[f"tests/{path}"], encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RLDS_", "PYTEST_"))}
    words = ["-q", "-p", "no:cacheprovider", "-k", "arm", "tests/conformance/test_sources.py"]
    done = subprocess.run(
        # An option of the interpreter asks for the real Python: pytest rewrites plugins before they are imported.
        [sys.executable, "-s", "-m", "pytest", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PYTHONPATH": path},
        cwd=ROOT,
    )

    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 8
