"""Loaded models: outputs by name, any shape, and masks answered in any language."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import outlast.inference.text as inference
from outlast.errors import ConfigError, OutlastError, TokenizerError
from outlast.huggingface.export import export_model
from outlast.huggingface.load import load_weights
from outlast.inference.text import Model, fill_mask
from outlast.inference.text import load_text_model as load_model
from outlast.models.bert import EncoderInputs, encode, param_table, predict_tokens
from outlast.models.config import EncoderConfig, ModelConfig, resolve_model
from outlast.models.next_sentence import predict_next_sentence
from outlast.models.params import Params, flatten, init_params, unflatten
from support.tokenizer_files import dividing

PIECES = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "京都の寺は美しい。",
    "東京は日本の首都である。",
    "def f(x):\n    return x",
]


def byte_level_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["x", *PIECES.values()], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    ends = [(piece, tokenizer.token_to_id(piece)) for piece in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model with a byte-level tokenizer, exported."""
    return save_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def bigbird(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A BigBird that attends to more than 28 tokens (7 blocks) sparsely."""
    own: dict[str, Any] = {"architecture": "bigbird", "block_size": 4, "num_random_blocks": 1}
    return load_model(save_model(tmp_path_factory.mktemp("models") / "bigbird", **own))


def save_model(folder: Path, *, next_sentence: bool = False, **values: Any) -> Path:
    tokenizer = byte_level_tokenizer()
    vocabulary = tokenizer.get_vocab()
    special_ids = {role: vocabulary[piece] for role, piece in PIECES.items()}
    config = resolve_model(
        ModelConfig(preset="tiny", hidden_size=32, num_heads=2, max_positions=70, **values),
        vocab_size=tokenizer.get_vocab_size(),
        special_ids=special_ids,
        sequence_length=64,
        next_sentence=next_sentence,
    )
    rng = np.random.default_rng(0)
    params = {
        name: np.asarray(value) + rng.normal(scale=0.1, size=value.shape).astype(np.float32)
        for name, value in flatten(init_params(param_table(config), 0)).items()
    }

    def write_tokenizer(folder: Path) -> None:
        tokenizer.save(str(folder / "tokenizer.json"))
        settings = {f"{role}_token": piece for role, piece in PIECES.items()}
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 70}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))

    return export_model(
        params,
        config,
        folder,
        special_ids=special_ids,
        write_tokenizer=write_tokenizer,
        provenance={},
    )


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder)


def test_outputs_are_those_of_the_model_itself(folder: Path, model: Model) -> None:
    config, params = read_params(folder)
    ids = np.random.default_rng(1).integers(6, config.vocab_size, (3, 21))
    mask = np.ones_like(ids)
    mask[1, 12:], ids[1, 12:] = 0, config.pad_id
    inputs = EncoderInputs(jnp.asarray(ids, jnp.int32), jnp.asarray(mask, jnp.int32))
    hidden = encode(params, inputs, config=config)
    out = model(ids, mask, np.zeros_like(ids))
    assert out.keys() == {"logits", "last_hidden_state"}
    np.testing.assert_allclose(out["last_hidden_state"], hidden, atol=1e-5)
    np.testing.assert_allclose(out["logits"], predict_tokens(params, hidden, config=config), atol=1e-5)


@pytest.fixture(scope="module")
def two_heads(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A BERT with a next-sentence head."""
    folder = tmp_path_factory.mktemp("models") / "bert"
    return load_model(save_model(folder, next_sentence=True, architecture="bert"))


def pairs(model: Model) -> tuple[Any, Any, Any]:
    ids = np.random.default_rng(1).integers(6, model.config.vocab_size, (3, 21))
    types = np.repeat([[0, 1]], [9, 12], axis=1).repeat(3, axis=0)
    return ids, np.ones_like(ids), types


def test_both_heads_answer_under_transformers_names(two_heads: Model) -> None:
    _, params = read_params(two_heads.folder)
    out = two_heads(*pairs(two_heads))
    assert out.keys() == {"prediction_logits", "seq_relationship_logits", "last_hidden_state"}
    expected = predict_next_sentence(params, jnp.asarray(out["last_hidden_state"][:, 0]))
    np.testing.assert_allclose(out["seq_relationship_logits"], expected, atol=1e-5)


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
def test_transformers_has_the_same_logits_of_both_heads(two_heads: Model) -> None:
    import torch
    from transformers import AutoModelForPreTraining

    theirs: Any = AutoModelForPreTraining.from_pretrained(two_heads.folder).eval()
    ids, mask, types = pairs(two_heads)
    ours = two_heads(ids, mask, types)
    with torch.no_grad():
        found = theirs(
            torch.tensor(ids), attention_mask=torch.tensor(mask), token_type_ids=torch.tensor(types)
        )
    for name in ("prediction_logits", "seq_relationship_logits"):
        np.testing.assert_allclose(ours[name], found[name].numpy(), atol=1e-5)


def read_params(folder: Path) -> tuple[EncoderConfig, Params]:
    config, flat = load_weights(folder)
    return config, unflatten({name: jnp.asarray(value) for name, value in flat.items()})


@pytest.mark.parametrize("length", [26, 29, 45, 70])
def test_a_bigbird_attends_as_at_the_length_itself(bigbird: Model, length: int) -> None:
    """Neither the number of blocks nor the choice of full attention changes by rounding up."""
    config, params = read_params(bigbird.folder)
    ids = np.random.default_rng(length).integers(6, config.vocab_size, (1, length))
    expected = encode(params, EncoderInputs(jnp.asarray(ids, jnp.int32)), config=config)
    np.testing.assert_allclose(bigbird.encode(ids), expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (1, 32), (2, 33), (5, 70)])
