"""Files ``tokenizer.json`` for tests, sound or with something changed, and their import."""

from pathlib import Path
from typing import Any

from outlast.storage import LocalStore
from outlast.tokenizer.importing import import_tokenizer

SPECIAL = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")


def document(**changes: Any) -> dict[str, Any]:
    """A sound tokenizer.json with something changed."""
    added = [
        {"id": number, "content": name, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for number, name in enumerate(SPECIAL)
    ]
    vocab = [*([name, 0.0] for name in SPECIAL), ["a", -1.0], ["b", -2.0]]
    model = {"type": "Unigram", "unk_id": 1, "vocab": vocab, "byte_fallback": False}
    parts = dict.fromkeys(
        ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    )
    return {"version": "1.0", "added_tokens": added, "model": model, **parts, **changes}


def bring(folder: Path, content: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(content)
    import_tokenizer(folder / "tokenizer.json", LocalStore(folder), "out")


def dividing(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
