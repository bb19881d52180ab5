"""Models and tokenizers that transformers writes, imported: the same hidden states, logits, loss, gradients
and ids.

In: small models of random weights with noise on every parameter, one of twelve layers, saved by
``save_pretrained``; rows without padding, with padding on the right and on the left.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from numpy.typing import NDArray

from outlast.huggingface.names import to_huggingface
from outlast.huggingface.pretrained import read_pretrained
from outlast.models.architectures import ARCHITECTURES
from outlast.models.bert import EncoderInputs
from outlast.models.next_sentence import predict_next_sentence
from outlast.models.params import Params, flatten, unflatten
from outlast.objectives.mlm import cross_entropy
from outlast.objectives.next_sentence import next_sentence_term
from outlast.tokenizer.encode import make_tokenizer
from outlast.tokenizer.importing import read_foreign
from support.pretrained import write_byte_level, write_wordpiece

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("default")]

VOCAB_SIZE, LENGTH, PAD = 150, 24, 0
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "pad_token_id": PAD,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
REACHED = ("[CLS]", "<s>", "<unk>")
"""Names of special tokens, which transformers finds in text and we do not, by design."""

MODERNBERT = {
    "local_attention": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
OUTPUT_TOLERANCE = {3: 1e-5, 12: 1e-4}
CASES = [
    ("BertForPreTraining", "BertConfig", {}),
    ("BertForPreTraining", "BertConfig", {"num_hidden_layers": 12}),
    ("BertForMaskedLM", "BertConfig", {}),
    ("RobertaForMaskedLM", "RobertaConfig", {"type_vocab_size": 1}),
    ("RobertaForMaskedLM", "RobertaConfig", {"type_vocab_size": 1, "hidden_act": "gelu_new"}),
    ("RobertaForMaskedLM", "RobertaConfig", {"type_vocab_size": 2}),
    ("BigBirdForPreTraining", "BigBirdConfig", {"block_size": 2, "num_random_blocks": 1}),
    ("BigBirdForMaskedLM", "BigBirdConfig", {"attention_type": "original_full"}),
    ("ModernBertForMaskedLM", "ModernBertConfig", MODERNBERT),
]


def save(folder: Path, class_name: str, config_name: str, own: dict[str, Any]) -> Any:
    """Write a model as transformers does; return it, in evaluation mode."""
    import torch
    import transformers

    torch.manual_seed(0)
    kind: Any = getattr(transformers, class_name)
    model = kind(getattr(transformers, config_name)(**{**SIZES, **own})).eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


def make_batch() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(0)
    ids = rng.integers(5, VOCAB_SIZE, (4, LENGTH))
    mask = np.ones_like(ids)
    mask[1, 15:] = mask[2, :9] = mask[3, 20:] = 0
    ids[mask == 0] = PAD
    labels = np.where((mask == 1) & (np.arange(LENGTH) % 5 == 2)[None, :], ids, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize(("class_name", "config_name", "own"), CASES)
def test_an_imported_model_computes_the_same(
    tmp_path: Path, class_name: str, config_name: str, own: dict[str, Any]
) -> None:
    import torch

    theirs = save(tmp_path, class_name, config_name, own)
    batch = make_batch()
    if own.get("type_vocab_size") == 2:
        batch["token_type_ids"] = (np.arange(LENGTH) > 11) * np.ones_like(batch["input_ids"])
    pairs = class_name.endswith("PreTraining")
    further = {"next_sentence_label": np.array([0, 1, 1, 0])} if pairs else {}
    tensors = {name: torch.tensor(value) for name, value in {**batch, **further}.items()}
    out = theirs(**tensors, output_hidden_states=True)
    out.loss.backward()

    imported = read_pretrained(tmp_path)
    # The library's BigBird has a pooler under every head; without the next sentence it is not trained.
    assert not [name for name in imported.left_out if not name.startswith("bert.pooler.")]
    assert imported.config.next_sentence == pairs
    config, ours = imported.config, ARCHITECTURES[imported.config.architecture]
    given = {name: jnp.asarray(value, jnp.int32) for name, value in batch.items() if name != "labels"}
    inputs = EncoderInputs(**given)
    labels = jnp.asarray(batch["labels"], jnp.int32)
    label = {
        "input_ids": inputs.input_ids,
        **{name: jnp.asarray(further[name], jnp.int32) for name in further},
    }

    def loss(params: Params) -> tuple[Array, tuple[Array, Array]]:
        hidden = ours.encode(params, inputs, config=config)
        logits = ours.predict_tokens(params, hidden, config=config)
        weights = (labels != -100).astype(jnp.float32)
        value = cross_entropy(logits, jnp.maximum(labels, 0), weights)[0] / jnp.sum(weights)
        if pairs:
            term = next_sentence_term(params, hidden, label)
            value = value + term.loss_sum / term.weight_sum
        return value, (logits, hidden)

    params = unflatten({name: jnp.asarray(value) for name, value in imported.params.items()})
    (value, (logits, hidden)), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    real, tolerance = batch["attention_mask"] == 1, OUTPUT_TOLERANCE[config.num_layers]

    def close(found: Any, expected: Any, where: Any = ...) -> None:
        np.testing.assert_allclose(
            np.asarray(found)[where], expected.detach().numpy()[where], rtol=0, atol=tolerance
        )

    states = jax.jit(ours.encode_all, static_argnames="config")(params, inputs, config=config)
    for layer, expected in enumerate(out.hidden_states):
        close(states[layer], expected, real)
    close(logits, out.prediction_logits if pairs else out.logits, real)
    if pairs:
        close(predict_next_sentence(params, hidden[:, 0]), out.seq_relationship_logits)
    np.testing.assert_allclose(value, out.loss.item(), rtol=0, atol=tolerance)

    flat = {name: np.asarray(gradient) for name, gradient in flatten(gradients).items()}
    found = to_huggingface(ours.param_table(config), flat)
    given = {name: p.grad.numpy() for name, p in theirs.named_parameters() if p.grad is not None}
    assert found.keys() == given.keys()
    for name, gradient in given.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_a_modernbert_classifier_gives_its_encoder(tmp_path: Path, task: str) -> None:
    save(tmp_path, f"ModernBertFor{task}", "ModernBertConfig", MODERNBERT)
    imported = read_pretrained(tmp_path)
    assert imported.missing == ("head",)
    transform = ("head.dense.weight", "head.norm.weight")
    assert imported.left_out == ("classifier.bias", "classifier.weight", *transform)


@pytest.mark.parametrize(
    ("write", "reference", "class_name"),
    [
        (write_wordpiece, "wordpiece_uncased_en_zh_6k", "BertTokenizer"),
        (write_byte_level, "bytebpe_en_ja_5k", "RobertaTokenizer"),
    ],
)
def test_an_imported_tokenizer_gives_the_same_ids(
    test_data: Path, tmp_path: Path, write: Callable[[Path, Path], None], reference: str, class_name: str
) -> None:
    """Before and after ``save_pretrained`` has written tokenizer.json."""
    import transformers

    write(test_data, tmp_path)
    lines = json.loads((test_data / f"parity/tokenizers/{reference}.json").read_text())["lines"]
    texts = [line["text"] for line in lines if not any(mark in line["text"] for mark in REACHED)]
    theirs: Any = getattr(transformers, class_name).from_pretrained(tmp_path)
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    theirs.save_pretrained(tmp_path / "saved")
    for folder in (tmp_path, tmp_path / "saved"):
        manifest, files = read_foreign(folder)
        tokenizer = make_tokenizer(manifest, next(iter(files.values())))
        assert [list(ids) for ids in tokenizer.encode_batch(texts)] == expected
