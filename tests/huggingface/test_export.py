"""Exported folders: complete, atomic, and equal to what was trained, for us and for transformers."""

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.errors import ConfigError, OutlastError, StorageError
from outlast.huggingface.export import export_model
from outlast.huggingface.load import load_weights
from outlast.huggingface.names import to_huggingface
from outlast.inference.text import load_text_model as load_model
from outlast.models.architectures import ARCHITECTURES
from outlast.models.bert import EncoderInputs
from outlast.models.config import ArchitectureName, EncoderConfig, ModelConfig, resolve_model
from outlast.models.params import Params, flatten, init_params, unflatten
from outlast.models.randomness import row_keys
from outlast.objectives.mlm import cross_entropy

SPECIAL_IDS = {"cls": 0, "unk": 1, "sep": 2, "mask": 3, "pad": 7}
"""The pad id is not 1, as RoBERTa's own is."""


OWN_BLOCKS = {"random_blocks": "uniform", "evaluation_random_blocks": "same"}


def model(architecture: ArchitectureName, **changes: Any) -> tuple[EncoderConfig, dict[str, NDArray[Any]]]:
    """A small model whose every parameter is random, so that nothing can be exchanged unseen."""
    # Twelve blocks, so that attention is sparse; transformers' own rules, so that it computes the same.
    own: dict[str, Any] = {
        "bigbird": {
            "block_size": 2,
            "random_blocks": "transformers",
            "evaluation_random_blocks": "first_block",
        },
        "modernbert": {"local_attention": 8},
    }
    sizes = {"preset": "tiny", "hidden_size": 32, "num_heads": 4, "max_positions": 40}
    config = resolve_model(
        ModelConfig(architecture=architecture, **(sizes | own.get(architecture, {}) | changes)),
        vocab_size=150,
        special_ids=SPECIAL_IDS,
        sequence_length=24,
    )
    rng = np.random.default_rng(5)
    params = flatten(init_params(ARCHITECTURES[architecture].param_table(config), 0))
    return config, {
        name: np.asarray(value) + rng.normal(scale=0.1, size=value.shape).astype(np.float32)
        for name, value in params.items()
    }


def write_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def export(folder: Path, architecture: ArchitectureName = "roberta", **changes: Any) -> Path:
    """Export a small model; the changes are of its ``[model]`` table."""
    return export_with(folder, *model(architecture, **changes))


def export_with(folder: Path, config: EncoderConfig, params: dict[str, NDArray[Any]], **values: Any) -> Path:
    arguments: dict[str, Any] = {
        "special_ids": SPECIAL_IDS,
        "write_tokenizer": write_tokenizer,
        "provenance": {"step": 12, "evaluation": {"loss": 2.5}, "identity": {"data": {"manifest": "ab|cd"}}},
    }
    return export_model(params, config, folder, **(arguments | values))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_export_read_back_is_what_was_written(tmp_path: Path, architecture: ArchitectureName) -> None:
    config, params = model(architecture)
    found_config, found = load_weights(export(tmp_path / "out", architecture))
    assert found_config == config
    assert found.keys() == params.keys()
    for name, value in params.items():
        np.testing.assert_array_equal(found[name], value)


def test_provenance_holds_the_digest_of_every_file_that_is_read(tmp_path: Path) -> None:
    folder = export(tmp_path / "deep" / "out")
    document = json.loads((folder / "outlast.json").read_text())
    assert document["provenance"]["step"] == 12
    assert document["special_ids"] == SPECIAL_IDS
    unsealed = ("outlast.json", "README.md")
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in unsealed}
    assert files.keys() == {"config.json", "model.safetensors", "tokenizer.json"}
    assert document["files"] == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1, "who may read one may read all"


def test_the_model_card_says_what_is_known_and_what_is_not(tmp_path: Path) -> None:
    card = (export(tmp_path / "out") / "README.md").read_text()
    for part in (
        "# out",
        "| step | 12 |",
        "| evaluation.loss | 2.5 |",
        "| identity.data.manifest | ab\\|cd |",
    ):
        assert part in card
    assert "Not stated" in card
    assert "license:" not in card


