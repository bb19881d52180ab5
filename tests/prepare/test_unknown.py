"""What a vocabulary does not know is told: by the build, in its manifest, by ``shards show``."""

import json
import logging
from pathlib import Path

import pytest

from outlast.corpus.config import CorpusConfig
from outlast.prepare.build import prepare_data
from outlast.recipe import Recipe
from outlast.shards.config import ShardsConfig
from outlast.shards.describe import describe_manifest, summarize
from outlast.tokenizer.config import TokenizerConfig

SHARDS = ShardsConfig(num_shards=2, num_processes=1)
LINES = [f"Person {number} met a <unk> in the garden of the temple.\n\n" for number in range(400)]


@pytest.fixture
def tokenizer(tmp_path: Path) -> TokenizerConfig:
    """One that has never seen Cyrillic letters."""
    (tmp_path / "plain.txt").write_text("".join(LINES))
    corpus = CorpusConfig(path=str(tmp_path / "plain.txt"), documents="blank_line")
    small = TokenizerConfig(kind="bpe", vocab_size=80)
    prepare_data(Recipe(corpus=corpus, tokenizer=small, shards=SHARDS), tmp_path / "first")
    return TokenizerConfig(path=str(tmp_path / "first" / "tokenizer"))


def prepare(tmp_path: Path, tokenizer: TokenizerConfig, text: str) -> str:
    (tmp_path / "text.txt").write_text(text)
    corpus = CorpusConfig(path=str(tmp_path / "text.txt"), documents="blank_line")
    url = prepare_data(Recipe(corpus=corpus, tokenizer=tokenizer, shards=SHARDS), tmp_path / "out")
    assert url is not None
    return url


def test_the_share_the_characters_and_the_names_are_told(
    tmp_path: Path, tokenizer: TokenizerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    url = prepare(tmp_path, tokenizer, "".join(LINES) + "Жук <unk>, Ж.\n\n" * 300)
    described = describe_manifest(url)
    found = described["provenance"]["unknown_pieces"]
    assert found["tokens"] == sum(s["tokens"] - s["documents"] for s in described["splits"].values())
    assert found["unknown"] / found["tokens"] == pytest.approx(found["share"], abs=1e-6)
    assert found["characters"] == {"Ж": 600, ",": 300, "к": 300, "у": 300}
    assert described["provenance"]["control_names"] == {"<unk>": 700}
    lines = summarize(described)
    assert lines["unknown pieces"].endswith(
        f"{found['share']:.2%} of the tokens; commonest characters behind them: "
        "'Ж' 600 times, ',' 300 times, 'к' 300 times, 'у' 300 times"
    )
    assert lines["names of control pieces"] == "<unk> 700 times"
    told = caplog.text
    assert f"unknown pieces: {lines['unknown pieces']}" in told
    assert "more than 1 % of the tokens are unknown" in told
    assert "the corpus holds names of control pieces, which are text in it: <unk> 700 times" in told


def test_nothing_unknown_is_told_without_a_warning(
    tmp_path: Path, tokenizer: TokenizerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    url = prepare(tmp_path, tokenizer, "".join(LINES).replace("<unk>", "person"))
    assert summarize(describe_manifest(url))["unknown pieces"] == "none"
    assert "control_names" not in describe_manifest(url)["provenance"]
    assert "unknown" not in "".join(r.message for r in caplog.records if r.levelno >= logging.WARNING)


def test_a_build_that_an_older_version_began_says_what_it_did_not_count(
    tmp_path: Path, tokenizer: TokenizerConfig
) -> None:
    """Its records lack the counts; the ids are the same, so it is gone on with."""
    url = prepare(tmp_path, tokenizer, "".join(LINES))
    whole = json.loads(Path(url).read_text())
    Path(url).unlink()
    record = tmp_path / "out" / "done" / "00001.json"
    fields = json.loads(record.read_text())
    del fields["unknown"], fields["sha256"]
    fields["version"] = 1  # which carried no digest
    record.write_text(json.dumps(fields))
    prepare(tmp_path, tokenizer, "".join(LINES))
    found = json.loads(Path(url).read_text())
    assert found["fingerprint"] == whole["fingerprint"]
    assert found["provenance"]["unknown_pieces"]["pieces_not_counted"] == 1
    assert "not counted in 1 portions" in summarize(describe_manifest(url))["unknown pieces"]
