"""From a Hugging Face checkpoint over further training and back: ``import``, ``prepare``, ``train
--initialize-from``,
``evaluate``, ``export``.
"""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from outlast.storage import LocalStore
from outlast.training.ranking import read_evaluations
from support.command import RECIPE
from support.command_line import Run, settings
from support.pretrained import pretrained_folder

FOLDERS = {
    "bert_pretraining": "BertForPreTraining",
    "roberta_mlm": "RobertaForMaskedLM",
    "bigbird_pretraining": "BigBirdForPreTraining",
    "modernbert_mlm": "ModernBertForMaskedLM",
}
LINES = [
    f"Garden {number} of a temple. It was laid out {number} years ago. Nobody knows by whom.\n"
    for number in range(24)
]


@pytest.mark.parametrize("model", FOLDERS)
def test_import_and_export_give_the_same_tensors(
    test_data: Path, tmp_path: Path, outlast: Run, model: str
) -> None:
    folder = pretrained_folder(test_data, model, tmp_path / "theirs")
    imported = outlast("import", folder, tmp_path / "imported")
    assert imported.code == 0, imported
    assert imported.out.strip() == str(tmp_path / "imported")
    assert outlast("export", tmp_path / "imported", tmp_path / "model").code == 0
    theirs, ours = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "model"))
    assert theirs.keys() == ours.keys()
    assert [name for name in theirs if theirs[name].tobytes() != ours[name].tobytes()] == []
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    original = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [FOLDERS[model]]
    assert {name: config[name] for name in original if name in config and not name.endswith("token_id")} == {
        name: value for name, value in original.items() if name in config and not name.endswith("token_id")
    }
    table = tomllib.loads((tmp_path / "imported" / "recipe.toml").read_text())
    assert table["model"]["hidden_size"] == original["hidden_size"]
    assert table["tokenizer"]["path"] == f"{tmp_path}/imported/tokenizer"


def test_a_roberta_with_two_token_types_is_trained_on_pairs(
    test_data: Path, tmp_path: Path, outlast: Run
) -> None:
    folder = pretrained_folder(test_data, "roberta_mlm", tmp_path / "theirs")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "type_vocab_size": 2}))
    tensors = load_file(folder / "model.safetensors")
    types = "roberta.embeddings.token_type_embeddings.weight"
    tensors[types] = np.concatenate([tensors[types], -tensors[types]])
    save_file(tensors, folder / "model.safetensors")
    imported = tmp_path / "imported"
    assert outlast("import", folder, imported).code == 0
    keys = pairs_of(imported, tmp_path, outlast)
    done = outlast(
        "train", RECIPE, "--run-dir", tmp_path / "run", "--initialize-from", imported, *settings(*keys)
    )
    assert done.code == 0, done
    assert outlast("export", tmp_path / "run", tmp_path / "model").code == 0
    assert json.loads((tmp_path / "model" / "config.json").read_text())["type_vocab_size"] == 2
    np.testing.assert_allclose(
        load_file(tmp_path / "model" / "model.safetensors")[types], tensors[types], atol=1e-6
    )


def pairs_of(imported: Path, tmp_path: Path, outlast: Run) -> list[str]:
    """Prepare pairs with an imported tokenizer; return the settings of a short run that starts from it."""
    corpus = tmp_path / "text"
    corpus.mkdir()
    (corpus / "a.txt").write_text("\n".join(LINES))
    tables = tomllib.loads((imported / "recipe.toml").read_text())
    keys = [
        *(f"model.{name}={json.dumps(value)}" for name, value in tables["model"].items()),
        f"tokenizer.path={tables['tokenizer']['path']}",
        f"corpus.path={corpus}",
        "corpus.documents=blank_line",
        "corpus.sentences=rules",
        "corpus.validation_fraction=0.2",
        "shards.num_shards=1",
        "shards.num_processes=1",
        "stream.packing=pairs",
        "stream.sequence_length=32",
        "stream.global_batch_size=4",
        "training.total_steps=1",
        f"training.compilation_cache_dir={tmp_path}/compiled",
        "optimizer.learning_rate=1e-12",
    ]
    out = outlast("prepare", RECIPE, "--out", tmp_path / "data", *settings(*keys))
    assert out.code == 0, out
    return [*keys, f"stream.manifest={tmp_path}/data/manifest.json"]


def evaluation(outlast: Run, run_dir: Path, *options: str) -> dict[str, float]:
    done = outlast("evaluate", run_dir, "--json", *options)
    assert done.code == 0, done
    return json.loads(done.out)


def test_a_run_starts_from_an_import_and_both_losses_are_its(
    test_data: Path, tmp_path: Path, outlast: Run
) -> None:
    """A step with next to no learning rate leaves the evaluation as the import has it."""
    folder = pretrained_folder(test_data, "bert_pretraining", tmp_path / "theirs")
    imported = tmp_path / "imported"
    assert outlast("import", folder, imported).code == 0
    keys = pairs_of(imported, tmp_path, outlast)
    start = ("--initialize-from", imported)
    both = [*keys, "objective.next_sentence=true"]
    done = outlast("train", RECIPE, "--run-dir", tmp_path / "run", *start, *settings(*both))
    assert done.code == 0, done
    found = evaluation(outlast, tmp_path / "run")
    data = settings(*(key for key in keys if key.startswith("stream.")))
    expected = evaluation(outlast, imported, *data)
    terms = ("loss", "mlm_loss", "next_sentence_loss", "accuracy", "next_sentence_accuracy", "perplexity")
    for name in terms:
        assert found[name] == pytest.approx(expected[name], rel=1e-4), name
    assert found["loss"] == found["mlm_loss"] + found["next_sentence_loss"]
    assert found["num_predictions"] == expected["num_predictions"]
    (line,) = (tmp_path / "run" / "metrics").glob("*.jsonl")
    assert {"mlm_loss", "next_sentence_loss", "next_sentence_accuracy"} <= json.loads(line.read_text()).keys()
    (kept,) = read_evaluations(LocalStore(tmp_path / "run")).values()
    assert {"mlm_loss", "next_sentence_loss"} <= kept.keys()

    alone = outlast("train", RECIPE, "--run-dir", tmp_path / "alone", *start, *settings(*keys))
    assert "left out, for this run has none: pooler, next_sentence" in alone.err
    loss = evaluation(outlast, tmp_path / "alone")["loss"]
    assert loss == pytest.approx(expected["mlm_loss"], rel=1e-4)


