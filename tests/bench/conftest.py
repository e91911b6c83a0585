"""One million HalfCheetah-shaped transitions, as a D4RL file, as ours and as TorchRL's."""

import os

import pytest
from bench_data import NAME, converted, torchrl_dataset
from d4rl_files import big_halfcheetah

from datasets_rl.datasets import D4RLExperienceReplay

STEPS = int(os.environ.get("RLDS_BENCH_STEPS", "1000000"))


def pytest_collection_modifyitems(items):
    for item in items:
        if "bench" in item.path.parts:
            item.add_marker(pytest.mark.bench)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def show(capsys):
    def show(text):
        with capsys.disabled():
            print(text)

    return show


@pytest.fixture(scope="session")
def raw_file(tmp_path_factory):
    return big_halfcheetah(tmp_path_factory.mktemp("raw") / "halfcheetah.hdf5", steps=STEPS)


@pytest.fixture(scope="session")
def plain_file(tmp_path_factory):
    """The same without infos: the shape of the v0 files."""
    return big_halfcheetah(tmp_path_factory.mktemp("raw") / "plain.hdf5", steps=STEPS, infos=False)


@pytest.fixture(scope="session")
def ours(plain_file, tmp_path_factory):
    root = tmp_path_factory.mktemp("ours")
    converted(plain_file, root)
    return D4RLExperienceReplay(NAME, root=root, download=False)


@pytest.fixture(scope="session")
def theirs(plain_file, tmp_path_factory):
    return torchrl_dataset(plain_file, tmp_path_factory.mktemp("theirs"))
