"""Benchmarks run at two sizes: with ``-m bench`` at full size and within limits, in the default tests at a small size.

The small size measures nothing, and asserts no limit: it only runs every line. Full size takes at most 5 GB of the
temporary folder at a time.

The rule for limits. A limit is what a user would notice, with the margin between machines in it:

* A ratio of times is compared with a level of `LEVELS`, each noticeably more than the level before. The level is
  the nearest level that every machine keeps on which the benchmark was run. `expect` adds `MARGIN`, for other machines.
* Beside another library, the level is 1 where we are to be no slower, or how many times faster we say that we are.
  Beside a plainer form of our own, it is what the additional work may cost.
* Bytes, memory, and seconds for which a person waits are the same on all machines: `expect_exactly` adds nothing.
* Where we are slower than the other library, the benchmark fails until we are not. Its level stays, and it is not marked as
  an expected failure: on a machine on which it succeeds, the mark would fail.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import warnings
from pathlib import Path

import bench_data
import pytest
import torch
from d4rl_files import big_halfcheetah

from datasets_rl.datasets import D4RLExperienceReplay

LEVELS = (1, 1.5, 2, 3, 5, 10, 20, 50, 100)
"""Ratios that a user can tell from the next ratio, and the inverses for parts of a time."""
FIGURES = "bench.json"
"""The file, in the root of the checkout, for the figures of a run at full size, each beside the figure of the run before."""
MARGIN = 1.25
"""How much another processor, with other caches, may change a ratio of two times of the same run."""


def _is_full(config):
    return "bench" in config.getoption("markexpr")


@pytest.hookimpl(tryfirst=True)  # before the tests that `-m` excludes are dropped
def pytest_collection_modifyitems(config, items):
    """Mark the benchmarks. At the small size, a benchmark of each module shows that it still runs, and the others are slow."""
    folder = str(Path(__file__).parent / "test_")
    seen = set()
    for item in items:  # of all tests, not only of this folder
        if not str(item.path).startswith(folder):
            continue
        item.add_marker(pytest.mark.bench)
        if _is_full(config):
            item.add_marker(pytest.mark.timeout(900))
        elif item.path in seen or "torchrl_data" in item.fixturenames:
            item.add_marker(pytest.mark.slow)
        elif not item.get_closest_marker("slow"):
            seen.add(item.path)


@pytest.fixture(scope="session")
def full(request):
    """Whether this is a run of ``-m bench``."""
    return _is_full(request.config)


@pytest.fixture(scope="session")
def size(full):
    """The number for this run: ``size(full=1_000_000, small=1_000)``."""
    name = "full" if full else "small"
    return lambda **sizes: sizes[name]


@pytest.fixture(scope="session", autouse=True)
def one_thread(full):
    """Compute in a single thread, as most of what is compared does: on a busy machine, torch waits for the second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if full else threads)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def compare(full):
    """Print and return the least seconds of each call: `bench_data.compare`."""

    def compare(calls, *, rounds=60, repeat=25):
        taken = bench_data.compare(calls, rounds=rounds if full else 1, repeat=repeat if full else 1)
        print("\n" + ", ".join(f"{name} {seconds * 1e6:,.0f} us" for name, seconds in taken.items()))
        return taken

    return compare


@pytest.fixture(scope="session")
def expect(expect_exactly):
    """Print a ratio of times, and its limit: a level and the margin between machines; at full size, assert the limit."""

    def expect(what, ratio, *, at_least=None, at_most=None):
        level = at_most or at_least
        assert level in LEVELS or 1 / level in LEVELS, f"the level of {what} is {level}, expected one of {LEVELS}"
        if at_most:
            expect_exactly(what, ratio, at_most=at_most * MARGIN)
        else:
            expect_exactly(what, ratio, at_least=at_least / MARGIN)

    return expect


@pytest.fixture(scope="session")
def figures(full, pytestconfig):
    """The figures of this run by name, which are kept in `FIGURES` at full size; of other tests, those of the run before."""
    path = pytestconfig.rootpath / FIGURES
    before = json.loads(path.read_text("utf-8"))["figures"] if full and path.exists() else {}
    measured = {}
    yield measured
    if not full or not measured:
        return
    rows = {name: row | {"before": before.get(name, {}).get("figure")} for name, row in measured.items()}
    machine = (
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    )
    content = {"machine": machine, "figures": dict(sorted((before | rows).items()))}
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


@pytest.fixture(scope="session")
def expect_exactly(full, figures):
    """Print a figure that is the same on all machines, and its limit; at full size, assert the limit."""

    def expect_exactly(what, figure, *, at_least=-math.inf, at_most=math.inf):
        limits = f"at least {at_least:.4g}" if at_most == math.inf else f"at most {at_most:.4g}"
        print(f"\n{what}: {figure:.2f} ({limits})")
        test = os.environ["PYTEST_CURRENT_TEST"].partition("tests/bench/")[2].partition(" ")[0]
        figures[f"{test}: {what}"] = {"figure": float(f"{figure:.4g}"), "limit": limits}
        assert not full or at_least <= figure <= at_most, f"{what} is {figure:.3f}, expected {limits}"

    return expect_exactly


@pytest.fixture(scope="session")
def run_in_child(full):
    """Call a function of a file in another process, to measure the memory. At a small size, call it in this process."""
    return bench_data.run_in_child if full else lambda function, *arguments: function(*arguments)


@pytest.fixture(scope="session")
def torchrl_data():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torchrl.data", reason="pip install --no-deps torchrl hoptorch")


@pytest.fixture
def tmp_path(tmp_path):
    """A folder that is removed with the test, whose outcome does not matter: pytest would keep those of three runs."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)  # Windows keeps files that are mapped


@pytest.fixture(scope="session")
def session_path(tmp_path_factory):
    """A folder for what several tests read, some 800 MB at full size."""
    path = tmp_path_factory.mktemp("session")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def raw_file(session_path, size):
    """A D4RL file of HalfCheetah's shape."""
    return big_halfcheetah(session_path / "halfcheetah.hdf5", steps=size(full=1_000_000, small=10_000))


@pytest.fixture(scope="session")
def plain_file(session_path, size):
    """The same without infos: the shape of the v0 files."""
    return big_halfcheetah(session_path / "plain.hdf5", steps=size(full=1_000_000, small=10_000), infos=False)


@pytest.fixture(scope="session")
def ours(plain_file, session_path):
    """The plain file as our dataset."""
    bench_data.converted(plain_file, session_path / "ours")
    return D4RLExperienceReplay(bench_data.NAME, root=session_path / "ours", download=False)


@pytest.fixture(scope="session")
def theirs(plain_file, session_path):
    """The plain file as TorchRL's dataset."""
    return bench_data.torchrl_dataset(plain_file, session_path / "theirs")
