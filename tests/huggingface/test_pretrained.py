"""Checkpoints with all kinds of heads: what is taken, what is named, what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from outlast.errors import OutlastError
from outlast.huggingface.load import load_weights
from outlast.huggingface.names import to_huggingface
from outlast.huggingface.pretrained import read_pretrained
from outlast.models.architectures import ARCHITECTURES

FOLDERS = ("bert_pretraining", "bert_seqcls_3way", "roberta_mlm", "bigbird_pretraining", "modernbert_mlm")


@pytest.fixture
def bert(test_data: Path, tmp_path: Path) -> Path:
    """A writable copy of a BertForPreTraining."""
    return copy_of(test_data / "parity" / "bert_pretraining", tmp_path)


@pytest.fixture
def modernbert(test_data: Path, tmp_path: Path) -> Path:
    return copy_of(test_data / "parity" / "modernbert_mlm", tmp_path)


def copy_of(source: Path, folder: Path) -> Path:
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(source / name, folder / name)
    return folder


def change(folder: Path, **tensors: Any) -> None:
    """Set tensors by name; None takes one away."""
    path = folder / "model.safetensors"
    changed = load_file(path) | tensors
    save_file({name: value for name, value in changed.items() if value is not None}, path)


@pytest.mark.parametrize("model", FOLDERS)
def test_every_tensor_is_taken_to_the_bit_or_named(test_data: Path, model: str) -> None:
    folder = test_data / "parity" / model
    found = read_pretrained(folder)
    table = ARCHITECTURES[found.config.architecture].param_table(found.config)
    kept = {group: table[group] for group in table if group not in found.missing}
    back = to_huggingface(kept, found.params)
    original = load_file(folder / "model.safetensors")
    assert {*back, *found.left_out} == original.keys()
    for name, tensor in back.items():
        np.testing.assert_array_equal(tensor, original[name], err_msg=name)


def test_a_classifier_gives_its_encoder(test_data: Path) -> None:
    found = read_pretrained(test_data / "parity" / "bert_seqcls_3way")
    assert found.missing == ("head", "next_sentence")
    assert not found.config.next_sentence
    assert found.left_out == (
        "bert.pooler.dense.bias",
        "bert.pooler.dense.weight",
        "classifier.bias",
        "classifier.weight",
    )


def test_the_tensors_decide_which_heads_there_are(bert: Path) -> None:
    """The hub's BERT says BertForMaskedLM and holds both heads."""
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    assert read_pretrained(bert).config.next_sentence
    change(bert, **{"cls.seq_relationship.weight": None, "cls.seq_relationship.bias": None})
    found = read_pretrained(bert)
    assert not found.config.next_sentence
    assert found.missing == ("next_sentence",)
    assert "bert.pooler.dense.weight" in found.left_out


def test_half_a_head_is_refused(bert: Path) -> None:
    change(bert, **{"cls.predictions.bias": None})
    with pytest.raises(OutlastError, match=r"in part; it lacks cls\.predictions\.bias") as caught:
        read_pretrained(bert)
    assert "model.safetensors" in str(caught.value)


def test_the_transform_of_a_modernbert_classifier_is_no_half_of_a_head(modernbert: Path) -> None:
    change(modernbert, **{"head.norm.weight": None})
    with pytest.raises(OutlastError, match=r"in part; it lacks head\.norm\.weight"):
        read_pretrained(modernbert)
    norm, classifier = np.ones(64, np.float32), np.zeros((3, 64), np.float32)
    change(modernbert, **{"head.norm.weight": norm, "decoder.bias": None, "classifier.weight": classifier})
    found = read_pretrained(modernbert)
    assert found.missing == ("head",)
    assert found.left_out == ("classifier.weight", "head.dense.weight", "head.norm.weight")


@pytest.mark.parametrize("model", ["bert_pretraining", "modernbert_mlm"])
def test_a_bare_encoder_is_read_under_its_short_names(test_data: Path, tmp_path: Path, model: str) -> None:
    source = test_data / "parity" / model
    shutil.copyfile(source / "config.json", tmp_path / "config.json")
    prefix = "bert." if model == "bert_pretraining" else "model."
    tensors = load_file(source / "model.safetensors")
    bare = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    save_file(bare, tmp_path / "model.safetensors")
    whole, found = read_pretrained(source), read_pretrained(tmp_path)
    assert "head" in found.missing
    for name, value in found.params.items():
        np.testing.assert_array_equal(value, whole.params[name])
    assert {name for name in whole.params if name.startswith(("embeddings", "layers"))} <= found.params.keys()


def test_copies_that_older_files_hold_are_no_news(bert: Path) -> None:
    tensors = load_file(bert / "model.safetensors")
    word, bias = tensors["bert.embeddings.word_embeddings.weight"], tensors["cls.predictions.bias"]
    copies = {"cls.predictions.decoder.weight": word, "cls.predictions.decoder.bias": bias}
    change(bert, **copies, **{"bert.embeddings.position_ids": np.arange(64)[None]})
    assert read_pretrained(bert).left_out == ()
    change(bert, **{"cls.predictions.decoder.weight": word + 1})
    for read in (read_pretrained, load_weights):
        with pytest.raises(OutlastError, match=r"decoder\.weight differs from bert\.embeddings"):
            read(bert)


@pytest.mark.parametrize("read", [read_pretrained, load_weights])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cls.predictions.bias", np.zeros(523, np.int8), r"cls\.predictions\.bias is I8"),
        ("cls.predictions.bias", np.zeros(523, ml_dtypes.float8_e4m3fn), r"predictions\.bias is F8_E4M3"),
        ("cls.predictions.bias", np.full(523, np.inf, np.float32), r"not finite: cls\.predictions\.bias"),
        (
            "bert.encoder.layer.1.output.dense.weight",
            np.zeros((160, 64), np.float32),
            r"has shape \(160, 64\)(?s:.*)shape \(64, 160\) from the model's configuration",
        ),
        ("cls.predictions.bias", np.zeros(600, np.float32), r"cls\.predictions\.bias has shape \(600,\)"),
        ("bert.embeddings.LayerNorm.bias", None, r"lack 1 tensors: bert\.embeddings\.LayerNorm\.bias"),
    ],
)
def test_weights_that_are_not_what_they_should_be(
    bert: Path, read: Callable[[Path], object], name: str, value: Any, message: str
) -> None:
    change(bert, **{name: value})
    with pytest.raises(OutlastError, match=message):
        read(bert)


def test_an_absurd_number_of_layers_costs_nothing(bert: Path) -> None:
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**12}))
    with pytest.raises(OutlastError, match="num_hidden_layers is 1000000000000"):
        read_pretrained(bert)
