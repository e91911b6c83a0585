"""The wheel and the editable install work, and the wheel has only one import package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import datasets_rl

ROOT = Path(datasets_rl.__file__).parents[1]
ROOT_FILES = (
    "CHANGELOG.md",
    "CITATION.cff",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "changes.py",
    "constraints.txt",
    "mkdocs.yml",
    "pyproject.toml",
    "setup.py",
)
FOLDERS = ("changes", "cli", "datasets_rl", "docs", "recipes", "tests")
UNTRACKED = ("__pycache__", ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache")
NEEDED = (
    "datasets_rl/py.typed",
    "datasets_rl/sources/demo/pendulum.hdf5",
    "datasets_rl/format/FORMAT.md",
    "datasets_rl/sources/d4rl/catalog.json",
    "datasets_rl/sources/demo/catalog.json",
    "datasets_rl/look/page/assets/page.html",
    "datasets_rl/look/page/assets/page.css",
    "datasets_rl/look/page/assets/page.js",
    "datasets_rl/cli/app.py",
    "datasets_rl/cli/commands/download.py",
    "datasets_rl/recipes/__init__.py",
)


def call(command: list[object], **options: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pip(*words: object) -> None:
    """Run pip offline; only this package is built and installed, also where PYTHONPATH names a checkout of it."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    call([sys.executable, "-m", "pip", *words, *quiet], env=environment)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the checkout, because a build creates folders in its source."""
    folder = tmp_path_factory.mktemp("source")
    for name in ROOT_FILES:
        shutil.copy(ROOT / name, folder / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*UNTRACKED))
    return folder


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory) -> tuple[Path, str]:
    """The unpacked source distribution, beside the wheel, and what the builds of both reported."""
    folder = tmp_path_factory.mktemp("sdist")
    program = (
        "import sys; from setuptools import build_meta as b; to = sys.argv[1]; b.build_sdist(to); b.build_wheel(to)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, folder], cwd=source, capture_output=True, text=True, check=True
    )
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz"), done.stderr


@pytest.fixture(scope="module")
def wheel(sdist) -> Path:
    (built,) = sdist[0].parent.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def editable(source, tmp_path_factory) -> Path:
    """The editable wheel that `pip install --editable` would build, built without pip."""
    folder = tmp_path_factory.mktemp("editable_wheel")
    program = "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"
    call([sys.executable, "-c", program, folder], cwd=source)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module", params=["wheel", pytest.param("editable", marks=pytest.mark.slow)])
def installed(request, tmp_path_factory) -> Path:
    """A virtual environment with this package, and with the libraries of the environment of the tests."""
    folder = tmp_path_factory.mktemp(request.param)
    call([sys.executable, "-m", "venv", "--without-pip", folder])
    (packages,) = folder.glob("lib/python*/site-packages")
    # After its own packages. Python ignores .pth files there, so that an editable install there has no effect.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    wheel = request.getfixturevalue(request.param)
    pip("--python", folder / "bin" / "python", "install", "--no-compile", wheel)  # Python compiles what is imported
    return folder


