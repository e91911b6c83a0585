"""Flat dicts of a dataset, with the keys and dtypes of other training programs."""

from __future__ import annotations

import sys

import d4rl_files
import numpy as np
import pytest
import torch
from raw.ogbench import draw, write_file
from stored_data import Column, Model, columns, trajectory, write_dataset

from datasets_rl import Selection, downloading, gather, load
from datasets_rl.errors import InvalidArgumentError, MissingDependencyError

TRAJECTORIES = [
    trajectory(4, terminated=True),
    trajectory(1),
    trajectory(5, seed=2),
    trajectory(2, seed=3, terminated=True),
]
TERMINATED = np.array([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1], bool)
ENDS = np.array([0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 1], bool)


@pytest.fixture
def dataset(tmp_path):
    write_dataset(tmp_path, TRAJECTORIES)
    return load(tmp_path)


def expected(layout, model=None, terminated=TERMINATED, ends=ENDS):
    """Return the arrays of a layout, indexed row by row."""
    model = model or Model(TRAJECTORIES)
    action = model.column(("action",))
    flat = {
        "observations": model.column(("observation",)),
        "actions": np.clip(action, -(1 - 1e-5), 1 - 1e-5) if layout == "rlpd" else action,
        "rewards": model.column(("next", "reward"))[:, 0],
    }
    if layout == "d4rl":
        return flat | {"terminals": terminated, "timeouts": ends & ~terminated}
    flat["next_observations"] = model.column(("next", "observation"))
    if layout == "corl":
        return flat | {"terminals": terminated.astype(np.float32)}
    flat["masks"] = 1 - terminated.astype(np.float32)
    return flat | ({"dones": ends} if layout == "rlpd" else {"terminals": ends.astype(np.float32)})


@pytest.mark.parametrize("layout", ["corl", "ogbench", "rlpd"])
def test_time_outs_can_be_left_out(dataset, layout):
    """Rows 4 and 9 are time-outs, of which the first is a whole episode."""
    flat, numbers = dataset.as_dict(layout, timeouts=False), expected(layout)
    rows = [0, 1, 2, 3, 5, 6, 7, 8, 10, 11]
    ends = np.isin(rows, [3, 8, 11])

    for name, array in flat.items():
        is_end = name == "dones" or (name == "terminals" and layout == "ogbench")
        assert np.array_equal(array, ends if is_end else numbers[name][rows]), name
    assert len(dataset.as_dict(layout)["rewards"]) == 12


def test_a_dataset_of_nothing_but_time_outs_is_refused(tmp_path):
    write_dataset(tmp_path, [trajectory(1), trajectory(1, seed=1)])

    with pytest.raises(InvalidArgumentError, match="timeouts is False, which removes all 2 steps"):
        load(tmp_path).as_dict("corl", timeouts=False)


@pytest.mark.parametrize("layout", ["d4rl", "corl", "ogbench", "rlpd"])
def test_arrays_have_the_keys_and_dtypes_of_the_program(dataset, layout):
    flat, numbers = dataset.as_dict(layout), expected(layout)

    assert flat.keys() == numbers.keys()
    for name, array in flat.items():
        assert array.dtype == numbers[name].dtype, name
        assert np.array_equal(array, numbers[name]), name
    rows = np.array([11, 0, 3, 3, 4])
    tensors = dataset.as_dict(layout, "torch", "cpu")
    assert all(np.array_equal(tensors[name][rows].numpy(), numbers[name][rows]) for name in numbers)


def test_the_data_of_rlpd_has_the_flags_of_its_own_rule(dataset):
    """RLPD compares each next observation with the following observation, and sets the last row."""
    flat = dataset.as_dict("rlpd")
    differs = np.linalg.norm(flat["observations"][1:] - flat["next_observations"][:-1], axis=-1) > 1e-6

    assert np.array_equal(flat["dones"], np.append(differs | (flat["masks"][:-1] == 0), [True]))


