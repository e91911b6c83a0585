"""Looking up and comparing npz files at addresses of a web server, and files with options of a source."""

from __future__ import annotations

import numpy as np
import pytest
from raw.torchrl import draw, in_ted
from servers import serve

from datasets_rl import Selection, diff, download, identify
from datasets_rl.cli.app import main
from datasets_rl.errors import ConversionError, InvalidArgumentError

ROWS = 400


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_PROXY", "*")


def arrays(**more):
    rng = np.random.default_rng(0)
    ends = np.arange(ROWS) % 40 == 39
    return {
        "observations": rng.normal(size=(ROWS, 30)).astype(np.float32),
        "actions": rng.normal(size=(ROWS, 4)).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "dones": ends,
        **more,
    }


@pytest.fixture
def npz(tmp_path):
    np.savez(tmp_path / "flat.npz", **arrays())
    return tmp_path / "flat.npz"


def test_episodes_of_an_npz_file_on_a_web_server_are_looked_up_and_compared(npz, capsys):
    download(npz)
    with serve({"/lab/flat.npz": npz}) as server:
        address = f"{server.url}/lab/flat.npz"
        found = identify(address)
        compared = diff(address, npz)
        status = main(["identify", address, "-q"])

    assert [(match.exact, match.partial, match.near) for match in found.matches] == [(10, 0, 0)]
    assert compared.equal
    assert compared.summary == "equal: 400 steps in 10 episodes"
    assert status == 0
    assert capsys.readouterr().out.strip() == found.matches[0].id


def test_the_fields_of_an_npz_file_are_shown_by_requests_for_parts_of_it(tmp_path, capsys):
    np.savez(tmp_path / "large.npz", **arrays(next_observations=np.zeros((ROWS, 3000), np.float32)))
    with serve({"/large.npz": tmp_path / "large.npz"}) as server:
        assert main(["info", f"{server.url}/large.npz"]) == 0
        asked = server.ranges
        whole = [request for request in server.requests if "range" not in request.headers]

    assert "local: large.npz is a file of npz" in capsys.readouterr().out
    sizes = [int(stop) - int(start) + 1 for start, stop in (one.removeprefix("bytes=").split("-") for one in asked)]
    assert asked
    assert sum(sizes) < (tmp_path / "large.npz").stat().st_size / 4
    assert all(request.method == "HEAD" for request in whole)


@pytest.mark.parametrize(
    ("more", "question"),
    [
        ({"foo": np.zeros((ROWS, 2))}, "which fields are foo"),
        ({"episode_returns": np.zeros(3)}, "episode_returns"),
        ({"dones": np.arange(ROWS) % 40 == 0}, "dones is set in the first row and not in the last row"),
    ],
    ids=["an unknown name", "an array that speaks of episodes", "flags of first rows"],
)
def test_what_is_not_certain_on_a_web_server_is_refused_with_the_question(more, question, tmp_path):
    made = arrays(**more)
    if "episode_returns" in more:
        del made["dones"]
    np.savez(tmp_path / "odd.npz", **made)
    with serve({"/odd.npz": tmp_path / "odd.npz"}) as server, pytest.raises(ConversionError) as caught:
        identify(f"{server.url}/odd.npz")

    assert question in str(caught.value)


def test_a_file_of_another_format_on_a_web_server_is_named(tmp_path):
    (tmp_path / "rows.csv").write_text("obs_0,action,reward\n0,1,2\n")
    with serve({"/rows.csv": tmp_path / "rows.csv"}) as server, pytest.raises(ConversionError) as caught:
        identify(f"{server.url}/rows.csv")

    assert "download the files and name the path of the copy" in str(caught.value.remedy)


def test_an_option_of_a_source_answers_for_files_that_are_not_stored(tmp_path, capsys):
    rng = np.random.default_rng(0)
    steps = in_ted([draw(rng, 30, "terminated") for _ in range(3)])
    steps["next", "observation"][steps["next", "done"][:, 0]] = 0
    steps.memmap(tmp_path / "steps")
    stored = download(tmp_path / "steps", selection=Selection(options={"finals": "unknown"}))

    with pytest.raises(ConversionError, match="may stand for an unknown state"):
        identify(tmp_path / "steps")
    assert identify(tmp_path / "steps", selection=Selection(options={"finals": "unknown"})).matches[0].exact == 3
    assert main(["diff", str(tmp_path / "steps"), str(stored), "--finals", "unknown", "-q"]) == 0
    assert main(["identify", str(stored), "--finals", "unknown"]) == 2
    assert "is stored" in capsys.readouterr().err
    with pytest.raises(InvalidArgumentError, match="are stored"):
        diff(stored, stored, selection=Selection(options={"finals": "unknown"}))


def test_the_layout_of_the_files_is_no_difference(tmp_path):
    steps = in_ted([draw(np.random.default_rng(0), 30, "terminated")])
    steps.memmap(tmp_path / "one")
    steps.memmap(tmp_path / "more" / "rollout_0")

    found = diff(tmp_path / "one", tmp_path / "more")

    assert found.equal
    assert "metadata: layout_evidence" in {change.name for change in found.origins}
