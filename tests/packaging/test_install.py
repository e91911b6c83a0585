"""The wheel and the editable install work, and the wheel has only one import package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import datasets_rl

ROOT = Path(datasets_rl.__file__).parents[1]
PACKAGE_PATHS = ("datasets_rl", "cli", "recipes", "pyproject.toml", "setup.py", "README.md", "LICENSE")
NEEDED = (
    "datasets_rl/py.typed",
    "datasets_rl/sources/demo/pendulum.hdf5",
    "datasets_rl/format/FORMAT.md",
    "datasets_rl/sources/d4rl/catalog.json",
    "datasets_rl/sources/demo/catalog.json",
    "datasets_rl/view/assets/page.html",
    "datasets_rl/view/assets/page.css",
    "datasets_rl/view/assets/page.js",
    "datasets_rl/cli/app.py",
    "datasets_rl/cli/commands/download.py",
    "datasets_rl/recipes/__init__.py",
)


def call(command: list[object], **options: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pip(*words: object) -> None:
    """Run pip offline; only this package is built and installed."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    call([sys.executable, "-m", "pip", *words, *quiet])


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the checkout, because a build creates folders in its source."""
    folder = tmp_path_factory.mktemp("source")
    for name in PACKAGE_PATHS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", source, "--wheel-dir", folder, "--no-build-isolation")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def editable(source, tmp_path_factory) -> Path:
    """The editable wheel that `pip install --editable` would build, built without pip."""
    folder = tmp_path_factory.mktemp("editable_wheel")
    program = "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"
    call([sys.executable, "-c", program, folder], cwd=source)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installed(request, tmp_path_factory) -> Path:
    """A virtual environment with this package, and with the libraries of the environment of the tests."""
    folder = tmp_path_factory.mktemp(request.param)
    call([sys.executable, "-m", "venv", "--without-pip", folder])
    (packages,) = folder.glob("lib/python*/site-packages")
    # After its own packages. Python ignores .pth files there, so that an editable install there has no effect.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    pip("--python", folder / "bin" / "python", "install", request.getfixturevalue(request.param))
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


def test_the_installed_package_is_imported(installed, tmp_path):
    out = run(
        installed, "python", "-c", "import datasets_rl.cli, datasets_rl.recipes as r; print(r.__file__)", home=tmp_path
    )

    assert str(ROOT) not in out


def test_the_installed_command_downloads_a_dataset(installed, tmp_path):
    version = run(installed, "rlds", "--version", home=tmp_path)
    listed = run(installed, "rlds", "list", "demo/", "-q", home=tmp_path)
    folder = run(installed, "rlds", "download", "demo/pendulum", home=tmp_path)
    checked = run(installed, "rlds", "verify", "demo/pendulum", home=tmp_path)

    assert version == f"rlds {datasets_rl.__version__}\n"
    assert listed == "demo/pendulum\n"
    assert folder == f"{tmp_path / 'demo' / 'pendulum'}\n"
    assert "intact" in checked