def test_heads_that_are_missing_are_made_by_the_seed_and_named(
    test_data: Path, tmp_path: Path, outlast: Run
) -> None:
    folder = pretrained_folder(test_data, "bert_seqcls_3way", tmp_path / "theirs")
    imported = tmp_path / "imported"
    report = outlast("import", folder, imported)
    assert "there is no whole head in it" in report.err
    assert "(BertForSequenceClassification)" in report.err
    assert "kept: the encoder\n" in report.err
    assert "left out, for it has no place here: bert.pooler.dense.bias" in report.err
    assert "classifier.weight" in report.err
    assert "without a masked-LM head the import itself cannot be exported" in report.err
    refused = outlast("export", imported, tmp_path / "no model")
    refused.refused(2, "There is no masked-LM head to export", "--initialize-from IMPORT")
    keys = [*pairs_of(imported, tmp_path, outlast), "objective.next_sentence=true"]
    start = ("--initialize-from", imported)
    heads: list[NDArray[Any]] = []
    for name, seed in (("first", 0), ("second", 0), ("third", 1)):
        seeded = settings(*keys, f"training.seed={seed}")
        done = outlast("train", RECIPE, "--run-dir", tmp_path / name, *start, *seeded)
        assert done.code == 0, done
        assert "it has no head and no pooler and no next_sentence: initialised by training.seed" in done.err
        outlast("export", tmp_path / name, tmp_path / f"{name}-model")
        heads.append(
            load_file(tmp_path / f"{name}-model" / "model.safetensors")["cls.seq_relationship.weight"]
        )
    np.testing.assert_allclose(heads[0], heads[1], atol=1e-6)
    assert np.abs(heads[0] - heads[2]).max() > 1e-3


def test_what_cannot_be_imported_is_refused_with_the_way_out(
    test_data: Path, tmp_path: Path, outlast: Run
) -> None:
    folder = pretrained_folder(test_data, "bert_pretraining", tmp_path / "theirs")
    out = tmp_path / "out"
    pickled = shutil.copytree(folder, tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    outlast("import", pickled, out).refused(1, "reading a pickle runs whatever code", "save_pretrained")
    (tmp_path / "bare").mkdir()
    outlast("import", tmp_path / "bare", out).refused(1, "There is no model here")
    (folder / "vocab.txt").rename(tmp_path / "vocab.txt")
    outlast("import", folder, out).refused(1, "There is no tokenizer here", "--tokenizer PATH")
    longer = tmp_path / "longer-vocab.txt"
    longer.write_text((tmp_path / "vocab.txt").read_text() + "more\n")
    wrong = outlast("import", folder, out, "--tokenizer", longer)
    wrong.refused(2, "The tokenizer has 524 ids, the model rows for 523")
    assert not out.exists() or not any(out.iterdir())
    done = outlast("import", folder, out, "--tokenizer", tmp_path / "vocab.txt")
    assert done.code == 0, done
    outlast("import", folder, out, "--tokenizer", tmp_path / "vocab.txt").refused(2, "is taken")
    outlast("train", RECIPE, "--run-dir", tmp_path / "run", "--initialize-from", folder).refused(2)


def test_the_same_line_goes_on_with_an_import_that_was_killed(
    test_data: Path, tmp_path: Path, outlast: Run
) -> None:
    """All but the commit is there, and half of the recipe."""
    folder, out = pretrained_folder(test_data, "roberta_mlm", tmp_path / "theirs"), tmp_path / "out"
    assert outlast("import", folder, out).code == 0
    for commit in (out / "commits").iterdir():
        commit.unlink()
    whole = (out / "recipe.toml").read_bytes()
    (out / "recipe.toml").write_bytes(whole[:50])
    assert outlast("import", folder, out).code == 0
    assert (out / "recipe.toml").read_bytes() == whole
    assert outlast("export", out, tmp_path / "model").code == 0


def test_a_recipe_of_another_shape_is_refused(
    test_data: Path, tmp_path: Path, outlast: Run, data: Path
) -> None:
    imported = tmp_path / "imported"
    outlast("import", pretrained_folder(test_data, "roberta_mlm", tmp_path / "theirs"), imported)
    line = ("train", RECIPE, "--run-dir", tmp_path / "run", "--initialize-from", imported)
    there = ("--set", f"stream.manifest={data}/manifest.json")
    outlast(*line, *there).refused(2, "belong to the pieces of the tokenizer", "tokenizer.path=")
    refused = outlast(*line, *there, "--other-tokenizer")
    refused.refused(2, "embeddings/word is float32", "recipe.toml", "tokenizer.path=")
