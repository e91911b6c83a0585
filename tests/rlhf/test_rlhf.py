"""Texts are tokenized once, stored, sampled as pairs and prompts, and continued by a language model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch
from tensordict import TensorDict

from datasets_rl import errors
from datasets_rl.rlhf import (
    AdaptiveKLController,
    ConstantKLController,
    PairwiseDataset,
    PromptData,
    PromptTensorDictTokenizer,
    RolloutFromModel,
    TensorDictTokenizer,
    TokenizedDatasetLoader,
    create_infinite_iterator,
    get_dataloader,
    pre_tokenization_hook,
)
from datasets_rl.rlhf import loader as loading
from datasets_rl.rlhf.tokenizers import load_tokenizer

LIBRARIES = [find_spec(name) for name in ("datasets", "tokenizers", "transformers")]
# Without the library datasets, its name is that of the folder tests/datasets, which has no origin.
pytestmark = pytest.mark.skipif(
    not all(found and found.origin for found in LIBRARIES), reason="pip install 'datasets-rl[rlhf]'"
)

END = "<end>"
LENGTH = 24
PAIRS = [
    {"prompt": f"Summarize post {number}", "chosen": "it is " * (2 + number % 4) + "good", "rejected": "a b c d e f"}
    for number in range(11)
]
SHORT = {"prompt": "too short", "chosen": "yes", "rejected": "not at all, I fear"}
EQUAL = {"prompt": "no choice", "chosen": "one two three four five", "rejected": "one two three four five"}
PROMPTS = [{"prompt": f"Post {number}: ", "label": "good " * (1 + number % 5)} for number in range(23)]


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads that wait for other processes' cores cost more than the work of a tiny model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a tokenizer, pairs, and prompts, which all tests of this module only read."""
    # Not at the head of the file: every worker would import the libraries to collect the tests.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("rlhf")
    byte_pairs = Tokenizer(models.BPE())
    byte_pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_pairs.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    texts = [" ".join(row.values()) for row in PAIRS + PROMPTS]
    byte_pairs.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(tokenizer_object=byte_pairs, eos_token=END).save_pretrained(folder / "tokenizer")
    lines(folder / "pairs.jsonl", [*PAIRS[:5], SHORT, EQUAL, *PAIRS[5:]])
    (folder / "prompts").mkdir()
    lines(folder / "prompts" / "train.jsonl", PROMPTS)
    lines(folder / "prompts" / "valid.jsonl", PROMPTS[:3])
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    from transformers import PreTrainedTokenizerFast

    loaded = PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer")
    loaded.pad_token = loaded.eos_token
    return loaded


@pytest.fixture
def settings(folder, tmp_path):
    """Return the arguments that name the tokenizer and the folder of stored tokens."""
    from transformers import PreTrainedTokenizerFast

    return {
        "root_dir": tmp_path / "tokens",
        "tokenizer_class": PreTrainedTokenizerFast,
        "tokenizer_model_name": folder / "tokenizer",
    }


def prompt_loader(folder, settings, **more):
    return TokenizedDatasetLoader(
        "train", LENGTH, folder / "prompts", PromptTensorDictTokenizer, **{**settings, **more}
    )


def text(tokenizer, ids):
    return tokenizer.decode(ids).replace(END, "")