def test_any_shape_up_to_the_longest(model: Model, shape: tuple[int, int]) -> None:
    out = model(np.full(shape, 9, np.int64))
    assert out["logits"].shape == (*shape, model.config.vocab_size)
    assert out["last_hidden_state"].shape == (*shape, 32)
    assert all(np.isfinite(array).all() for array in out.values())


def test_varied_lengths_compile_few_programs(model: Model) -> None:
    compiled: Any = inference._encode  # pyright: ignore[reportPrivateUsage]
    before = compiled._cache_size()
    for length in range(1, 71):
        model.encode(np.full((1, length), 9))
    # 32, 64 and the longest, 70.
    assert compiled._cache_size() - before <= 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones(4, np.int32),), r"input_ids is int32 of shape \(4,\)"),
        ((np.ones((1, 4)),), "input_ids is float64"),
        ((np.ones((1, 71), np.int32),), r"at least one row, of 1 to 70 tokens"),
        ((np.ones((0, 4), np.int32),), "at least one row"),
        ((np.full((1, 4), 300, np.int32),), "holds values from 300 to 300"),
        ((np.full((1, 4), -1, np.int32),), "holds values from -1"),
        (
            (np.ones((1, 4), np.int32), np.ones((1, 5), np.int32)),
            r"attention_mask is int32 of shape \(1, 5\)",
        ),
        (
            (np.ones((1, 4), np.int32), None, np.ones((1, 4), np.int32)),
            "token_type_ids holds values from 1 to 1",
        ),
    ],
)
def test_arrays_that_cannot_be_right_are_refused(model: Model, arguments: Any, message: str) -> None:
    with pytest.raises(OutlastError, match=message):
        model(*arguments)


def test_answers_are_the_softmax_at_the_mask(folder: Path, model: Model) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = np.array([tokenizer.encode("The quick<mask> fox").ids])
    logits = model(ids)["logits"][0, ids[0].tolist().index(tokenizer.token_to_id("<mask>"))].astype(
        np.float64
    )
    shares = np.exp(logits) / np.exp(logits).sum()
    [[answers]] = fill_mask(model, ["The quick<mask> fox"], top=3)
    assert [answer["token"] for answer in answers] == np.argsort(-shares)[:3].tolist()
    np.testing.assert_allclose([answer["score"] for answer in answers], np.sort(shares)[::-1][:3], rtol=1e-5)


def test_an_answer_stands_in_the_text_and_the_rest_is_kept(model: Model) -> None:
    for text in ("def f(x):\n    return<mask>", "京都の<mask>は美しい。"):
        [[answers]] = fill_mask(model, [text])
        assert len(answers) == 5
        for answer in answers:
            before, after = text.split("<mask>")
            # A piece may be a part of a character, which decodes to a replacement character.
            assert answer["sequence"].startswith(before)
            assert answer["sequence"].endswith(after)
            assert answer["token_str"] in answer["sequence"]
            json.dumps(answer)


def test_the_mask_has_the_same_spelling_in_every_language(model: Model) -> None:
    assert fill_mask(model, ["東京は[MASK]の首都"]) == fill_mask(model, ["東京は<mask>の首都"])


def test_several_masks_and_several_texts(folder: Path) -> None:
    texts = ["a <mask>", "京都の<mask>は<mask>。", *["The <mask> fox jumps over the lazy dog."] * 17]
    answers = fill_mask(folder, texts, top=2)
    assert [len(masks) for masks in answers] == [1, 2, *[1] * 17]
    assert answers[1][0][0]["sequence"].count("<mask>") == 1
    alone = fill_mask(folder, texts[1:2], top=2)
    for batched, single in zip(answers[1], alone[0], strict=True):
        assert [answer["token"] for answer in batched] == [answer["token"] for answer in single]
        np.testing.assert_allclose(
            [answer["score"] for answer in batched], [answer["score"] for answer in single], rtol=1e-5
        )
    assert answers[2] == answers[3]


