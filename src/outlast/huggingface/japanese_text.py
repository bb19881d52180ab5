"""Text for a model whose tokenizer is transformers' ``BertJapaneseTokenizer``, which has no tokenizer.json.

In: the folder. Out: what ``tokenizers.Tokenizer`` would give: ids between [CLS] and [SEP], the names of
special tokens in a text read as the tokens themselves, and text of ids.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.tokenizer.encode import make_tokenizer
from outlast.tokenizer.importing import read_foreign


@dataclass(frozen=True)
class Encoded:
    """Ids, and 1 for those that no text stands for."""

    ids: list[int]
    special_tokens_mask: list[int]


class JapaneseText:
    """Encodes and decodes. Raises TokenizerError where the folder's tokenizer cannot be computed exactly."""

    def __init__(self, folder: Path) -> None:
        manifest, files = read_foreign(folder)
        (content,) = files.values()
        self._tokenizer = make_tokenizer(manifest, content)
        self._ids = {name: manifest.special_ids[role] for role, name in manifest.special_pieces.items()}
        self._names = re.compile("(" + "|".join(map(re.escape, self._ids)) + ")")

    def encode(self, text: str) -> Encoded:
        """Return the ids of a text, framed."""
        special = self._tokenizer.manifest.special_ids
        ids = [special["cls"]]
        for part in self._names.split(text):
            ids += [self._ids[part]] if part in self._ids else self._tokenizer.encode(part).tolist()
        return Encoded([*ids, special["sep"]], [1, *[0] * (len(ids) - 1), 1])

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of ids, as transformers joins it."""
        skipped = set(self._ids.values()) if skip_special_tokens else set[int]()
        pieces = [self._tokenizer.piece(number) for number in ids if number not in skipped]
        return " ".join(pieces).replace(" ##", "").strip()

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a special token."""
        return self._ids.get(token)

    def get_vocab_size(self) -> int:
        """Return the number of pieces."""
        return self._tokenizer.manifest.vocab_size
