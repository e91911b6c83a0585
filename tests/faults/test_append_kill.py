"""``rlds append A B`` is killed before its changes of the disk and repeated: every episode is in the dataset once."""

import os
import random
import shutil

import numpy as np
import pytest
from command_server import Server
from stored_data import columns, store_dataset, trajectory

from datasets_rl import load, verify
from datasets_rl.store import version_folder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL")

OWN, MONDAY, TUESDAY = "local/own", "local/monday", "local/tuesday"
COMMAND = ["append", OWN, MONDAY, TUESDAY]


@pytest.fixture(scope="module", params=["locks", "locks that lie"])
def server(request, warm_executable):
    made = Server(warm_executable, lying=request.param == "locks that lie")
    yield made
    made.close()


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A home folder with three datasets, whose episodes have their own lengths; read-only."""
    home = tmp_path_factory.mktemp("start")
    for number, dataset in enumerate((OWN, MONDAY, TUESDAY)):
        given = [trajectory(2 + 3 * number + index, seed=10 * number + index) for index in range(3)]
        store_dataset(home / dataset, given, columns(), id=dataset)
    return home


def check_every_episode_is_in_the_dataset_once(home):
    dataset = load(OWN, root=home / "local", download=False)
    assert dataset.episodes.lengths.tolist() == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    expected = [load(one, root=home / "local", download=False)[:]["observation"] for one in (MONDAY, TUESDAY)]
    assert np.array_equal(dataset[9:]["observation"], np.concatenate(expected), equal_nan=True)
    assert verify(OWN, root=home / "local", deep=True).problems == ()


@pytest.mark.first(1)
@pytest.mark.parametrize("kills", [3, pytest.param(None, marks=pytest.mark.slow)])
def test_a_killed_append_of_two_datasets_that_is_repeated_adds_every_episode_once(server, start, tmp_path, kills):
    home = tmp_path / "home"
    shutil.copytree(start, home)
    changes = server.run(COMMAND, home)["changes"]
    check_every_episode_is_in_the_dataset_once(home)
    numbers = range(1, changes + 1)

    for fatal in numbers if kills is None else random.Random(0).sample(numbers, kills):
        shutil.rmtree(home)
        shutil.copytree(start, home)
        assert server.run(COMMAND, home, fatal)["died"]
        for _ in range(2):
            answer = server.run(COMMAND, home)
            assert answer["code"] == 0, (fatal, answer)
            check_every_episode_is_in_the_dataset_once(home)
        left = {path.name for path in (home / OWN).iterdir()} - {"CURRENT", version_folder(home / OWN).name}
        assert left == set(), fatal
    print(f"\n{changes} changes, {kills or changes} kills")