def files_below(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_text_becomes_padded_tokens(tokenizer):
    process = TensorDictTokenizer(tokenizer, max_length=10)
    one, two = process({"text": "it is good"}), process({"text": ["it is good", "a b"]})

    assert one.batch_size == torch.Size([])
    assert one["input_ids"].shape == (10,)
    assert two.batch_size == (2,)
    assert two["input_ids"].dtype == two["attention_mask"].dtype == torch.int64
    assert (two["input_ids"][0] == one["input_ids"]).all()
    assert (two["input_ids"][two["attention_mask"] == 0] == tokenizer.eos_token_id).all()
    assert [text(tokenizer, row) for row in two["input_ids"]] == ["it is good", "a b"]
    nested = TensorDictTokenizer(tokenizer, max_length=10, padding=False)({"text": ["it is good", "a b"]})
    assert [text(tokenizer, row) for row in nested["input_ids"].unbind()] == ["it is good", "a b"]
    with pytest.raises(errors.InvalidArgumentError, match="no key 'text', and has words"):
        process({"words": "it is"})


def test_a_prompt_is_tokenized_with_its_label(tokenizer):
    example = {"prompt": ["it is", "a b c"], "label": [" good", " d e f" * 9]}
    done = PromptTensorDictTokenizer(tokenizer, max_length=10)(example)

    assert text(tokenizer, done["input_ids"][0]) == "it is good"
    ends = done["prompt_rindex"] + 1
    assert [text(tokenizer, row[:end]) for row, end in zip(done["input_ids"], ends, strict=True)] == example["prompt"]
    assert done["valid_sample"].tolist() == [True, False]
    single = PromptTensorDictTokenizer(tokenizer, max_length=10)({"prompt": "it is", "label": " good"})
    assert single.batch_size == torch.Size([])
    assert (single == done[0]).all()


def test_a_tokenizer_that_pads_on_the_left_gives_the_same_positions(folder, tokenizer, tmp_path):
    """Tokenizers of models for generation pad on the left, where positions from the first column are others."""
    from transformers import PreTrainedTokenizerFast

    left = PreTrainedTokenizerFast.from_pretrained(
        folder / "tokenizer", padding_side="left", truncation_side="left", pad_token=END
    )
    left.save_pretrained(tmp_path)
    example = {"prompt": ["it is", "a b c"], "label": [" good", " d e f" * 9]}

    loaded = PromptTensorDictTokenizer(load_tokenizer(PreTrainedTokenizerFast, tmp_path), max_length=10)(example)

    assert (loaded == PromptTensorDictTokenizer(tokenizer, max_length=10)(example)).all()
    with pytest.raises(
        errors.InvalidArgumentError, match="padding_side and truncation_side of the tokenizer is 'left'"
    ):
        PromptTensorDictTokenizer(left, max_length=10)(example)


def test_pairs_of_a_file_are_stored_as_chosen_and_rejected(folder, settings, tokenizer):
    data = PairwiseDataset.from_dataset("train", folder / "pairs.jsonl", LENGTH, **settings)

    assert data.batch_size == (len(PAIRS),)
    for side in ("chosen", "rejected"):
        found = [text(tokenizer, row) for row in getattr(data, f"{side}_data").input_ids]
        assert found == [f"{row['prompt']}\n{row[side]}" for row in PAIRS]
    assert data.chosen_data.rewards is None
    assert data[:3].rejected_data.input_ids.shape == (3, LENGTH)


def test_parquet_and_saved_datasets_have_the_tokens_of_json_lines(folder, settings, tmp_path):
    from datasets import Dataset

    rows = Dataset.from_list(PROMPTS)
    rows.to_parquet(tmp_path / "train-00000.parquet")
    rows.save_to_disk(tmp_path / "saved")
    expected = PromptData.from_dataset("train", folder / "prompts", LENGTH, **settings)

    for name, from_disk in [(tmp_path, False), (tmp_path / "saved", True)]:
        data = PromptData.from_dataset("train", name, LENGTH, from_disk=from_disk, **settings)
        assert (data.input_ids == expected.input_ids).all()
        assert (data.prompt_rindex == expected.prompt_rindex).all()
    assert len(PromptData.from_dataset("train[:4]", folder / "prompts", LENGTH, **settings)) == 4


def test_stored_tokens_are_read_again_and_other_arguments_do_not_replace_them(folder, settings, monkeypatch):
    first = prompt_loader(folder, settings).load()
    stored = files_below(settings["root_dir"])
    other = prompt_loader(folder, settings, pre_tokenization_hook=lambda rows: rows.select(range(5))).load()
    valid = TokenizedDatasetLoader(
        "valid", LENGTH, folder / "prompts", PromptTensorDictTokenizer, valid_size=2, **settings
    ).load()
    monkeypatch.setattr(loading, "load_texts", lambda *_, **__: pytest.fail("the texts were read again"))

    assert (prompt_loader(folder, settings).load() == first).all()
    assert (len(first), len(other), len(valid)) == (23, 5, 2)
    assert stored.items() <= files_below(settings["root_dir"]).items()
    first["input_ids"].fill_(0)
    assert stored.items() <= files_below(settings["root_dir"]).items()


def test_ragged_datasets_have_the_same_tokens_and_are_padded_to_the_longest_of_a_batch(folder, settings, tokenizer):
    padded = PromptData.from_dataset("train", folder / "prompts", LENGTH, **settings)
    ragged = PromptData.from_dataset("train", folder / "prompts", LENGTH, ragged=True, **settings)
    buffer = get_dataloader(5, LENGTH, PromptData, "cpu", folder / "prompts", infinite=False, ragged=True, **settings)

    lengths = padded.attention_mask.sum(1)
    assert [len(row) for row in ragged.input_ids.unbind()] == lengths.tolist()
    assert ragged.input_ids.values().tolist() == padded.input_ids[padded.attention_mask == 1].tolist()
    texts = {tuple(row.tolist()): int(end) for row, end in zip(padded.input_ids, padded.prompt_rindex, strict=True)}
    for batch in buffer:
        width = batch.input_ids.shape[1]
        assert width == batch.attention_mask.sum(1).max()
        rest = torch.full((5, LENGTH - width), tokenizer.eos_token_id)
        rows = torch.cat([batch.input_ids, rest], 1).tolist()
        assert [texts[tuple(row)] for row in rows] == batch.prompt_rindex.tolist()
        assert (batch.labels == batch.input_ids).all()


@pytest.mark.parametrize("ragged", [False, True])
def test_a_pass_of_the_dataloader_has_each_pair_at_most_once(folder, settings, ragged):
    arguments = {"dataset_name": folder / "pairs.jsonl", "ragged": ragged, **settings}
    one_pass = get_dataloader(3, LENGTH, PairwiseDataset, "cpu", infinite=False, **arguments)
    seen = [tuple(row[:8].tolist()) for batch in one_pass for row in batch.chosen_data.input_ids]
    endless = get_dataloader(4, LENGTH, PairwiseDataset, "cpu", **arguments)

    assert len(seen) == 9
    assert len({next(endless).batch_size for _ in range(7)}) == 1
    with pytest.raises(errors.InvalidArgumentError, match="batch_size is 12, but the dataset has 11 rows"):
        get_dataloader(12, LENGTH, PairwiseDataset, "cpu", **arguments)


def test_an_infinite_iterator_repeats_its_items_and_refuses_an_empty_pass():
    endless = create_infinite_iterator([1, 2])

    assert [next(endless) for _ in range(5)] == [1, 2, 1, 2, 1]
    with pytest.raises(errors.InvalidArgumentError, match="yields no item"):
        list(create_infinite_iterator(iter([1, 2])))


@pytest.mark.parametrize("ragged", [False, True])
def test_interrupted_tokenization_continues_after_the_last_batch(folder, settings, tmp_path, monkeypatch, ragged):
    monkeypatch.setattr(loading, "_BATCH_ROWS", 4)
    expected = prompt_loader(folder, settings, root_dir=tmp_path / "whole", ragged=ragged).load()
    tokenized = []
    encode = PromptTensorDictTokenizer.__call__

    def counted(self, sample):
        if len(tokenized) == 3:
            raise KeyboardInterrupt
        tokenized.append(sample["prompt"])
        return encode(self, sample)

    monkeypatch.setattr(PromptTensorDictTokenizer, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        prompt_loader(folder, settings, ragged=ragged).load()
    assert not list(settings["root_dir"].glob("prompts/*"))
    monkeypatch.setattr(
        PromptTensorDictTokenizer, "__call__", lambda self, sample: tokenized.append(1) or encode(self, sample)
    )
    found = prompt_loader(folder, settings, ragged=ragged).load()

    assert len(tokenized) == 6
    for key in ("input_ids", "prompt_rindex"):
        pieces = [one[key].values() if one[key].is_nested else one[key] for one in (found, expected)]
        assert (pieces[0] == pieces[1]).all()
    assert files_below(settings["root_dir"]).keys() == files_below(tmp_path / "whole").keys()


KILLED = """
import json, sys, os
sys.path[:0] = [{faults!r}]
from crash import events_below, run_killed_at
import torch
torch.set_num_threads(1)
from pathlib import Path
import datasets
from transformers import PreTrainedTokenizerFast
from datasets_rl.rlhf import PromptData
from datasets_rl.rlhf import loader
loader._BATCH_ROWS = 6
root = Path({root!r})

def work():
    PromptData.from_dataset("train", {texts!r}, 24, root_dir=root, tokenizer_class=PreTrainedTokenizerFast,
                            tokenizer_model_name={tokenizer!r}, ragged={ragged!r})

counts = events_below(root)
fatal, killed = 1, 0
while True:
    died = run_killed_at(fatal, work, counts) is None
    killed += died
    for path in root.glob("prompts/*/*"):
        assert (path / "tokens.json").is_file(), fatal
    assert run_killed_at(0, work, counts) is not None
    files = {{path.name: path.read_bytes() for path in root.rglob("*") if path.is_file()}}
    if fatal == 1:
        expected = files
    assert files == expected, (fatal, files.keys())
    if not died:
        break
    import shutil; shutil.rmtree(root)
    fatal += {step}
print(killed)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL")
@pytest.mark.parametrize("ragged", [False, True])
def test_tokenization_killed_at_every_step_is_completed_by_the_same_call(folder, tmp_path, ragged):
    program = KILLED.format(
        faults=str(Path(__file__).parents[1] / "faults"),
        root=str(tmp_path / "tokens"),
        texts=str(folder / "prompts"),
        tokenizer=str(folder / "tokenizer"),
        ragged=ragged,
        step=1,
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RLDS_NO_PROGRESS": "1"},
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) > 50


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_several_processes_store_the_tokens_of_one(folder, settings, tmp_path):
    alone = prompt_loader(folder, settings).load()
    together = prompt_loader(folder, settings, root_dir=tmp_path / "other", num_workers=2).load()

    assert (alone == together).all()


def test_errors_name_what_is_missing(folder, settings, tmp_path, monkeypatch):
    stored = prompt_loader(folder, settings)
    stored.load()
    path = next(settings["root_dir"].rglob("input_ids.npy"))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(errors.IntegrityError, match=r"input_ids\.npy"):
        stored.load()
    with pytest.raises(errors.InvalidArgumentError, match="0 files of the split 'test'"):
        TokenizedDatasetLoader("test", LENGTH, folder / "prompts", TensorDictTokenizer, **settings).load()
    with pytest.raises(errors.InvalidArgumentError, match="no key 'text', and has prompt, label"):
        TokenizedDatasetLoader("train", LENGTH, folder / "prompts", TensorDictTokenizer, **settings).load()
    with pytest.raises(errors.InvalidArgumentError, match="is valid: all 23 have 3 tokens or more"):
        TokenizedDatasetLoader("train", 3, folder / "prompts", PromptTensorDictTokenizer, **settings).load()
    with pytest.raises(errors.InvalidArgumentError, match="is left to tokenize: 1 rows were read"):
        PairwiseDataset.from_dataset("train", lines(tmp_path / "one.jsonl", [SHORT]), LENGTH, **settings)
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "it')
    with pytest.raises(errors.ConversionError, match=r"broken\.jsonl"):
        PromptData.from_dataset("train", broken, LENGTH, **settings)
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    with pytest.raises(errors.InvalidArgumentError, match="no tokenizer 'nowhere/nothing'"):
        prompt_loader(folder, settings, tokenizer_model_name="nowhere/nothing")


@pytest.mark.parametrize(
    ("library", "call"),
    [
        ("datasets", lambda: pre_tokenization_hook([])),
        ("transformers", lambda: RolloutFromModel(None, None, None)),
    ],
)
def test_a_missing_library_is_named_with_its_extra(monkeypatch, library, call):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(errors.MissingDependencyError, match=r"pip install 'datasets-rl\[rlhf\]'"):
        call()


def test_code_of_a_tokenizer_repository_never_runs(folder, settings, tmp_path):
    marker, repository = tmp_path / "ran", tmp_path / "repository"
    repository.mkdir()
    (repository / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")
    (repository / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["evil.Evil", None]}}))
    (repository / "config.json").write_text(json.dumps({"model_type": "evil"}))
    with pytest.raises(errors.InvalidArgumentError, match="no tokenizer"):
        prompt_loader(folder, {**settings, "tokenizer_class": None, "tokenizer_model_name": repository})

    assert not marker.exists()


COMMIT = "c0ffee" * 6 + "c0ff"


class HubRequest(BaseHTTPRequestHandler):
    """The requests of the library datasets to the Hugging Face hub, over the folder `server.repository`."""

    def log_message(self, *_):
        """Print nothing."""

    def reply(self, status, body=b"", **headers):
        """Send a response of one commit."""
        self.send_response(status)
        for name, value in {"X-Repo-Commit": COMMIT, "Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        """Respond with the description of the repository, a list of files, or a file."""
        folder = self.server.repository
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        path = unquote(urlsplit(self.path).path)
        below = path.partition("/lab/prompts")[2]
        if path.startswith("/api/") and below.startswith("/tree/"):
            tree = below.removeprefix(f"/tree/{COMMIT}").lstrip("/")
            entries = [
                {"type": "file", "oid": "1" * 40, "size": place.stat().st_size, "path": name}
                for name, place in files.items()
                if not tree
            ]
            self.reply(200, json.dumps(entries).encode()) if entries else self.reply(404, X_Error_Code="EntryNotFound")
        elif path.startswith("/api/datasets/lab/prompts"):
            siblings = [{"rfilename": name} for name in files]
            self.reply(200, json.dumps({"id": "lab/prompts", "sha": COMMIT, "siblings": siblings}).encode())
        elif (name := below.partition("/resolve/")[2].partition("/")[2]) in files:
            self.reply(200, files[name].read_bytes(), ETag='"1"')
        else:
            self.reply(404, X_Error_Code="EntryNotFound")

    do_HEAD = do_GET  # noqa: N815 -- the name that the base class looks up


FROM_HUB = """
from transformers import PreTrainedTokenizerFast
from datasets_rl.rlhf import PromptData
data = PromptData.from_dataset("train", "lab/prompts", 24, root_dir={root!r}, tokenizer_class=PreTrainedTokenizerFast,
                               tokenizer_model_name={tokenizer!r})
print(data.input_ids.tolist())
"""


@pytest.mark.slow
def test_texts_of_the_hub_are_tokenized_and_its_programs_never_run(folder, settings, tmp_path):
    from datasets import Dataset

    repository, marker = tmp_path / "repository", tmp_path / "ran"
    repository.mkdir()
    Dataset.from_list(PROMPTS).to_parquet(repository / "train-00000-of-00001.parquet")
    expected = PromptData.from_dataset("train", folder / "prompts", LENGTH, **settings)
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubRequest)
    server.repository = repository
    threading.Thread(target=server.serve_forever).start()

    def load(root, **more):
        """Load the prompts in another process, because the library reads the address of the hub at its import."""
        program = FROM_HUB.format(root=str(root), tokenizer=str(folder / "tokenizer"))
        env = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / f"{root.name}-home")}
        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ | env | more
        )

    try:
        first = load(tmp_path / "first")
        (repository / "prompts.py").write_text(f"open({str(marker)!r}, 'w')\n")
        script = load(tmp_path / "script")
    finally:
        server.shutdown()
        server.server_close()
    again, other = load(tmp_path / "first"), load(tmp_path / "other", RLDS_OFFLINE="1")

    assert json.loads(first.stdout) == json.loads(again.stdout) == expected.input_ids.tolist(), first.stderr
    assert script.returncode != 0
    assert not marker.exists()
    for failed, error in ((script, "FetchError"), (other, "OfflineError")):
        assert f"{error}: could not fetch the split 'train' of 'lab/prompts'" in failed.stderr


def test_columns_of_numbers_are_stored_below_a_prefix(tmp_path):
    from datasets import Dataset

    data = Dataset.from_dict({"tokens": torch.arange(110).reshape(10, 11).tolist(), "keep": [True, False] * 5})
    stored = TokenizedDatasetLoader.dataset_to_tensordict(
        data, tmp_path, prefix=("some", "prefix"), valid_mask_key="keep"
    )
    again = TokenizedDatasetLoader.dataset_to_tensordict(
        TensorDict({"a": {"b": torch.ones(4, 2)}}, [4]), tmp_path, prefix="some_tensors"
    )

    assert stored["some", "prefix"].batch_size == (5,)
    assert (stored["some", "prefix", "tokens"] == torch.arange(110).reshape(10, 11)[::2]).all()
    assert again["some_tensors", "a", "b"].sum() == 8
    with pytest.raises(errors.InvalidArgumentError, match="not a tokenized dataset"):
        TokenizedDatasetLoader.dataset_to_tensordict(data, tmp_path, features=["tokens"])
    notes = tmp_path / "some_tensors" / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(errors.InvalidArgumentError, match="not a tokenized dataset"):
        TokenizedDatasetLoader.dataset_to_tensordict(TensorDict({"a": torch.ones(4)}, [4]), notes.parent)
    assert notes.read_text() == "mine"


SMALL = {"vocab_size": 40, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
EOS = 0


@pytest.fixture(scope="module")
def language_models():
    """Return two language models with two layers and random weights; the first one often ends its texts."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    first, second = (GPT2LMHeadModel(GPT2Config(**SMALL, eos_token_id=EOS, bos_token_id=EOS)).eval() for _ in range(2))
    for parameter in first.parameters():
        parameter.data.mul_(4)
    return first, second


def count_tokens(input_ids, attention_mask):
    """Return rewards [B, L] and, as end scores, the number of tokens."""
    return input_ids.float(), attention_mask.float().sum(-1)


def prompts_of(*, rows=8, length=12):
    torch.manual_seed(1)
    return PromptData(
        input_ids=torch.randint(1, 40, (rows, length)),
        attention_mask=torch.ones(rows, length, dtype=torch.int64),
        prompt_rindex=torch.arange(rows) % 7 + 2,
        batch_size=[rows],
    )


def test_a_rollout_is_that_of_a_plain_loop(language_models):
    model, reference = language_models
    batch, steps = prompts_of(), 9
    torch.manual_seed(2)
    rollouts = RolloutFromModel(model, reference, count_tokens, kl_coef=0.3, max_new_tokens=steps, score_clip=4.0)
    rollout = rollouts.rollout_from_data(batch)

    assert rollout.batch_size == (8, steps)
    assert rollout.names == [None, "time"]
    ended = 0
    for row in range(8):
        before = int(batch.prompt_rindex[row])
        written, over = batch.input_ids[row, :before].tolist(), False
        for step in range(steps):
            now, token = rollout[row, step], int(rollout["action"][row, step])
            padded = torch.tensor(written[: before + steps] + [EOS] * (12 + steps - len(written)))
            assert (now["input_ids"] == padded).all()
            assert (now["attention_mask"] == (padded != EOS)).all()
            assert now["next", "done"].item() == ((token == EOS and not over) or step == steps - 1)
            assert now["next", "terminated"].item() == (token == EOS and not over and step < steps - 1)
            ends = not over and (token == EOS or step == steps - 1)
            tokens = step + (token != EOS)
            score = min(max(before + tokens - 12, -4), 4) if ends else 0
            with torch.no_grad():
                both = [one(torch.tensor([written])).logits[0, -1].log_softmax(-1)[token] for one in language_models]
            log_prob, ratio = (both[0].item(), (both[0] - both[1]).item()) if not over else (0.0, 0.0)
            assert now["sample_log_prob"].item() == pytest.approx(log_prob, abs=1e-4)
            assert now["next", "reward_kl"].item() == pytest.approx(-0.3 * ratio, abs=1e-4)
            assert now["next", "reward_raw"].item() == score
            assert now["next", "reward"].item() == pytest.approx(score - 0.3 * ratio, abs=1e-4)
            over = over or token == EOS
            written.append(token)
            ended += now["next", "terminated"].item()
    assert ended > 0


def test_a_rollout_keeps_its_length_if_every_text_ends_early(language_models):
    model, reference = language_models
    forced = torch.nn.Module()
    forced.config, forced.generate = model.config, model.generate
    ends = type(model)(model.config).eval()
    ends.lm_head = torch.nn.Linear(16, 40)
    torch.nn.init.zeros_(ends.lm_head.weight)
    ends.lm_head.bias.data = torch.full((40,), -50.0).index_fill(0, torch.tensor(EOS), 0.0)
    rollout = RolloutFromModel(ends, reference, count_tokens, max_new_tokens=5).rollout_from_data(prompts_of())

    assert (rollout["action"] == EOS).all()
    assert rollout["next", "done"][:, :, 0].tolist() == [[True, False, False, False, True]] * 8
    assert rollout["next", "reward_raw"][:, 1:].eq(0).all()
    assert rollout["sample_log_prob"].isfinite().all()


def test_a_prompt_without_tokens_is_refused(language_models):
    batch = prompts_of()
    batch.prompt_rindex[3] = 0
    with pytest.raises(errors.InvalidArgumentError, match="row 3 has no token before its prompt_rindex"):
        RolloutFromModel(*language_models, count_tokens).generate(batch)


def test_the_coefficient_of_the_kl_term_follows_its_controller(language_models):
    controller = AdaptiveKLController(init_kl_coef=0.5, target=2.0, horizon=10)
    # KL = 4 / 0.5 = 8, four times the target: the error is clipped to 0.2, and 3 values are 0.3 of the horizon.
    assert controller.update([-3.0, -4.0, torch.tensor(-5.0)]) == pytest.approx(0.5 * (1 + 0.2 * 0.3))
    # KL = 0.954 / 0.53 = 1.8, a tenth below the target.
    assert controller.update([-0.954]) == pytest.approx(0.53 * (1 - 0.1 * 0.1))
    with pytest.raises(ValueError, match="kl_values is empty"):
        controller.update([])
    with pytest.raises(errors.InvalidArgumentError, match="target is 0, expected a number above 0"):
        AdaptiveKLController(init_kl_coef=1, target=0, horizon=1)

    rollouts = RolloutFromModel(
        *language_models, count_tokens, max_new_tokens=2, kl_scheduler=ConstantKLController(kl_coef=0.7)
    )
    rollouts.rollout_from_data(prompts_of())
    rollouts.step_scheduler()
    assert rollouts.kl_coef == 0.7
    ConstantKLController(kl_coef=0.1, model=rollouts)
    assert rollouts.kl_coef == 0.1
    with pytest.raises(AttributeError, match="no attribute 'kl_coef'"):
        ConstantKLController(kl_coef=0.1, model=object())