def run(folder: Path, *words: str, home: Path) -> str:
    """Run a program of the environment."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RLDS_", "PYTHONPATH"))}
    return call([folder / "bin" / words[0], *words[1:]], env={**env, "RLDS_HOME": str(home)}, cwd=home)


def test_the_wheel_has_one_import_package_and_all_its_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"datasets_rl"}
    assert [name for name in NEEDED if name not in names] == []
    assert [name for name in names if "__pycache__" in name or name.startswith("tests")] == []


def test_the_wheel_has_every_module_of_the_checkout(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    folders = {
        "datasets_rl": ROOT / "datasets_rl",
        "datasets_rl/cli": ROOT / "cli",
        "datasets_rl/recipes": ROOT / "recipes",
    }
    modules = {f"{top}/{path.relative_to(at).as_posix()}" for top, at in folders.items() for path in at.rglob("*.py")}

    assert modules - names == set()


@pytest.mark.slow
def test_the_installed_package_is_imported(installed, tmp_path):
    out = run(
        installed, "python", "-c", "import datasets_rl.cli, datasets_rl.recipes as r; print(r.__file__)", home=tmp_path
    )

    assert str(ROOT) not in out


@pytest.mark.slow
def test_the_installed_command_downloads_a_dataset(installed, tmp_path):
    version = run(installed, "rlds", "--version", home=tmp_path)
    listed = run(installed, "rlds", "list", "demo/", "-q", home=tmp_path)
    folder = run(installed, "rlds", "download", "demo/pendulum", home=tmp_path)
    checked = run(installed, "rlds", "verify", "demo/pendulum", home=tmp_path)

    assert version == f"rlds {datasets_rl.__version__}\n"
    assert listed == "demo/pendulum\n"
    assert folder == f"{tmp_path / 'demo' / 'pendulum'}\n"
    assert "intact" in checked


def test_the_sdist_has_every_file_of_the_checkout(source, sdist):
    unpacked, _ = sdist
    checkout = {path.relative_to(source) for name in FOLDERS for path in (source / name).rglob("*") if path.is_file()}
    checkout |= {Path(name) for name in ROOT_FILES}

    assert {one for one in checkout if "__pycache__" not in one.parts and not (unpacked / one).is_file()} == set()
    assert [*unpacked.rglob("__pycache__")] == []


def test_the_tests_of_the_sdist_run_on_its_own_package(sdist):
    unpacked, _ = sdist
    program = "import datasets_rl, pytest, sys; print(datasets_rl.__file__); sys.exit(pytest.main(sys.argv[1:]))"

    out = call([sys.executable, "-c", program, "-q", "-p", "no:cacheprovider", "tests/test_settings.py"], cwd=unpacked)

    assert out.startswith(str(unpacked))
    assert re.search(r"\d+ passed", out)


def test_the_build_reports_no_warning(sdist):
    _, reported = sdist

    warnings = [line for line in reported.splitlines() if "warning" in line.lower()]

    # A fresh checkout has no compiled files that could be left out.
    assert [line for line in warnings if "matching '*.py[co]'" not in line] == [], reported


def test_every_link_of_the_long_description_leads_to_a_file_of_the_repository(wheel):
    """An index shows the README without the files beside it."""
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    description = archive.read(name).decode().partition("\n\n")[2]
    own = re.compile(
        r"https://(?:github|raw\.githubusercontent)\.com/datasets-rl/datasets-rl/(?:blob/)?main/([^)#\s]+)"
    )
    targets = re.findall(r"\]\(([^)\s]+)\)", description)
    paths = [found[1] for target in targets if (found := own.fullmatch(target.partition("#")[0]))]

    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert (
        "](https://raw.githubusercontent.com/datasets-rl/datasets-rl/main/docs/images/view-images.png)" in description
    )
    assert "Description-Content-Type: text/markdown" in archive.read(name).decode()


def test_type_checkers_find_the_package_by_a_path(editable, source):
    """They read .pth files, and run no import hook."""
    with zipfile.ZipFile(editable) as wheel:
        paths = {name: wheel.read(name).decode().strip() for name in wheel.namelist() if name.endswith(".pth")}
        modules = [name for name in wheel.namelist() if name.endswith(".py")]

    assert [*paths.values()] == [str(source)]
    assert modules == []


PROGRAM = """\
from datasets_rl import Selection, load

dataset = load("demo/pendulum")
dataset.smaple(256)
part = Selection(episodes=1.5)
number: str = dataset.batch_size
"""


@pytest.mark.slow
@pytest.mark.parametrize("installed", ["editable"], indirect=True)
def test_a_type_checker_finds_the_mistakes_of_a_program_after_the_install_of_the_readme(installed, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        installed / "bin" / "python",
        "program.py",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    found = re.findall(r"^program\.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, flags=re.MULTILINE)
    assert found == [("4", "attr-defined"), ("5", "arg-type"), ("6", "assignment")], done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("pyright") is None, reason="pip install 'pyright[nodejs]'")
@pytest.mark.parametrize("installed", ["editable"], indirect=True)
def test_pyright_finds_the_same_mistakes_and_completes(installed, tmp_path):
    (tmp_path / "program.py").write_text(f"{PROGRAM}reveal_type(dataset.sample)\n")
    command = ["pyright", "--outputjson", "--pythonpath", str(installed / "bin" / "python"), "program.py"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    told = json.loads(done.stdout)["generalDiagnostics"]
    errors = [(one["range"]["start"]["line"] + 1, one["rule"]) for one in told if one["severity"] == "error"]
    assert errors == [(4, "reportAttributeAccessIssue"), (5, "reportArgumentType"), (6, "reportAssignmentType")]
    (revealed,) = (one["message"] for one in told if one["severity"] == "information")
    assert "batch_size: int | None" in revealed


def test_a_second_checkout_runs_its_own_commands(source, tmp_path):
    (source / "cli" / "mark.py").write_text('"""Only in this checkout."""\n')
    program = "import datasets_rl.cli.mark as own, datasets_rl.recipes as r; print(own.__file__, r.__file__, sep='\\n')"
    environment = {**os.environ, "PYTHONPATH": str(source), "RLDS_HOME": str(tmp_path)}
    files = call([sys.executable, "-c", program], env=environment, cwd=tmp_path).split()

    assert files == [str(source / "cli" / "mark.py"), str(source / "recipes" / "__init__.py")]