def test_a_bigbirds_answer_does_not_depend_on_the_other_texts(bigbird: Model) -> None:
    # With the tokens at both ends: 3 and 28 tokens of full attention; 8, 10, 8 and 17 blocks.
    texts = ["x" * extra + "<mask>" for extra in (0, 29, 37, 25, 28, 65)]
    together = fill_mask(bigbird, texts, top=3)
    for text, [found] in zip(texts, together, strict=True):
        [[alone]] = fill_mask(bigbird, [text], top=3)
        assert [answer["sequence"] for answer in found] == [answer["sequence"] for answer in alone]
        np.testing.assert_allclose(
            [answer["score"] for answer in found], [answer["score"] for answer in alone], rtol=1e-5
        )


@pytest.mark.parametrize(
    ("text", "message"), [("no mask here", "no mask in the text"), ("<mask>" * 80, "The text has 82 tokens")]
)
def test_texts_that_cannot_be_answered_are_refused(model: Model, text: str, message: str) -> None:
    with pytest.raises(OutlastError, match=message):
        fill_mask(model, [text])


def test_the_number_of_answers_is_checked(model: Model) -> None:
    for top in (0, 10_000):
        with pytest.raises(ConfigError, match=f"Cannot give {top} answers"):
            fill_mask(model, ["<mask>"], top=top)


def test_a_device_that_is_not_there_is_told(folder: Path) -> None:
    code = (
        "import sys, outlast\ntry:\n    outlast.load_model(sys.argv[1])\n"
        "except outlast.ConfigError as error:\n    print(error)\n"
    )
    line = [sys.executable, "-c", code, str(folder)]
    environment = {**os.environ, "JAX_PLATFORMS": "cuda"}
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment, check=True)
    assert "jax finds no device of the kind 'cuda'" in done.stdout


def copy_of(folder: Path, target: Path) -> Path:
    """A copy that may be changed: without the digests of what was exported."""
    import shutil

    shutil.copytree(folder, target)
    (target / "outlast.json").unlink()
    return target


def test_a_folder_without_a_usable_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = copy_of(folder, tmp_path / "copy")
    (copy / "tokenizer_config.json").write_text('{"mask_token": {"content": "<other>"}}')
    with pytest.raises(OutlastError, match="no mask token: '<other>'"):
        fill_mask(copy, ["<mask>"])
    (copy / "tokenizer.json").write_text("{}")
    with pytest.raises(OutlastError, match="cannot read the file"):
        fill_mask(copy, ["<mask>"])
    (copy / "tokenizer.json").unlink()
    with pytest.raises(OutlastError, match="no tokenizer beside the model"):
        fill_mask(copy, ["<mask>"])


def test_a_tokenizer_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = copy_of(folder, tmp_path / "copy")
    tokenizer = Tokenizer.from_file(str(copy / "tokenizer.json"))
    tokenizer.add_tokens(["surplus"])
    tokenizer.save(str(copy / "tokenizer.json"))
    with pytest.raises(OutlastError, match="301 pieces, the model 300"):
        fill_mask(copy, ["<mask>"])


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
def test_transformers_gives_the_same_answers(folder: Path, model: Model) -> None:
    from transformers import pipeline

    theirs: Any = pipeline("fill-mask", model=str(folder), top_k=5, device="cpu")
    for text in ("The quick<mask> fox", "京都の<mask>は美しい。"):
        [[ours]] = fill_mask(model, [text])
        for answer, expected in zip(ours, theirs(text), strict=True):
            assert answer["token"] == expected["token"]
            np.testing.assert_allclose(answer["score"], expected["score"], atol=1e-5)
            assert answer["token_str"] == expected["token_str"]


@pytest.mark.parametrize("place", ["pre_tokenizer", "decoder"])
def test_a_panic_of_the_tokenizer_is_an_error(folder: Path, tmp_path: Path, place: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "outlast.json").unlink()  # its digests
    data = json.loads((copy / "tokenizer.json").read_text())
    if place == "pre_tokenizer":
        data[place] = dividing(r"(\p{Greek}+)+$")
    else:
        erase = {"type": "Replace", "pattern": {"Regex": r"([a-z]+)+$"}, "content": ""}
        data[place] = {"type": "Sequence", "decoders": [{"type": "Fuse"}, erase]}
    (copy / "tokenizer.json").write_text(json.dumps(data))
    text = ("α" if place == "pre_tokenizer" else "o") * 40 + "! <mask>"
    with pytest.raises(TokenizerError, match="retry-limit") as caught:
        fill_mask(copy, [text])
    assert str(copy / "tokenizer.json") in caught.value.message
