"""Replay buffers of a DQN agent: which rows are steps, in which order, and where episodes begin and end."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from oracles import comparison
from raw.atari_dqn import LOGS, RECORDS, Buffer, changed, screens, write_logs, write_records
from stored_data import reseal
from upstreams import bucket

from datasets_rl import AtariDQNExperienceReplay, Selection, downloading, store, verification
from datasets_rl.downloading import planning
from datasets_rl.errors import ConversionError, FetchError, InvalidArgumentError, UnknownIdError
from datasets_rl.format.check import check_rules
from datasets_rl.format.reader import StoredDataset
from datasets_rl.samplers import SamplerWithoutReplacement, SliceSampler, SliceSamplerWithoutReplacement
from datasets_rl.settings import Settings
from datasets_rl.sources import find
from datasets_rl.sources.atari_dqn import SOURCE
from datasets_rl.transforms import CatFrames

ID = "atari_dqn/Pong/1"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    return Settings(home=tmp_path / "home", progress=False, retries=0)


@pytest.fixture
def tree(tmp_path):
    return tmp_path / "tree"


@pytest.fixture
def convert(tree, settings):
    def run(place=tree, name=ID, *, force=True, keys=(), **options):
        selection = Selection(options=options, keys=keys)
        folder = downloading.download(name, from_local=place, selection=selection, force=force, settings=settings)
        stored = StoredDataset(folder)
        assert check_rules(stored.schema, stored.episodes, stored.column).problems == []
        assert comparison.deep_problems(folder) == []
        return stored

    return run


@pytest.fixture
def buffer(tree):
    """A buffer of 20 rows, with its logs in the layout of the upstream."""
    return Buffer(tree / LOGS, 20)


def rules(stored):
    return {one.rule: one.count for one in stored.manifest.decisions}


def meets(stored, parts):
    """Compare the stored episodes with parts of games: (game, first step, last step + 1)."""
    assert stored.episodes.lengths.tolist() == [stop - start for _, start, stop in parts]
    for row, (game, start, stop) in zip(stored.episodes.starts.tolist(), parts, strict=True):
        for key, values in {**game.steps, **game.states}.items():
            if key != ("next", "truncated"):
                assert np.array_equal(stored.column(key, row, row + stop - start), values[start:stop]), key
        over = stop == len(game) and game.steps["next", "terminated"][-1, 0]
        assert stored.column(("next", "truncated"))[row + stop - start - 1, 0] == (not over)


def test_there_are_60_games_of_5_runs():
    """TorchRL rejects the last ten, starting with StarGunner."""
    ids = SOURCE.ids()

    assert len(ids) == len(set(ids)) == 300
    assert {"Pong/1", "AirRaid/5", "StarGunner/3", "Zaxxon/5"} <= set(ids)
    assert sum(find(f"atari_dqn/{name}").params["rlu"] for name in ids) == 46 * 5
    with pytest.raises(UnknownIdError, match="Pong/6"):
        find("atari_dqn/Pong/6")


def test_ids_are_listed_without_numpy():
    script = "import sys; from datasets_rl import sources; s = sources.get_source('atari_dqn'); "
    script += "print(len([s.entry(name) for name in s.ids()]), *{'numpy', 'torch', 'httpx'} & set(sys.modules))"

    assert subprocess.check_output([sys.executable, "-c", script], text=True).split() == ["300"]


def test_the_error_for_the_closed_bucket_names_the_alternatives(tree, settings, monkeypatch):
    write_logs(tree)
    with bucket({"atari-replay-datasets": tree}, listable=False) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        with pytest.raises(FetchError, match="403") as caught:
            downloading.download(ID, settings=settings)
        with pytest.raises(FetchError) as other:
            downloading.download("atari_dqn/Tennis/1", settings=settings)

    for way in ("since 2025 the bucket denies access", "from_local=", "mirrors=", "options={'upstream': 'rlu'}"):
        assert way in caught.value.hint
    assert "rlu" not in other.value.hint
    assert [*store.stored_folders(settings.home)] == []


def test_rl_unplugged_lacks_14_of_the_games(settings):
    with pytest.raises(InvalidArgumentError, match="RL Unplugged has no Tennis/1, only 46 of the 60 games"):
        downloading.download("atari_dqn/Tennis/1", selection=Selection(options={"upstream": "rlu"}), settings=settings)


def test_every_row_is_accounted_for(tree, convert):
    """Seven games start, four checkpoints follow another checkpoint, three games continue in the next, and the last is cut."""
    games = write_logs(tree)

    stored = convert()

    meets(stored, [(game, 0, len(game)) for game in games])
    assert rules(stored) == {
        "blank-rows": 21,
        "row-never-written": 1,
        "rows-behind-the-cursor": 4,
        "row-between-checkpoints": 4,
        "episode-over-checkpoints": 3,
        "end-without-flag": 1,
    }
    assert stored.manifest.final_unknown == len(games)
    assert not stored.column(("next", "observation"))[stored.column(("next", "done"))[:, 0]].any()


def test_a_first_step_that_equals_a_row_of_zeros_is_kept(tree, convert):
    """The second game begins with a black frame, action 0 and reward 0: the fourth such row is a step."""
    games = write_logs(tree)

    stored = convert()

    assert not games[1].states["observation",][0].any()
    assert stored.episodes.lengths[1] == 50
    assert not stored.column(("observation",))[17].any()


def test_the_last_row_of_a_file_is_the_first_step(tree, convert):
    """Row 59 of checkpoint 1 was added before row 0: it is step 36 of the second game, which starts in checkpoint 0."""
    games = write_logs(tree)

    stored = convert()

    (late,) = games[1].states["observation",][36:37]
    assert late.any()
    assert np.array_equal(stored.column(("observation",))[17 + 36], late)
    assert np.array_equal(stored.column(("next", "observation"))[17 + 35], late)


def test_verify_compares_the_deferred_frame(tree, convert):
    write_logs(tree)
    stored = convert(images="raw")
    frames = np.lib.format.open_memmap(stored.folder / "observation.npy", mode="r+")
    frames[17 + 36, 5, 5] ^= 1
    frames.flush()
    reseal(stored.folder)

    problems = verification.verify(stored.folder, deep=True).problems

    assert any("observation at row 53" in problem for problem in problems)


def test_some_checkpoints_can_be_a_separate_dataset(tree, convert):
    """From checkpoint 1, the first rows belong to a game without its beginning; row 59 is left out.

    game       1 (steps 23 to 72 ever added)   2 (76 to 118)   3 (122 to 179)
    stored     60 to 72: steps 37 to 49        all 43          122 to 178: 57 of 58
    """
    games = write_logs(tree)

    stored = convert(checkpoints="1:3")

    meets(stored, [(games[1], 37, 50), (games[2], 0, 43), (games[3], 0, 57)])
    assert rules(stored)["begin-missing"] == 1
    assert rules(stored)["row-of-another-part"] == 1
    assert stored.episodes["checkpoint"].tolist() == [1, 1, 2]


def test_the_first_checkpoints_can_be_used_during_the_download_of_the_rest(tree, convert):
    """They are a dataset in another folder, and only their files are requested."""
    games = write_logs(tree)
    for path in (tree / LOGS).glob("*.[34].gz"):
        path.unlink()

    stored = convert(checkpoints="0:2")

    assert len(stored) == 17 + 50 + 43
    meets(stored, [(game, 0, len(game)) for game in games[:3]])
    selection = Selection(options={"checkpoints": "0:2"})
    dataset = AtariDQNExperienceReplay("Pong/1", 8, selection=selection, download=False)
    assert dataset.sample()["observation"].shape == (8, 84, 84)
    assert {path.rpartition("ckpt.")[2] for path in (one.path for one in stored.manifest.raw)} == {"0.gz", "1.gz"}


def test_the_stored_size_is_estimated_before_for_each_form_of_frames(tree, settings):
    """The logs are a twenty-fifth of their frames; compressed, each frame alone takes a little more."""
    write_logs(tree)
    write_records(tree / "tfds", {0: [[12, 3]]})
    rlu = {"upstream": "rlu"}

    for name, place, options in ((ID, tree, {}), ("atari_dqn/Pong/2", tree / "tfds", rlu)):
        told = planning.plan(name, from_local=place, selection=Selection(options=options), settings=settings)
        raw = sum(asset.size for asset in told.assets)
        assert [*told.choices] == ["images=compressed", "images=raw"]
        assert raw / 3 < told.stored_bytes < 2 * raw < 5 * raw < told.choices["images=raw"]
        bare = Selection(keys=("action",), options=options)
        assert planning.plan(name, from_local=place, selection=bare, settings=settings).stored_bytes is None


def test_unknown_checkpoints_are_refused(tree, settings):
    write_logs(tree)

    for text, said in (("7", "there are 5"), ("5:9", "none of the 5"), ("x", "expected numbers")):
        with pytest.raises(InvalidArgumentError, match=said):
            downloading.download(
                ID, from_local=tree, selection=Selection(options={"checkpoints": text}), settings=settings
            )


def test_a_requested_checkpoint_that_is_missing_is_refused(tree, convert):
    write_logs(tree)
    for path in (tree / LOGS).glob("*.1.gz"):
        path.unlink()

    with pytest.raises(InvalidArgumentError, match="checkpoint 1 does not exist, expected some of 0, 2, 3, 4"):
        convert(checkpoints="0:3")
    assert convert(checkpoints="0,2:4").manifest.selection["options"] == {"checkpoints": "0,2:4"}


def test_the_checkpoint_before_the_last_one_may_be_missing(tree, convert):
    games = write_logs(tree)
    for path in (tree / LOGS).glob("*.3.gz"):
        path.unlink()

    stored = convert()

    # Game 5 continues past the end of checkpoint 3, and game 3 started before its beginning.
    before = sum(map(len, games[:3])) + 57
    assert stored.episodes["checkpoint"].tolist() == [0, 1, 1, 2, 4, 4]
    assert stored.episodes.lengths[:4].sum() == before


def test_files_without_a_valid_number_are_skipped(tree, convert):
    write_logs(tree)
    for path in [*(tree / LOGS).glob("*_ckpt.4.gz")]:
        path.rename(path.with_name(path.name.replace(".4.", ".99999999999.")))

    assert convert(checkpoints="::3").episodes["checkpoint"].max() == 3


def test_a_missing_checkpoint_cuts_the_episodes_before_and_after_it(tree, convert):
    games = write_logs(tree)
    for path in (tree / LOGS).glob("*.1.gz"):
        path.unlink()

    stored = convert()

    parts = [(games[0], 0, 17), (games[1], 0, 36), (games[3], 0, 58)]
    meets(stored, [*parts, *((game, 0, len(game)) for game in games[4:])])
    assert rules(stored)["end-without-flag"] == 2


def noop(buffer, shade, *, action=0):
    """Add a step without a reward, with a frame of a single gray value."""
    buffer.add(np.full((84, 84), shade, np.uint8), np.int32(action), np.float32(0), 0)


@pytest.mark.parametrize(
    ("shade", "action", "terminal", "dropped"),
    [(9, 0, 0, 0), (0, 0, 0, 2), (9, 3, 0, 0), (0, 3, 0, 0), (9, 0, 1, 3)],
    ids=["frame", "nothing", "frame and action", "action", "end"],
)
def test_black_rows_at_the_beginning_of_a_log_are_blank_only_if_the_previous_row_may_be(
    buffer, convert, shade, action, terminal, dropped
):
    """Of the rows before a log without its predecessor, only its own last row is known.

    added   19                   20 21 22                         23 ... 38
            the last place       no action, no reward, black      steps
    """
    for _ in range(16):
        noop(buffer, 50, action=1)
    buffer.add(np.full((84, 84), shade, np.uint8), np.int32(action), np.float32(0), terminal)
    for _ in range(0 if terminal else 3):
        noop(buffer, 0)
    for row in range(16):
        noop(buffer, 100 + row, action=2)

    stored = convert(checkpoints="1")

    assert stored.column(("action",)).tolist() == [0] * (3 - dropped) + [2] * 16
    assert stored.column(("observation",))[:, 0, 0].tolist() == [0] * (3 - dropped) + list(range(100, 116))
    assert rules(stored).get("blank-rows", 0) == dropped
    assert rules(stored)["row-of-another-part"] == 1


def test_a_run_that_starts_with_a_later_log_keeps_its_first_steps(buffer, tree, convert):
    """Black frames without action and reward are blank rows only at the beginning of the training."""
    for _ in range(16):
        noop(buffer, 50, action=1)
    noop(buffer, 9, action=3)
    for _ in range(3):
        noop(buffer, 0)
    for row in range(16):
        noop(buffer, 100 + row, action=2)
    for path in (tree / LOGS).glob("*_ckpt.0.gz"):
        path.unlink()
    for path in (tree / LOGS).glob("*_ckpt.1.gz"):
        path.rename(path.with_name(path.name.replace(".1.", ".0.")))

    assert convert().column(("action",)).tolist() == [0] * 3 + [2] * 16


def test_rows_of_a_missing_checkpoint_are_not_reported_as_rows_of_earlier_ones(tree, convert):
    write_logs(tree)

    alone, together = rules(convert(checkpoints="4")), rules(convert())
    assert alone["rows-of-a-missing-checkpoint"] == together["rows-behind-the-cursor"] > 0
    assert "rows-behind-the-cursor" not in alone
    assert "rows-of-a-missing-checkpoint" not in together


def test_a_log_that_was_never_written_is_detected_by_the_counts(buffer, convert):
    """The cursor reaches the last row with a row of zeros, so the buffer is not logged, and 20 rows are lost.

    added   0 ... 18 | 19 ... 36  37 38 39 | 40 ... 58 | 59
    game    0 (3-12), 1 (16-36)   blank      2 (40-69)
    """
    for steps in (10, 21, 30):
        buffer.play(steps)

    stored = convert()

    assert buffer.logs == 2
    meets(stored, [(buffer.games[0], 0, 10), (buffer.games[1], 0, 3), (buffer.games[2], 0, 19)])
    assert rules(stored)["end-without-flag"] == 2


def test_a_missing_log_before_the_last_one_is_detected_by_the_rows(buffer, convert):
    """The last log counts from 0 again, so only the rows after its cursor show that a log is missing before it.

    added   0 ... 18 | 19 ... 33  36  37 38 39 | 40 ... 49
    game    0 (3-32)              1   blank      2, to the end of the training
    """
    buffer.play(30)
    buffer.play(1)
    buffer.play(10, over=False)
    buffer.log_final()

    stored = convert()

    assert buffer.logs == 2
    meets(stored, [(buffer.games[0], 0, 16), (buffer.games[2], 0, 10)])
    assert rules(stored)["row-of-another-part"] == 1


def test_logs_of_buffers_of_other_sizes_do_not_follow_each_other(tree, tmp_path, convert):
    """The second has 10 rows and `add_count` 39, which is 20 more than that of the first."""
    first, second = Buffer(tree / LOGS, 20), Buffer(tmp_path / "other", 10)
    first.play(16)
    second.play(50)
    for path in (tmp_path / "other").glob("*_ckpt.3.gz"):
        shutil.copy(path, tree / LOGS / path.name.replace(".3.gz", ".1.gz"))

    stored = convert()

    meets(stored, [(first.games[0], 0, 16), (second.games[0], 27, 36)])


def test_a_last_log_that_is_nearly_empty_is_verified(tree, convert):
    """Its cursor is in the first of the blocks of rows that are compared."""
    buffer = Buffer(tree / LOGS, 1100)
    buffer.play(1200)
    buffer.play(9, over=False)
    buffer.log_final()

    meets(convert(), [(game, 0, len(game)) for game in buffer.games])


def test_a_training_that_ends_with_a_full_buffer_logs_it_twice(buffer, convert):
    buffer.play(16)  # 19 rows, including the blank ones
    buffer.play(16, over=False)
    while buffer.logs < 2:
        buffer.add(screens(512)[9], 1, 0, 0)
    buffer.log_final()

    stored = convert()

    assert buffer.logs == 3
    assert len(stored) == 16 + 39 - 19 - 3
    assert rules(stored)["nothing-new"] == 1


def test_a_training_that_is_shorter_than_the_buffer_has_one_log(buffer, convert):
    buffer.play(5)
    buffer.play(4, over=False)
    buffer.log_final()

    stored = convert()

    meets(stored, [(buffer.games[0], 0, 5), (buffer.games[1], 0, 4)])
    assert rules(stored)["rows-behind-the-cursor"] == 20 - 1 - 15


def test_the_content_of_unwritten_rows_is_ignored(buffer, tree, convert):
    """They have flags of 77, rewards of NaN and negative actions."""
    buffer.play(30)
    terminal = np.load(io.BytesIO(gzip.decompress((tree / LOGS / "$store$_terminal_ckpt.0.gz").read_bytes())))

    stored = convert()

    assert terminal.tolist() == [0] * 19 + [77]
    assert len(stored) == 16
    assert np.isfinite(stored.column(("next", "reward"))).all()


def test_nonzero_rows_after_an_end_are_steps(buffer, convert):
    """An agent without blank rows would log them; a row after such a step is not blank either."""
    buffer.play(5)
    buffer.store["terminal"][buffer.cursor - 1] = 0  # so that the buffer adds no blank rows
    buffer.play(10, over=False)
    buffer.store["terminal"][7] = 1
    buffer.store["observation"][8] = 5
    buffer.store["action"][8] = 0
    buffer.store["reward"][8] = 0
    for column in buffer.store.values():
        column[9] = 0
    buffer.log_final()

    stored = convert()

    assert stored.episodes.lengths.tolist() == [5, 10]
    assert (stored.column(("observation",))[5] == 5).all()


def test_a_seventh_file_is_not_fetched(tree, settings, monkeypatch):
    write_logs(tree)
    for number in range(5):
        (tree / LOGS / f"$store$_gamma_ckpt.{number}.gz").write_bytes(b"whatever")
    with bucket({"atari-replay-datasets": tree}) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        downloading.download(ID, settings=settings)
        asked = [request.path for request in server.requests]

    assert not any("gamma" in path for path in asked)
    assert sum("observation" in path for path in asked) == 5


def test_without_frames_their_files_are_not_fetched(tree, settings, monkeypatch):
    """Frames are nearly all of the bytes."""
    games = write_logs(tree)
    with bucket({"atari-replay-datasets": tree}) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        stored = StoredDataset(downloading.download(ID, selection=Selection(keys=("action",)), settings=settings))
        asked = [request.path for request in server.requests]

    assert not any("observation" in path for path in asked)
    assert np.array_equal(stored.column(("action",)), np.concatenate([game.steps["action",] for game in games]))


def test_without_frames_the_rows_are_the_same(tree, buffer, convert):
    """The first rows of a continued game may equal blank rows; the previous row distinguishes them."""
    buffer.play(70)
    for name in ("action", "reward"):
        changed(f"$store$_{name}_ckpt.1.gz", lambda one: one.put([0, 1, 2], 0))(tree)
        changed(f"$store$_{name}_ckpt.1.gz", lambda one: one.put(-1, 1))(tree)

    assert len(convert(checkpoints="1:3")) == len(convert(checkpoints="1:3", keys=("action",))) == 39


def test_frames_alone_are_verified(tree, convert):
    write_logs(tree)

    assert [field.key for field in convert(keys=("observation",)).schema if field.shared] == [("observation",)]


@pytest.mark.first(1)
@pytest.mark.parametrize("place", ["", "dqn", "dqn/Pong/1", "dqn/Pong/1/replay_logs"])
def test_any_folder_above_the_files_can_be_given(tree, convert, place):
    write_logs(tree)
    shutil.copytree(tree / "dqn/Pong/1", tree / "dqn/Breakout/1")

    assert len(convert(tree / place)) == 274


@pytest.mark.parametrize("inside", ["", "replay_logs"])
def test_a_folder_with_several_runs_is_refused(tree, convert, inside):
    write_logs(tree)
    for run in ("1", "2"):
        shutil.copytree(tree / LOGS, tree / "Pong" / run / inside)

    with pytest.raises(ConversionError, match="belongs to this run"):
        convert(tree / "Pong")


def test_stacks_of_frames_start_with_each_episode(tree, convert):
    """A stack of 4 is padded at the beginning of an episode, and has no frame of another episode."""
    games = write_logs(tree)
    convert()
    dataset = AtariDQNExperienceReplay("Pong/1", download=False)
    dataset.append_transform(CatFrames(4, -3, in_keys=["observation", ("next", "observation")], padding="zeros"))

    batch = dataset[:]

    before, after, row = batch["observation"].numpy(), batch["next", "observation"].numpy(), 0
    for game in games:
        frames = np.concatenate([np.zeros((3, 84, 84), np.uint8), game.states["observation",]])
        for step in range(len(game)):
            assert np.array_equal(before[row], frames[step : step + 4])
            assert np.array_equal(after[row][:3], frames[step + 1 : step + 4])
            row += 1
    ends = np.cumsum([len(game) for game in games]) - 1
    assert not after[ends, 3].any()


def test_slices_stay_within_episodes(tree, convert):
    write_logs(tree)
    convert()
    torch.manual_seed(0)

    dataset = AtariDQNExperienceReplay("Pong/1", 64, num_slices=8, download=False)

    for _ in range(20):
        batch = dataset.sample()
        assert (batch["episode"].view(8, 8) == batch["episode"].view(8, 8)[:, :1]).all()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"slice_len": 4}, SliceSampler),
        ({"num_slices": 2, "replacement": False}, SliceSamplerWithoutReplacement),
        ({"replacement": False}, SamplerWithoutReplacement),
    ],
    ids=["slices", "slices once", "steps once"],
)
def test_the_arguments_of_the_reference_choose_the_sampler(tree, convert, options, kind):
    write_logs(tree)
    convert()

    dataset = AtariDQNExperienceReplay("Pong/1", 8, download=False, mp_start_method="spawn", **options)

    assert type(dataset.sampler) is kind
    assert len(dataset.sample()) == 8


@pytest.mark.usefixtures("settings")
def test_the_requested_number_of_processes_is_used(monkeypatch):
    asked = []
    monkeypatch.setattr(
        downloading, "ensure_stored", lambda _, options, **__: asked.append(options.settings.jobs) or 1 / 0
    )

    for number in (0, 3):
        with pytest.raises(ZeroDivisionError):
            AtariDQNExperienceReplay("Pong/1", num_procs=number)

    assert asked == [Settings.from_env().jobs, 3]


def test_of_two_versions_of_rl_unplugged_the_newer_one_is_read(tree, convert):
    games = write_records(tree, {0: [[7, 4]]})
    shutil.copytree(tree / RECORDS, tree / RECORDS.with_name("1.0.9"))

    stored = convert(name="atari_dqn/Pong/2", upstream="rlu")

    assert len(stored) == sum(map(len, games)) == 9
    assert all("/1.1.0/" in file.path for file in stored.manifest.raw)
    assert "since 2025 the bucket" not in " ".join(stored.manifest.known_issues)


def test_both_upstreams_give_the_same_fields(tree, convert):
    write_logs(tree)
    write_records(tree, {0: [[7, 4]]})

    logs = convert(images="compressed")
    records = convert(name="atari_dqn/Pong/2", upstream="rlu", images="compressed")

    assert [field.to_json() for field in logs.schema] == [field.to_json() for field in records.schema]
    assert logs.episodes["checkpoint"].dtype == records.episodes["checkpoint"].dtype == np.int32
    assert (logs.manifest.metadata["upstream"], records.manifest.metadata["upstream"]) == ("dqn", "rlu")


def test_episodes_of_rl_unplugged_that_are_not_sorted_by_checkpoints_are_read(tree, convert):
    """As in rlu_atari, with the numbers of the checkpoints in the records."""
    games = write_records(tree, {0: [[7]], 3: [[4, 5]]})
    for number, path in enumerate(sorted((tree / RECORDS).glob("*.tfrecord-*"))):
        path.rename(path.with_name(f"rlu_atari-train.tfrecord-{number:05d}-of-00002"))

    stored = convert(name="atari_dqn/Pong/2", upstream="rlu")

    assert stored.episodes.lengths.tolist() == [len(game) for game in games] == [6, 3, 4]
    assert stored.episodes["checkpoint"].tolist() == [0, 3, 3]
