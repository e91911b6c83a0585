"""Benchmarks run at two sizes: with ``-m bench`` at full size and within limits, in the default tests at a small one.

The small size measures nothing, and asserts no limit: it only runs every line. Full size takes at most 5 GB of the
temporary folder at a time.
"""

from __future__ import annotations

import math
import shutil
import warnings
from pathlib import Path

import bench_data
import pytest
import torch
from d4rl_files import big_halfcheetah

from datasets_rl.datasets import D4RLExperienceReplay


def _is_full(config):
    return "bench" in config.getoption("markexpr")


def pytest_collection_modifyitems(config, items):
    folder = str(Path(__file__).parent / "test_")
    for item in items:  # of all tests, not only of this folder
        if str(item.path).startswith(folder):
            item.add_marker(pytest.mark.bench)
            if _is_full(config):
                item.add_marker(pytest.mark.timeout(900))


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
    """Compute in one thread, as most of what is compared does: on a busy machine, torch waits for its second one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if full else threads)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def compare(full):
    """Print and return the least seconds of each call: `bench_data.compare`."""

    def compare(calls, *, rounds=15, repeat=100):
        taken = bench_data.compare(calls, rounds=rounds if full else 1, repeat=repeat if full else 1)
        print("\n" + ", ".join(f"{name} {seconds * 1e6:,.0f} us" for name, seconds in taken.items()))
        return taken

    return compare


@pytest.fixture(scope="session")
def expect(full):
    """Print a figure, a ratio wherever it is of time, and its limit; at full size, assert the limit."""

    def expect(what, figure, *, at_least=-math.inf, at_most=math.inf):
        limits = f"at least {at_least}" if at_most == math.inf else f"at most {at_most}"
        print(f"\n{what}: {figure:.2f} ({limits})")
        assert not full or at_least <= figure <= at_most, f"{what} is {figure:.3f}; expected {limits}"

    return expect


@pytest.fixture(scope="session")
def run_in_child(full):
    """Call a function of a file in another process, whose memory can be measured; at a small size, in this one."""
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
