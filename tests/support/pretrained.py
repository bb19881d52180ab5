"""Folders as ``save_pretrained`` writes them: the parity checkpoints with a tokenizer of as many ids beside
them.

The checkpoints came without one. Its pieces are the first of the vocabularies that lie there, so that text
gives real ids.
"""

import json
import shutil
from pathlib import Path

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
