"""Where a library written in Rust panics at use, the error names the tokenizer, the text and the remedy."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import OutlastError, TokenizerError
from outlast.storage import LocalStore
from outlast.tokenizer.encode import Tokenizer, load_tokenizer
from outlast.tokenizer.failures import library_failures
from support.tokenizer_files import bring, dividing, document

ENDLESS = r"(\p{Greek}+)+$"
"""Neither it nor a probe of the trial holds a Greek letter, so the trial at load does not find it."""
TEXT = "\n" + "α" * 40 + "b" * 100


def imported(folder: Path, **changes: Any) -> Tokenizer:
    bring(folder, json.dumps(document(**changes)).encode())
    return load_tokenizer(LocalStore(folder), "out")


@pytest.mark.parametrize(
    "use",
    [
        lambda found: found.encode(TEXT),
        lambda found: found.encode_batch(["ab", TEXT]),
        lambda found: found.encode_joined(["ab", TEXT]),
        lambda found: found.encode_spans(["ab", TEXT]),
        lambda found: found.encode_utf8(["ab", TEXT], [b"ab", TEXT.encode()]),
    ],
)
@pytest.mark.parametrize("place", ["pre_tokenizer", "normalizer"])
def test_a_panic_names_tokenizer_text_and_remedy(
    tmp_path: Path, place: str, use: Callable[[Tokenizer], object]
) -> None:
    step = dividing(ENDLESS)
    if place == "normalizer":
        step = {"type": "Replace", "pattern": {"Regex": ENDLESS}, "content": ""}
    found = imported(tmp_path, **{place: step})
    with pytest.raises(TokenizerError) as caught:
        use(found)
    error = caught.value
    assert "imported from tokenizer.json" in error.message
    assert "retry-limit" in error.message
    assert error.where == f"the text that begins {TEXT[:60]!r}"
    assert "another tokenizer" in str(error.remedy)
    assert len(str(error).splitlines()) == 4
    assert str(pickle.loads(pickle.dumps(error)).message)  # a worker sends it
    assert found.encode("ab").tolist() == [5, 6]


def test_a_panic_of_decoding(tmp_path: Path) -> None:
    decoder = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
    found = imported(tmp_path, decoder={"type": "Sequence", "decoders": [{"type": "Fuse"}, decoder]})
    with pytest.raises(TokenizerError, match="retry-limit"):
        found.decode([5] * 40 + [6])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TypeError("its own"), OutlastError("its own")])
def test_other_errors_stay_what_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)), library_failures("one"):
        raise error