def test_stored_columns_are_views_whose_changes_stay_private(dataset):
    """A view has the strides of the packed rows of the file."""
    size = dataset.stored.schema.record_bytes
    flat = dataset.as_dict("d4rl")
    assert {array.strides[0] for array in flat.values()} == {size}
    other = dataset.as_dict("ogbench", "torch")
    views = {name for name, tensor in other.items() if tensor.stride(0) * tensor.element_size() == size}
    assert views == {"observations", "actions", "rewards"}

    before = dataset[:].clone()
    flat["rewards"] -= 1
    other["observations"].zero_()
    assert (dataset[:] == before).all()
    assert np.array_equal(dataset.as_dict("d4rl")["rewards"], flat["rewards"] + 1)


def test_a_part_of_a_dataset_has_its_own_ends(tmp_path):
    write_dataset(tmp_path, TRAJECTORIES)
    part = load(tmp_path, selection=Selection(episodes="1:3")).as_dict("ogbench")

    assert part["terminals"].tolist() == [1, 0, 0, 0, 0, 1]
    assert np.array_equal(part["observations"], expected("ogbench")["observations"][4:10])


def test_transitions_without_a_known_next_observation_are_left_out(tmp_path):
    """The target of a terminated transition needs no next observation, and D4RL's own layout has none."""
    write_dataset(tmp_path, [trajectory(3, known=False), trajectory(2, known=False, terminated=True)])
    dataset = load(tmp_path, final_unknown="keep")
    assert len(dataset.as_dict("corl")["rewards"]) == len(dataset) == 5
    with pytest.warns(UserWarning, match="final"):
        dataset = load(tmp_path)

    flat = dataset.as_dict("ogbench")
    assert flat["masks"].tolist() == [1, 1, 1, 0]
    assert flat["terminals"].tolist() == [0, 1, 0, 1]
    assert np.array_equal(flat["next_observations"][1], dataset[2]["observation"].numpy())
    assert len(dataset.as_dict("d4rl")["rewards"]) == 5


