"""``outlast tokenizer import``: a vocabulary from elsewhere is what a recipe's data is prepared with."""

from pathlib import Path

import pytest

from outlast.storage import open_store
from outlast.tokenizer.encode import load_tokenizer
from support.command import RECIPE
from support.command_line import Run, settings
from support.pretrained import write_byte_level, write_wordpiece


@pytest.mark.parametrize("kind", ["model", "vocab.txt", "vocab.json"])
def test_an_imported_tokenizer_prepares_data(
    test_data: Path, tmp_path: Path, outlast: Run, kind: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    if kind == "model":
        source = test_data / "parity/tokenizers/spm_unigram_ja_8k.model"
        missing = outlast("tokenizer", "import", source, "--out", tmp_path / "mine")
        assert missing.code == 1
        assert "no piece for pad (<pad> or [PAD]), mask ([MASK] or <mask>)" in missing.err
        assert "outlast tokenizer import --append-missing" in missing.err
    else:
        (write_wordpiece if kind == "vocab.txt" else write_byte_level)(test_data, source)
    options = ("--append-missing",) if kind == "model" else ()
    done = outlast("tokenizer", "import", source, "--out", tmp_path / "mine", *options)
    assert (done.code, done.out.strip()) == (0, str(tmp_path / "mine")), done
    assert outlast("tokenizer", "import", source, "--out", tmp_path / "mine", *options).code == 0
    (tmp_path / "text.txt").write_text("The garden of a temple.\n")
    keys = settings(
        f"tokenizer.path={tmp_path}/mine",
        f"corpus.path={tmp_path}/text.txt",
        "corpus.validation_fraction=0",
        "shards.num_shards=1",
        "shards.num_processes=1",
    )
    done = outlast("prepare", RECIPE, "--out", tmp_path / "data", *keys)
    assert done.code == 0, done
    copied, mine = (
        load_tokenizer(open_store(tmp_path / p), n) for p, n in (("data", "tokenizer"), (".", "mine"))
    )
    assert copied.manifest == mine.manifest


def test_another_tokenizer_is_not_written_over(test_data: Path, tmp_path: Path, outlast: Run) -> None:
    for name, write in (("one", write_wordpiece), ("two", write_byte_level)):
        (tmp_path / name).mkdir()
        write(test_data, tmp_path / name)
    assert outlast("tokenizer", "import", tmp_path / "one", "--out", tmp_path / "mine").code == 0
    refused = outlast("tokenizer", "import", tmp_path / "two", "--out", tmp_path / "mine")
    assert refused.code == 1
    assert "There is another tokenizer already" in refused.err
