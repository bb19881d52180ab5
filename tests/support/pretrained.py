"""Folders as ``save_pretrained`` writes them: the parity checkpoints with a tokenizer of as many ids beside
them.

The checkpoints came without one. Its pieces are the first of the vocabularies that lie there, so that text
gives real ids.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from outlast.huggingface.image_processor import image_processor_config
from outlast.huggingface.images import ImageModel, export_image_model
from outlast.models.params import flatten, init_params
from outlast.models.resnet import param_table, state_table
from outlast.models.resnet_config import ResNetModelConfig, StemName, resolve_resnet

BERT_IDS, ROBERTA_IDS = 523, 600


def pretrained_folder(test_data: Path, model: str, out: Path) -> Path:
    """Copy the checkpoint of a parity folder and write its tokenizer; return the folder."""
    out.mkdir(parents=True)
    source = test_data / "parity" / model
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(source / name, out / name)
    config = json.loads((out / "config.json").read_text())
    if config["model_type"] == "roberta":
        write_byte_level(test_data, out, num_pieces=config["vocab_size"])
    else:
        write_wordpiece(test_data, out, num_pieces=config["vocab_size"])
    return out


def write_wordpiece(test_data: Path, out: Path, *, num_pieces: int | None = None) -> None:
    """Write ``vocab.txt``, as BERT's folders have it, and its settings."""
    pieces = (test_data / "parity/tokenizers/wordpiece_uncased_en_zh_6k-vocab.txt").read_text().split("\n")
    (out / "vocab.txt").write_text("\n".join(pieces[:num_pieces]) + "\n")
    (out / "tokenizer_config.json").write_text('{"do_lower_case": true, "tokenizer_class": "BertTokenizer"}')


def write_byte_level(test_data: Path, out: Path, *, num_pieces: int | None = None) -> None:
    """Write ``vocab.json`` and ``merges.txt``, as RoBERTa's folders have them."""
    prefix = test_data / "parity/tokenizers/bytebpe_en_ja_5k"
    vocabulary = json.loads(Path(f"{prefix}-vocab.json").read_text())
    kept = {piece: index for piece, index in vocabulary.items() if num_pieces is None or index < num_pieces}
    merges = Path(f"{prefix}-merges.txt").read_text().split("\n")
    possible = [
        line for line in merges if line.startswith("#version") or (line.replace(" ", "") in kept and line)
    ]
    (out / "vocab.json").write_text(json.dumps(kept, ensure_ascii=False))
    (out / "merges.txt").write_text("\n".join(possible) + "\n")


def small_resnet(num_classes: int = 3, stem: StemName = "large") -> ImageModel:
    """Return a ResNet of bottlenecks with random parameters and statistics."""
    model = ResNetModelConfig(preset="resnet50", stem=stem, depths=(1, 2), widths=(16, 32))
    config = resolve_resnet(model, num_classes=num_classes)
    params, state = (
        {name: np.asarray(array) + 0.5 for name, array in flatten(init_params(table, 5)).items()}
        for table in (param_table(config), state_table(config))
    )
    return ImageModel(config, params, state)


def resnet_folder(model: ImageModel, folder: Path, classes: Sequence[str] | None) -> Path:
    """Write a ResNet's folder, for pictures of 32 pixels; return it."""
    processor = image_processor_config(image_size=32, shorter_side=36, mean=(0.5,) * 3, deviation=(0.25,) * 3)
    return export_image_model(
        model.params,
        model.state,
        model.config,
        folder,
        classes=classes,
        preprocessor=processor,
        provenance={"step": 7},
    )