def test_an_empty_folder_is_filled_and_nothing_else_is_touched(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert (export(tmp_path / "empty") / "config.json").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("kept")
    (tmp_path / "file").write_text("kept")
    for name in ("full", "file", "empty"):
        with pytest.raises(ConfigError, match="The place for the model is taken"):
            export(tmp_path / name)
    assert (tmp_path / "full" / "precious").read_text() == "kept"
    assert (tmp_path / "file").read_text() == "kept"


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        assert folder.parent == tmp_path
        raise OSError(28, "No space left on device")

    with pytest.raises(OutlastError, match="Cannot write the model: no space left"):
        export_with(tmp_path / "out", *model("roberta"), write_tokenizer=fail)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_says_so_whatever_is_written(tiny_disk: Path) -> None:
    (tiny_disk / "ballast").write_bytes(b"x" * 1_000_000)
    with pytest.raises(StorageError, match=r"no space left[\s\S]*out[\s\S]*free space"):
        export(tiny_disk / "out")
    assert [path.name for path in tiny_disk.iterdir()] == ["ballast"]


def test_what_killed_exports_left_is_taken_away(tmp_path: Path) -> None:
    """Those of the same folder alone."""
    others = [tmp_path / f".outer.tmp-{'0' * 32}", tmp_path / ".out.tmp-notes"]
    for path in [tmp_path / f".out.tmp-{uuid.uuid4().hex}", *others]:
        path.mkdir()
        (path / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".out.outlast-lock").touch()
    export(tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "out", *others])


def test_two_exports_to_one_place_do_not_hurt_each_other(tmp_path: Path) -> None:
    def write_both(folder: Path) -> None:
        with pytest.raises(OutlastError, match="Another process is writing this model"):
            export(tmp_path / "out")
        write_tokenizer(folder)

    export_with(tmp_path / "out", *model("roberta"), write_tokenizer=write_both)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    load_weights(tmp_path / "out")


def test_a_folder_without_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="has no name"):
        export(Path(""))
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_pads_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pads with 1, the model was trained with 7"):
        export_with(tmp_path / "out", *model("roberta"), special_ids=SPECIAL_IDS | {"pad": 1})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("head/bias", np.full(150, np.nan, np.float32), "not finite: head/bias"),
        ("head/bias", np.zeros(3, np.float32), r"head/bias has shape \(3,\)"),
        ("surplus", np.zeros(3, np.float32), r"unknown \['surplus'\]"),
    ],
)
def test_parameters_that_cannot_be_right_are_refused(
    tmp_path: Path, name: str, value: Any, message: str
) -> None:
    config, params = model("roberta")
    with pytest.raises(OutlastError, match=message):
        export_with(tmp_path / "out", config, params | {name: value})
    assert not (tmp_path / "out").exists()


