"""The Ray engine for recipes and downloads: the same bytes and errors as in this process, and nodes that die."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from raw.minari import SPACES, episodes, write
from stored_data import columns, store_dataset, trajectory

from datasets_rl import Selection, disk, downloading
from datasets_rl.build.engines.ray import RayEngine
from datasets_rl.errors import ConversionError, InvalidArgumentError, MissingDependencyError, PreprocessError
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.writer import DatasetWriter
from datasets_rl.preprocessing import Recipe, partial, preprocess
from datasets_rl.progress import Report
from datasets_rl.settings import Settings
from datasets_rl.sources import minari
from datasets_rl.store import version_folder

ray = pytest.importorskip("ray", reason="pip install 'datasets-rl[ray]'")

PARTS = 8

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:ray", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    given = [trajectory(3 + number % 7, seed=number, known=number % 3 > 0) for number in range(40)]
    return store_dataset(tmp_path_factory.mktemp("home") / "toy" / "data", given, columns()).folder.parent


def changed(seconds=0.0):
    def change(step):
        import time as clock

        clock.sleep(seconds)
        step["norm"] = step["observation"].norm(dim=-1)
        return step.set("action", step["action"].double() / 3)

    return Recipe([change])


def files(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*.npy")}


@pytest.fixture(scope="module")
def wanted(folder, tmp_path_factory):
    """The result of this process without a cluster."""
    return files(preprocess(folder, changed(), out=tmp_path_factory.mktemp("here") / "out", num_parts=PARTS))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_node")
def test_a_cluster_makes_the_same_bytes_as_this_process(folder, tmp_path, wanted):
    made = preprocess(folder, changed(), out=tmp_path / "out", num_parts=PARTS, engine=RayEngine())

    assert files(made) == wanted
    assert not [path for path in tmp_path.rglob("*") if "partials" in path.name]


@pytest.mark.usefixtures("ray_node")
def test_an_error_on_a_node_is_raised_here(folder, tmp_path):
    def fails(step):
        if step["episode"] == 7:
            raise ValueError("no such thing")
        return step

    said = []
    for engine in (None, RayEngine()):
        with pytest.raises(PreprocessError) as raised:
            preprocess(folder, Recipe([fails]), out=tmp_path / "out", num_parts=PARTS, engine=engine)
        said.append((type(raised.value), raised.value.message, raised.value.hint))

    assert said[0] == said[1]
    assert "episode 7" in said[0][1]
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("ray_node")
def test_a_node_without_the_shared_folder_is_named(tmp_path):
    task = {"folder": str(tmp_path / "nowhere" / "000000")}

    with RayEngine() as engine, pytest.raises(InvalidArgumentError, match="does not see") as raised:
        engine.submit(partial.make_partial_dataset, task, Report())()
    assert "all nodes share" in raised.value.hint


NAME = "test/things/drawn-v3"


@pytest.fixture
def get(tmp_path, monkeypatch):
    """A function that downloads a dataset of several shards with text from local files."""
    monkeypatch.setattr(minari, "_SHARD_BYTES", 10_000)
    lengths = np.random.default_rng(1).integers(1, 9, 20).tolist()
    raw = tmp_path / "raw"
    write(raw, NAME, episodes(SPACES["text"], lengths, seeds=range(20)), space=SPACES["text"], data_format="parquet")

    def run(place, **options):
        settings = Settings(home=tmp_path / place, jobs=1, progress=False, retries=0)
        return downloading.download(f"minari/{NAME}", **{"from_local": raw, **options}, settings=settings)

    return run


def whole(folder):
    """Return the digests of all files, and the manifest."""
    return files(folder), json.loads((version_folder(folder) / "manifest.json").read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("ray_node")
@pytest.mark.parametrize("selection", [{}, {"keys": ("observation",)}, {"episodes": "3:15:2"}], ids=str)
def test_a_cluster_converts_to_the_same_bytes_as_this_process(get, selection):
    here = get("here", selection=Selection(**selection))
    there = get("there", selection=Selection(**selection), engine=RayEngine())

    assert whole(here) == whole(there)
    assert not [*there.parents[3].rglob("partials")]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_node")
def test_this_process_resumes_the_work_of_a_cluster(get, monkeypatch):
    append_partial, life = DatasetWriter.append_partial, []

    def dies(self, *part):
        life.append(part)
        if len(life) == 3:
            raise KeyboardInterrupt
        append_partial(self, *part)

    monkeypatch.setattr(DatasetWriter, "append_partial", dies)
    with pytest.raises(KeyboardInterrupt):
        get("home", engine=RayEngine())

    assert whole(get("home")) == whole(get("here"))
    assert len(life) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("ray_node")
def test_an_error_in_the_data_has_the_same_message_on_a_node(get, tmp_path):
    copy = tmp_path / "copy"
    told = []
    get("home")
    shutil.copytree(tmp_path / "raw", copy)
    (copy / NAME / "data" / "17" / "metadata.json").write_text('{"total_steps": 99}')
    for place, engine in (("here", None), ("there", RayEngine())):
        with pytest.raises(ConversionError, match="episode 17") as raised:
            get(place, from_local=copy, engine=engine)
        told.append((raised.value.name, raised.value.problems, raised.value.hint))

    assert told[0] == told[1]


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(MissingDependencyError) as raised, RayEngine():
        pass
    assert raised.value.hint == "pip install 'datasets-rl[ray]'"


def test_two_attempts_at_a_partial_do_not_interfere(folder, tmp_path, monkeypatch):
    """A node that was given up may still run: the second attempt finishes during the first one."""
    tasks = []

    class Kept(contextlib.nullcontext):
        max_in_flight = PARTS

        def submit(self, _, task, __):
            tasks.append(task)
            if len(tasks) == PARTS:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        preprocess(folder, changed(), out=tmp_path / "out", num_parts=PARTS, engine=Kept())
    # The interrupted process has given its build back, under a name without its own.
    task = {
        name: value.replace(f"@{disk.process_name()}", "") if isinstance(value, str) else value
        for name, value in tasks[-1].items()
    }
    task["folder"] = str(tmp_path / "parts" / "000000")
    fill = partial.write_episodes

    def overtaken(*arguments):
        monkeypatch.setattr(partial, "write_episodes", fill)
        said = fill(*arguments)
        second.append(partial.make_partial_dataset(task, Report()))
        return said

    second = []
    monkeypatch.setattr(partial, "write_episodes", overtaken)
    first = partial.make_partial_dataset(task, Report())

    assert [first] == second
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["000000"]


@pytest.mark.slow
def test_a_node_that_dies_loses_only_its_parts(folder, tmp_path, wanted, capsys):
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 << 20}
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        doomed = cluster.add_node(**node)
        begun = tmp_path / "begun"
        begun.mkdir()

        here, last = os.getpid(), doomed.node_id

        def noted(step):
            import os as system
            import time as clock

            from ray import get_runtime_context

            # This process runs the function on the first episodes before it makes the plan.
            if (number := int(step["episode"])) % 5 == 0 and system.getpid() != here:
                node = get_runtime_context().get_node_id()
                (begun / f"{number}.{node}").touch()
                if node == last:
                    clock.sleep(300)  # it dies here
            return step

        def kill():
            while not [*begun.glob(f"*.{last}")]:
                time.sleep(0.05)
            cluster.remove_node(doomed, allow_graceful=False)

        killer = threading.Thread(target=kill)
        killer.start()
        recipe = Recipe([noted, *changed(seconds=0.05).steps])
        made = preprocess(folder, recipe, out=tmp_path / "out", num_parts=PARTS, engine=RayEngine(cluster.address))
        killer.join()

        attempts = [int(path.name.partition(".")[0]) for path in begun.iterdir()]
        assert files(made) == wanted
        assert len(cluster.list_all_nodes()) == 1
        assert set(attempts) == set(range(0, 40, 5))
        assert "retries remaining" not in capsys.readouterr().out
        (lost,) = (int(path.name.partition(".")[0]) for path in begun.glob(f"*.{last}"))
        assert sorted(attempts) == sorted([*range(0, 40, 5), lost])
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
def test_a_cluster_elsewhere_is_reached_by_its_address(folder, tmp_path, wanted, monkeypatch):
    from ray.cluster_utils import Cluster

    # The head starts a process per client; the default timeout of 30 seconds is too short on a slow machine.
    monkeypatch.setenv("RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S", "200")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.shutdown()
    head = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False, "ray_client_server_port": port}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        engine = RayEngine(f"ray://127.0.0.1:{port}")
        made = preprocess(folder, changed(), out=tmp_path / "out", num_parts=PARTS, engine=engine)

        assert files(made) == wanted
        with engine, pytest.raises(InvalidArgumentError, match="does not see"):
            engine.submit(partial.make_partial_dataset, {"folder": str(tmp_path / "nowhere" / "000000")}, Report())()
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
def test_ctrl_c_ends_the_tasks_and_the_next_run_resumes(folder, tmp_path, wanted):
    program = f"""
    from pathlib import Path
    from datasets_rl.preprocessing import Recipe, preprocess
    from datasets_rl.build.engines.ray import RayEngine

    def change(step):
        import time
        time.sleep(float(Path({str(tmp_path / "pace")!r}).read_text()))
        step["norm"] = step["observation"].norm(dim=-1)
        return step.set("action", step["action"].double() / 3)

    preprocess(Path({str(folder)!r}), Recipe([change]), out=Path({str(tmp_path / "out")!r}), num_parts={PARTS},
               engine=RayEngine())
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    (tmp_path / "pace").write_text("0.2")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "RLDS_NO_PROGRESS": "1"})
    while not any(path.read_text().count("\n") > 1 for path in tmp_path.rglob("journal.jsonl")):
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)

    assert "KeyboardInterrupt" in said
    assert not (tmp_path / "out" / "CURRENT").exists()
    (tmp_path / "pace").write_text("0")
    subprocess.run(command, check=True, timeout=150)
    # If Ray has to kill a task after Ctrl-C, its files remain until the next run.
    assert not [*(tmp_path / "out").glob("build-*")]
    assert files(tmp_path / "out") == wanted
    assert StoredDataset(tmp_path / "out")