def test_other_dtypes_and_nested_observations(tmp_path):
    """Numbers become float32, images and integers stay, and parts of an observation stay separate."""

    def with_goal(steps):
        made = trajectory(steps)
        states = {("observation", "state"): made.states["observation",].astype(np.float64)}
        states["observation", "pixels"] = np.arange(4 * (steps + 1), dtype=np.uint8).reshape(steps + 1, 4)
        return type(made)(made.steps, states)

    fields = [
        Column(("observation", "state"), np.dtype(np.float64), (3,), shared=True),
        Column(("observation", "pixels"), np.dtype(np.uint8), (4,), shared=True),
        *columns()[1:],
    ]
    write_dataset(tmp_path, [with_goal(3)], fields)
    flat = load(tmp_path).as_dict("corl")

    assert flat["observations"]["state"].dtype == flat["next_observations"]["state"].dtype == np.float32
    assert flat["next_observations"]["pixels"].tolist() == [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert flat["observations"]["pixels"].dtype == np.uint8


def test_arrays_of_jax_have_the_same_values(dataset):
    jax = pytest.importorskip("jax")
    for layout in ("d4rl", "rlpd"):
        flat, numbers = dataset.as_dict(layout, framework="jax", device="cpu"), expected(layout)
        assert all(isinstance(array, jax.Array) and array.dtype == numbers[name].dtype for name, array in flat.items())
        assert all(np.array_equal(flat[name], numbers[name]) for name in numbers)


def test_without_jax_the_error_says_what_to_install(dataset, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingDependencyError, match="jax"):
        dataset.as_dict("corl", framework="jax")


def test_invalid_arguments_are_refused(dataset, tmp_path):
    for arguments, message in [
        (("minari",), "layout is 'minari'"),
        (("corl", "tensorflow"), "framework is 'tensorflow'"),
        (("corl", "numpy", "cuda"), "device is 'cuda'"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            dataset.as_dict(*arguments)
    with pytest.raises(InvalidArgumentError, match="whole episodes"):
        load(tmp_path, split_trajs=True).as_dict("corl")


def ogbench_compact(path):
    """Return the arrays of a file as `ogbench.load_dataset(path, compact_dataset=True)` does, rewritten from its text."""
    with np.load(path) as file:
        ends = file["terminals"].astype(np.float32)
        following = np.append(ends[1:], np.float32(1))
        return {
            "observations": file["observations"],
            "actions": file["actions"],
            "terminals": np.minimum(ends + following, 1),
            "valids": 1 - ends,
        }


def stacked(flat, count):
    """Return the last `count` frames of each row, as OGBench's `GCDataset` with `frame_stack`."""
    (terminals,) = np.nonzero(flat["terminals"] > 0)
    firsts = np.concatenate([[0], terminals[:-1] + 1])
    rows = np.arange(len(flat["terminals"]))
    first = firsts[np.searchsorted(firsts, rows, side="right") - 1]
    frames = [flat["observations"][np.maximum(rows - age, first)] for age in reversed(range(count))]
    return np.concatenate(frames, axis=-1)


@pytest.fixture(params=["scene-play-v0", "visual-cube-single-play-v0", "powderworld-easy-play-v0"])
def ogbench(request, tmp_path):
    """A dataset of states, images, or images and discrete actions, and its file."""
    kinds = {"scene": "scene", "visual": "cube", "powderworld": "powder"}
    kind = kinds[request.param.partition("-")[0]]
    rng = np.random.default_rng(5)
    file = tmp_path / "raw" / f"{request.param}.npz"
    write_file(file, [draw(rng, length, kind=kind) for length in (7, 3, 12)])
    folder = downloading.download(f"ogbench/{request.param}", from_local=file.parent, root=tmp_path / "home")
    return load(folder), file


class TestCompact:
    """OGBench's agents that stack frames take its compact datasets only."""

    def test_it_has_the_arrays_of_the_loader_of_ogbench(self, ogbench):
        dataset, file = ogbench
        flat, expected = dataset.as_dict("ogbench", compact=True), ogbench_compact(file)

        assert flat.keys() == {*expected, "rewards", "masks"}
        valid = expected["valids"] > 0
        for name, array in expected.items():
            assert flat[name].dtype == array.dtype, name
            rows = valid if name == "actions" else slice(None)  # the last action of an episode has no result
            assert np.array_equal(flat[name][rows], array[rows]), name
        assert {len(array) for array in flat.values()} == {22 + 3}
        regular = dataset.as_dict("ogbench")
        assert np.array_equal(regular["actions"], expected["actions"][valid])

    def test_frames_are_stacked_as_those_of_the_loader(self, ogbench):
        dataset, file = ogbench
        flat = dataset.as_dict("ogbench", compact=True)

        assert flat["terminals"][-1] == 1
        assert np.array_equal(stacked(flat, 3), stacked(ogbench_compact(file), 3))

    def test_every_valid_row_is_a_transition_of_the_other_form(self, dataset):
        flat, regular = dataset.as_dict("ogbench", compact=True), dataset.as_dict("ogbench")
        rows = np.flatnonzero(flat["valids"])

        assert len(flat["valids"]) == 12 + 4
        assert np.array_equal(flat["observations"][rows + 1], regular["next_observations"])
        for name in regular.keys() - {"next_observations"}:
            assert np.array_equal(flat[name][rows], regular[name]), name

    def test_a_part_of_a_dataset_has_the_final_observations_of_its_own_ends(self, tmp_path):
        write_dataset(tmp_path, TRAJECTORIES)
        part = load(tmp_path, selection=Selection(episodes="2:4"))
        flat, regular = (part.as_dict("ogbench", timeouts=False, compact=compact) for compact in (True, False))
        rows = np.flatnonzero(flat["valids"])

        assert flat["valids"].tolist() == [1, 1, 1, 1, 0, 1, 1, 0]
        assert np.array_equal(flat["observations"][rows + 1], regular["next_observations"])

    def test_tensors_and_nested_observations_have_it_too(self, tmp_path):
        made = trajectory(3)
        states = {("observation", name): made.states["observation",] for name in ("left", "right")}
        fields = [Column(key, np.dtype(np.float32), (3,), shared=True) for key in states]
        write_dataset(tmp_path, [type(made)(made.steps, states)], [*fields, *columns()[1:]])
        flat = load(tmp_path).as_dict("ogbench", "torch", compact=True)

        assert flat["observations"].keys() == {"left", "right"}
        assert np.array_equal(flat["observations"]["left"].numpy(), made.states["observation",])

    def test_other_layouts_have_none(self, dataset):
        with pytest.raises(InvalidArgumentError, match="compact is True and layout is 'corl', expected 'ogbench'"):
            dataset.as_dict("corl", compact=True)

    def test_rows_that_do_not_follow_each_other_have_none(self, tmp_path):
        made = trajectory(3)
        following = {("next", "observation"): made.states["observation",][1:]}
        steps = {**made.steps, ("observation",): made.states["observation",][:-1], **following}
        fields = [Column(key, np.dtype(np.float32), (3,)) for key in [("observation",), *following]]
        write_dataset(tmp_path, [type(made)(steps, {})], [*fields, *columns()[1:]])

        with pytest.raises(InvalidArgumentError, match=r"next\.observation is stored for each row"):
            load(tmp_path).as_dict("ogbench", compact=True)


def test_the_masks_of_a_task_are_those_of_the_dataset(tmp_path):
    """OGBench's single tasks go on after they are solved: their masks are 0 there, and no step is terminated.

    OGBench's agents multiply the value of the next state by the mask, and CORL's by ``1 - terminals``.
    """
    file = tmp_path / "raw" / "scene-play-v0.npz"
    write_file(file, [draw(np.random.default_rng(5), length) for length in (20, 30)])
    folder = downloading.download(
        "ogbench/scene-play-singletask-task3-v0", from_local=file.parent, root=tmp_path / "home"
    )
    dataset = load(folder)
    masks = dataset[:]["next", "mask"][:, 0].numpy()

    assert 0 < masks.sum() < 50
    assert np.array_equal(dataset.as_dict("ogbench")["masks"], masks)
    assert np.array_equal(dataset.as_dict("rlpd")["masks"], masks)
    assert np.array_equal(dataset.as_dict("corl")["terminals"], 1 - masks)
    assert not dataset.as_dict("d4rl")["terminals"].any()


class TestTimeOutsOfD4RL:
    """`env.get_dataset()` returns the columns of the file."""

    @pytest.fixture
    def download(self, tmp_path):
        def run(name, **columns):
            local = d4rl_files.write(tmp_path / "local.hdf5", columns)
            folder = downloading.download(f"d4rl/{name}", from_local=local, hash_check=False, root=tmp_path / "home")
            return load(folder)

        return run

    @staticmethod
    def columns(rows, **flags):
        marks = {name: np.isin(np.arange(rows), places) for name, places in flags.items()}
        observations = np.arange(rows, dtype=np.float32)[:, None] + np.zeros((1, 11), np.float32)
        return {
            "observations": observations,
            "actions": np.zeros((rows, 3), np.float32),
            "rewards": np.ones(rows, np.float32),
            **marks,
        }

    def test_the_last_row_has_only_the_flag_that_the_file_has(self, download):
        columns = self.columns(20, terminals=[4], timeouts=[12])
        dataset = download("hopper-medium-v2", **columns)

        assert np.array_equal(dataset.as_dict("d4rl")["timeouts"], columns["timeouts"])
        assert dataset[19]["next", "truncated"]
        assert np.array_equal(dataset.as_dict("d4rl", "torch")["timeouts"], columns["timeouts"])

    def test_a_seam_that_the_file_does_not_mark_has_no_flag(self, download):
        columns = self.columns(200, terminals=[4], timeouts=[12])
        columns["next_observations"] = columns["observations"] + 1
        columns["next_observations"][100] = -50
        dataset = download("hopper-medium-v2", **columns)

        assert dataset.episodes.stops.tolist() == [5, 13, 101, 200]
        assert np.flatnonzero(dataset.as_dict("d4rl")["timeouts"]).tolist() == [12]

    def test_a_derived_dataset_keeps_the_flags_between_its_episodes(self, download):
        columns = self.columns(200, terminals=[4], timeouts=[12])
        columns["next_observations"] = columns["observations"] + 1
        columns["next_observations"][100] = -50
        dataset = download("hopper-medium-v2", **columns)

        derived = dataset.derive("float32")
        assert np.flatnonzero(derived.as_dict("d4rl")["timeouts"]).tolist() == [12, 100]
        part = load(dataset.data_path, selection=Selection(episodes="0,2"))
        assert np.flatnonzero(part.as_dict("d4rl")["timeouts"]).tolist() == []
        part = load(dataset.data_path, selection=Selection(episodes="2,3"))
        assert np.flatnonzero(part.as_dict("d4rl")["timeouts"]).tolist() == [87]

    def test_in_a_file_without_time_outs_those_of_the_time_limit_are_marked(self, download):
        full, rest = (self.columns(rows, terminals=[4]) for rows in (2005, 2500))

        assert np.flatnonzero(download("bullet-hopper-medium-v0", **full).as_dict("d4rl")["timeouts"]).tolist() == [
            1004,
            2004,
        ]
        assert np.flatnonzero(download("bullet-hopper-medium-v0", **rest).as_dict("d4rl")["timeouts"]).tolist() == [
            1004,
            2004,
        ]


class TestGather:
    @pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
    @pytest.mark.parametrize("rows", [[11, 0, 3, 3], [[4, 5], [6, 7]], []], ids=str)
    def test_it_returns_the_rows_of_every_array(self, dataset, framework, rows):
        if framework == "jax":
            pytest.importorskip("jax", reason="pip install jax")
            import jax.numpy as library
        else:
            library = np if framework == "numpy" else torch
        arrays, numbers = dataset.as_dict("corl", framework), expected("corl")
        index = np.array(rows, np.int64)

        batch = gather({"nested": arrays}, library.asarray(index))["nested"]
        assert batch.keys() == numbers.keys()
        assert all(type(batch[name]) is type(arrays[name]) or framework == "numpy" for name in batch)
        assert all(np.array_equal(np.asarray(batch[name]), numbers[name][index]) for name in numbers)

    def test_a_row_out_of_range_is_an_error_in_main_memory(self, dataset):
        for framework, library in (("numpy", np), ("torch", torch)):
            with pytest.raises(IndexError):
                gather(dataset.as_dict("corl", framework), library.asarray([12]))

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # of torch itself
    @pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
    def test_it_is_compiled_without_a_graph_break(self, dataset, backend):
        torch._dynamo.reset()
        arrays, rows = dataset.as_dict("ogbench", "torch"), torch.tensor([3, 0, 11])

        batch = torch.compile(gather, fullgraph=True, backend=backend)(arrays, rows)
        assert all(torch.equal(batch[name], array[rows]) for name, array in arrays.items())

    def test_it_depends_on_no_value(self, dataset):
        arrays = dataset.as_dict("corl", "torch", "meta")

        assert gather(arrays, torch.empty(5, dtype=torch.int64, device="meta"))["observations"].shape == (5, 3)

    def test_it_is_compiled_by_jax(self, dataset):
        jax = pytest.importorskip("jax", reason="pip install jax")
        arrays, rows = dataset.as_dict("corl", "jax"), np.array([3, 0, 11])

        batch = jax.jit(gather)(arrays, rows)
        assert all(np.array_equal(batch[name], np.asarray(array)[rows]) for name, array in arrays.items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_are_on_the_device(dataset):
    assert {value.device.type for value in dataset.as_dict("corl", "torch", "cuda").values()} == {"cuda"}