def padded_batch() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Rows without padding, with padding on the right, on the left and on both sides."""
    ids = np.random.default_rng(0).integers(8, 150, (4, 24)).astype(np.int32)
    mask = np.ones_like(ids)
    mask[1, 15:] = mask[2, :9] = mask[3, :4] = mask[3, 20:] = 0
    ids[mask == 0] = SPECIAL_IDS["pad"]
    return ids, mask


@pytest.mark.parametrize(
    ("changes", "says", "does_not_say"),
    [
        (OWN_BLOCKS, "**transformers evaluates without them**", "module.train()"),
        ({"evaluation_random_blocks": "same"}, "module.train()", "alike"),
        ({}, "without the random ones, by Outlast and by transformers alike", "**transformers"),
        (
            {"random_blocks": "uniform"},
            "In training, transformers draws other random blocks",
            "**transformers",
        ),
        ({"num_random_blocks": 0}, "transformers fails on such texts", "alike"),
    ],
)
def test_the_card_of_a_bigbird_says_what_transformers_computes_otherwise(
    tmp_path: Path, changes: dict[str, Any], says: str, does_not_say: str
) -> None:
    card = (export(tmp_path / "out", "bigbird", **changes) / "README.md").read_text()
    assert says in card
    assert does_not_say not in card
    assert 'set_attention_type("block_sparse")' in card


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [("roberta", {}), ("bigbird", {"attention": "full"}), ("bigbird", {"block_size": 4})],
)
def test_the_card_of_full_attention_has_no_section_on_it(
    tmp_path: Path, architecture: ArchitectureName, changes: dict[str, Any]
) -> None:
    card = (export(tmp_path / "out", architecture, **changes) / "README.md").read_text()
    assert "Attention" not in card


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
def test_what_the_card_says_of_transformers_bigbird_is_so(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForMaskedLM

    folder = export(tmp_path / "out", "bigbird", evaluation_random_blocks="same")
    theirs: Any = AutoModelForMaskedLM.from_pretrained(folder).eval()
    ids = np.random.default_rng(0).integers(8, 150, (2, 30))
    ours = load_model(folder)(ids)["logits"]

    def distance() -> float:
        with torch.no_grad():
            found = theirs(torch.tensor(ids), attention_mask=torch.ones(ids.shape)).logits
        return float(np.abs(found.numpy() - ours).max())

    def draw_random_blocks() -> None:
        for module in theirs.modules():
            if type(module).__name__ == "BigBirdBlockSparseAttention":
                module.train()

    assert distance() > 1e-2
    draw_random_blocks()
    assert distance() < 1e-5
    with torch.no_grad():
        theirs(torch.tensor(ids[:, :22]))
    assert distance() > 1e-2
    theirs.bert.set_attention_type("block_sparse")
    draw_random_blocks()
    assert distance() < 1e-5


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
def test_a_bigbird_by_default_is_transformers_at_1024_tokens_in_training_and_evaluation(
    tmp_path: Path,
) -> None:
    import torch
    from transformers import AutoModelForMaskedLM

    length = 1024
    plain = {"dropout": 0.0, "attention_dropout": 0.0, "max_positions": length, "block_size": 64}
    named = {"random_blocks": None, "evaluation_random_blocks": None}  # what a recipe leaves out
    config, params = model("bigbird", **plain, **named)
    folder = export_with(tmp_path / "out", config, params)
    theirs: Any = AutoModelForMaskedLM.from_pretrained(folder)
    ids = np.random.default_rng(0).integers(8, 150, (2, length)).astype(np.int32)
    mask = np.ones_like(ids)
    mask[1, 900:], ids[1, 900:] = 0, SPECIAL_IDS["pad"]
    ours, tree = ARCHITECTURES["bigbird"], unflatten({k: jnp.asarray(v) for k, v in params.items()})
    inputs = EncoderInputs(jnp.asarray(ids), jnp.asarray(mask))
    found: list[NDArray[Any]] = []
    for train in (False, True):
        keys = row_keys(0, "train", 0, jnp.arange(2)) if train else None
        hidden = ours.encode(tree, inputs, config=config, dropout_keys=keys)
        found.append(np.asarray(ours.predict_tokens(tree, hidden, config=config)))
        with torch.no_grad():
            given = [torch.tensor(array, dtype=torch.long) for array in (ids, mask)]
            expected = theirs.train(train)(given[0], attention_mask=given[1]).logits.numpy()
        np.testing.assert_allclose(found[-1][mask == 1], expected[mask == 1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(load_model(folder)(ids, mask)["logits"], found[0], rtol=0, atol=1e-5)
    assert np.abs(found[0] - found[1])[mask == 1].max() > 1e-2, "random blocks in training alone"


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_computes_the_same_logits_and_gradients(
    tmp_path: Path, architecture: ArchitectureName
) -> None:
    import torch
    from transformers import AutoModelForMaskedLM

    config, params = model(architecture)
    theirs: Any = AutoModelForMaskedLM.from_pretrained(export(tmp_path / "out", architecture)).eval()
    ids, mask = padded_batch()
    labels = np.where((mask == 1) & (np.arange(24) % 5 == 2)[None, :], ids, -100)
    tensors = [torch.tensor(array, dtype=torch.long) for array in (ids, mask, labels)]
    out = theirs(tensors[0], attention_mask=tensors[1], labels=tensors[2])
    out.loss.backward()

    inputs = EncoderInputs(jnp.asarray(ids), jnp.asarray(mask))
    ours = ARCHITECTURES[architecture]

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        logits = ours.predict_tokens(params, ours.encode(params, inputs, config=config), config=config)
        weights = jnp.asarray(labels != -100, jnp.float32)
        loss_sum, _ = cross_entropy(logits, jnp.asarray(np.maximum(labels, 0)), weights)
        return loss_sum / jnp.sum(weights), logits

    tree = unflatten({name: jnp.asarray(value) for name, value in params.items()})
    (value, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(tree)
    real = mask == 1
    np.testing.assert_allclose(np.asarray(logits)[real], out.logits.detach().numpy()[real], rtol=0, atol=1e-5)
    np.testing.assert_allclose(value, out.loss.item(), rtol=0, atol=1e-5)

    flat = {name: np.asarray(gradient) for name, gradient in flatten(gradients).items()}
    found = to_huggingface(ours.param_table(config), flat)
    expected = {
        name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.grad is not None
    }
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
