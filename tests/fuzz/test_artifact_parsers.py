"""Models, tokenizers, Parquet files and build folders from anybody: read, or refused by a typed error, in
bounded memory.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE

from outlast.build.plan import agree_on_plan, read_record_as
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.corpus.read import read_documents
from outlast.errors import OutlastError
from outlast.huggingface.load import load_weights, read_encoder_config
from outlast.huggingface.pretrained import read_pretrained
from outlast.prepare.portion import TextRecord
from outlast.storage import LocalStore
from outlast.tokenizer.importing import import_tokenizer, read_foreign
from support.hostile import NOISE, accepts_or_refuses, damaged, damaged_bytes, resealed, to_json

FOLDER: dict[str, Path] = {}

CONFIG: dict[str, Any] = {
    "model_type": "roberta",
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 20,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-5,
    "initializer_range": 0.02,
}


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    FOLDER["model"] = tmp_path_factory.mktemp("model")
    FOLDER["build"] = tmp_path_factory.mktemp("build")
    (FOLDER["build"] / "done").mkdir()
    FOLDER["files"] = tmp_path_factory.mktemp("files")


def model_with(name: str, content: bytes) -> Path:
    (FOLDER["model"] / "config.json").write_bytes(to_json(CONFIG))
    (FOLDER["model"] / name).write_bytes(content)
    return FOLDER["model"]


@given(damaged(CONFIG).map(to_json) | damaged_bytes(to_json(CONFIG)) | NOISE)
@example(b'{"model_type": ' + b"[" * 100_000)
@example(to_json({**CONFIG, "hidden_dropout_prob": float("nan")}))
@example(to_json({**CONFIG, "model_type": []}))
def test_any_model_configuration(content: bytes) -> None:
    config = accepts_or_refuses(lambda: read_encoder_config(model_with("config.json", content)))
    assert config is None or 0 <= config.dropout <= 1


WEIGHTS = safetensors.numpy.save({"roberta.embeddings.word_embeddings.weight": np.zeros((30, 8), np.float32)})
HEADER_BYTES = int.from_bytes(WEIGHTS[:8], "little")


def with_header(header: Any) -> bytes:
    text = to_json(header)
    return len(text).to_bytes(8, "little") + text + WEIGHTS[8 + HEADER_BYTES :]


@settings(max_examples=150)
@given(
    damaged_bytes(WEIGHTS)
    | NOISE
    | damaged(json.loads(WEIGHTS[8 : 8 + HEADER_BYTES])).map(with_header)
    | st.integers(0, 2**64 - 1).map(lambda size: size.to_bytes(8, "little") + WEIGHTS[8:])
)
@example(b"\xff" * 8)
@example((2**63).to_bytes(8, "little") + b"{}")
@example((2 * 2**30).to_bytes(8, "little") + b"{}" * 100)
@example((100_000).to_bytes(8, "little") + b"[" * 100_000)
@example(with_header({"x": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 960]}}))
@example(with_header({"x": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}))
@example(with_header({"x": {"dtype": "F32", "shape": [240], "data_offsets": [0, 2**60]}}))
@example(with_header({"x": {"dtype": "F4", "shape": [240], "data_offsets": [0, 120]}}))
def test_any_weights(content: bytes) -> None:
    """Absurd sizes take no memory; what is read does not make a model, and that is said."""
    assert accepts_or_refuses(lambda: load_weights(model_with("model.safetensors", content))) is None


PRETRAINING = {**CONFIG, "model_type": "bert", "pad_token_id": 0, "architectures": ["BertForPreTraining"]}


@settings(max_examples=100)
@given(damaged(PRETRAINING).map(to_json), damaged_bytes(WEIGHTS) | st.just(WEIGHTS))
@example(to_json({**PRETRAINING, "num_hidden_layers": 10**15}), WEIGHTS)
@example(to_json({**PRETRAINING, "vocab_size": 2**60}), WEIGHTS)
def test_any_checkpoint_to_start_from(config: bytes, weights: bytes) -> None:
    folder = model_with("model.safetensors", weights)
    (folder / "config.json").write_bytes(config)
    assert accepts_or_refuses(lambda: read_pretrained(folder)) is None


@given(
    vocabulary=st.lists(st.sampled_from(["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", ""])).map(
        lambda pieces: "\n".join(pieces).encode()
    )
    | NOISE,
    merges=st.lists(st.sampled_from(["a b", "a", "#version", "b a c", "ab a"])).map(
        lambda lines: "\n".join(lines).encode()
    )
    | NOISE,
    bpe=damaged({"a": 0, "b": 1, "ab": 2, "<s>": 3, "<pad>": 4}).map(to_json) | NOISE,
    config=damaged({"do_lower_case": True, "strip_accents": None, "add_prefix_space": False}).map(to_json)
    | NOISE,
)
def test_any_vocabulary_files(vocabulary: bytes, merges: bytes, bpe: bytes, config: bytes) -> None:
    folder = FOLDER["files"] / "vocabulary"
    folder.mkdir(exist_ok=True)
    contents = {"vocab.txt": vocabulary, "vocab.json": bpe, "merges.txt": merges}
    for name, content in {**contents, "tokenizer_config.json": config}.items():
        (folder / name).write_bytes(content)
    for name in ("vocab.txt", "vocab.json"):
        accepts_or_refuses(lambda name=name: read_foreign(folder / name))


@pytest.fixture(scope="module")
def tokenizer() -> bytes:
    pieces = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "a", "b", "ab"]
    model = BPE({piece: index for index, piece in enumerate(pieces)}, [("a", "b")], unk_token="<unk>")
    return Tokenizer(model).to_str().encode()


@given(st.data())
def test_any_tokenizer_json(tokenizer: bytes, data: st.DataObject) -> None:
    document = json.loads(tokenizer)
    content = data.draw(damaged_bytes(tokenizer) | damaged(document).map(to_json) | NOISE)
    path = FOLDER["files"] / "tokenizer.json"
    path.write_bytes(content)
    store = LocalStore(FOLDER["files"])
    accepts_or_refuses(lambda: import_tokenizer(path, store, "imported", append_missing=True))
    for info in store.list("imported/"):
        store.delete(info.name)


RECORD: dict[str, Any] = {
    "format": "outlast-piece",
    "version": 2,
    "piece": 0,
    "tokenizer_fingerprint": "f",
    "shards": {},
    "text_bytes": {"train": 5},
    "skipped": {},
    "undecodable_bytes": 0,
    "undecodable": [["a", 1, 2]],
}
PLAN: dict[str, Any] = {"format": "outlast-plan", "version": 2, "versions": {"a": "1"}, "identity": {"b": 1}}


@given(damaged(RECORD).map(resealed) | damaged(PLAN).map(resealed) | NOISE)
@example(b"{}")
@example(to_json({"format": "outlast-plan", "version": 1, "identity": {"b": 1}}))
def test_any_plan_and_record_of_a_build(content: bytes) -> None:
    store = LocalStore(FOLDER["build"])
    (FOLDER["build"] / "plan.json").write_bytes(content)
    (FOLDER["build"] / "done" / "00000.json").write_bytes(content)
    accepts_or_refuses(lambda: read_record_as(TextRecord, store, 0))
    accepts_or_refuses(lambda: agree_on_plan(store, {"b": 1}, {"a": "1"}))


@pytest.fixture(scope="module")
def parquet() -> bytes:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: no Parquet to read")
    pytest.importorskip("pyarrow.parquet").write_table(
        pyarrow.table({"text": ["one", "two", None, "x" * 300] * 20}), FOLDER["files"] / "sound"
    )
    return (FOLDER["files"] / "sound").read_bytes()


@settings(max_examples=150)
@given(st.data())
def test_any_parquet(parquet: bytes, data: st.DataObject) -> None:
    path = FOLDER["files"] / "table.parquet"
    path.write_bytes(data.draw(damaged_bytes(parquet) | NOISE))
    config = CorpusConfig(path=str(path), format="parquet", undecodable="replace")

    def read() -> list[str]:
        portions = plan_portions(list_corpus(config), 2)
        return [text for portion in portions for text in read_documents(config, portion, Tally())]

    accepts_or_refuses(read)


def test_what_is_sound_is_read(tokenizer: bytes) -> None:
    """The inputs above are damaged from something that is accepted."""
    assert read_encoder_config(model_with("config.json", to_json(CONFIG))).vocab_size == 30
    path = FOLDER["files"] / "tokenizer.json"
    path.write_bytes(tokenizer)
    assert import_tokenizer(path, LocalStore(FOLDER["files"]), "kept").vocab_size == 8
    store = LocalStore(FOLDER["build"])
    for content in (resealed(RECORD), to_json({**RECORD, "version": 1})):  # that of an earlier version, too
        store.replace("done/00000.json", [content])
        assert read_record_as(TextRecord, store, 0).text_bytes == {"train": 5}
    with pytest.raises(OutlastError, match="roberta"):
        load_weights(model_with("model.safetensors", WEIGHTS))
