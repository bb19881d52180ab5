"""Cleaning as a part of ``prepare``: the same bytes whoever builds, and a report that adds up."""

import hashlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.drops import read_merged
from outlast.cleaning.report import REPORT_NAME, make_report, write_report
from outlast.cli.main import run_command_line
from outlast.corpus.config import CorpusConfig
from outlast.errors import CorpusError, ShardError
from outlast.prepare import build
from outlast.prepare.build import prepare_data
from outlast.recipe import Recipe
from outlast.shards.config import ShardsConfig
from outlast.shards.manifest import read_manifest
from outlast.shards.read import open_shard
from outlast.shards.verify import verify_manifest
from outlast.storage import LocalStore
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.encode import load_tokenizer
from support.cleaning import clean, edit, jaccard, write_corpus

TOKENIZER = TokenizerConfig(vocab_size=310, keep_whitespace=True)
ONE_PROCESS = ShardsConfig(num_shards=5, num_processes=1)
CLEANING = CleaningConfig(
    unicode_form="NFKC",
    remove_control_characters=True,
    min_characters=50,
    duplicates="near",
    duplicate_lines="drop",
)
WORDS = [
    *("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards"),
    *("quietly", "mix", "日本語", "and", "naïve", "text"),
]
NUM_FILES = 25
"""About as many files as a build leaves, so that kills fall all over it."""


@pytest.fixture(scope="module")
def texts() -> list[str]:
    rng = random.Random(8)
    fresh = [" ".join(rng.choice(WORDS) + str(rng.randrange(99)) for _ in range(80)) for _ in range(300)]
    near = [edit(text, 1, rng) for text in rng.sample(fresh, 40)]
    lines = [text + "\nｔｈｉｓ line\0 is boilerplate on every page" for text in rng.sample(fresh, 20)]
    texts = [*fresh, *near, *rng.sample(fresh, 40), *lines, "too short", "also short"]
    rng.shuffle(texts)
    return texts


@pytest.fixture(scope="module")
def corpus(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> CorpusConfig:
    path = write_corpus(tmp_path_factory.mktemp("corpus") / "a.jsonl", texts)
    return CorpusConfig(path=str(path), format="jsonl", validation_fraction=0.1)


@pytest.fixture(scope="module")
def built(corpus: CorpusConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "data"
    prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS, cleaning=CLEANING), out)
    return out


def files_of(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def documents_of(out: Path, split: str) -> list[str]:
    manifest, store = read_manifest(str(out / "manifest.json"))
    tokenizer = load_tokenizer(store, "tokenizer")
    shards = [open_shard(out / entry.name) for entry in manifest.shards(split)]
    return [tokenizer.decode(shard.document(d)) for shard in shards for d in range(shard.num_documents)]


def test_what_is_dropped_is_neither_trained_on_nor_held_out(built: Path, texts: list[str]) -> None:
    assert verify_manifest(str(built / "manifest.json")) == []
    train, validation = documents_of(built, "train"), documents_of(built, "validation")
    everything = train + validation
    assert len(set(everything)) == len(everything)
    assert not [text for text in everything if "short" in text or "\0" in text or "ｔ" in text]
    assert sum("boilerplate" in text for text in everything) <= 1
    assert len(validation) > 10
    # Nothing that was found to be alike stands on both sides, and nearly everything alike was found.
    alike = [(a, b) for a in validation for b in train if jaccard(a, b) >= 0.85]
    assert len(alike) <= 1


def test_the_report_adds_up(built: Path, texts: list[str]) -> None:
    report = json.loads((built / "cleaning.json").read_text(encoding="utf-8"))
    manifest, _ = read_manifest(str(built / "manifest.json"))
    counts = manifest.provenance["counts"]
    dropped = report["dropped"]
    assert report["documents_in"] == len(texts)
    assert report["documents_out"] == sum(counts[split]["documents"] for split in counts)
    assert report["documents_in"] - report["documents_out"] == sum(d["documents"] for d in dropped.values())
    assert report["text_bytes_out"] == sum(counts[split]["text_bytes"] for split in counts)
    assert dropped["too_short"]["documents"] == 2
    assert dropped["exact_duplicate"]["documents"] == 40
    assert dropped["near_duplicate"]["documents"] >= 55
    for reason in ("exact_duplicate", "near_duplicate"):
        assert len(dropped[reason]["examples"]) == 5
        assert all(example["text"] and example["like"] for example in dropped[reason]["examples"])
    provenance = manifest.provenance["cleaning"]
    assert provenance["documents_out"] == report["documents_out"]
    assert provenance["dropped"]["exact_duplicate"] == {
        key: dropped["exact_duplicate"][key] for key in ("documents", "text_bytes")
    }
    assert provenance["configuration"]["unicode_form"] == "NFKC"
    assert manifest.provenance["versions"].keys() >= {"unicode", "rensa"}
    assert not (built / "cleaning" / "scan").exists()


def test_the_report_is_shown(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = str(built / "manifest.json")
    assert run_command_line(["shards", "show", manifest, "--dropped"]) == 0
    shown = capsys.readouterr().out
    assert "402 documents" in shown
    assert "exact_duplicate: 40 documents" in shown
    assert "      like, at 1.00: " in shown
    assert run_command_line(["shards", "show", manifest, "--dropped", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents_in"] == 402
    assert run_command_line(["shards", "show", manifest]) == 0
    assert "40 exact duplicate" in capsys.readouterr().out


def test_the_number_of_processes_changes_nothing(corpus: CorpusConfig, built: Path, tmp_path: Path) -> None:
    shards = ShardsConfig(num_shards=5, num_processes=2)
    prepare_data(
        Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=shards, cleaning=CLEANING), tmp_path / "out"
    )
    assert files_of(tmp_path / "out") == files_of(built)


def test_tasks_scan_their_share_and_wait_for_each_other(
    corpus: CorpusConfig, built: Path, tmp_path: Path
) -> None:
    urls: dict[int, str | None] = {}

    def run(task: int) -> None:
        urls[task] = prepare_data(
            Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS, cleaning=CLEANING),
            tmp_path,
            task=(task, 3),
        )

    threads = [threading.Thread(target=run, args=(task,)) for task in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(urls) == 3
    assert prepare_data(
        Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS, cleaning=CLEANING), tmp_path
    )
    assert files_of(tmp_path) == files_of(built)


def test_a_task_that_waits_in_vain_names_what_is_missing(corpus: CorpusConfig, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"2 of 5 portions are not scanned[\s\S]*1, 3[\s\S]*other tasks"):
        prepare_data(
            Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS, cleaning=CLEANING),
            tmp_path,
            task=(0, 2),
            tokenizer_wait_seconds=0.01,
        )
    assert len(list((tmp_path / "cleaning" / "scan").glob("*.json"))) == 3


@pytest.mark.parametrize(
    ("cleaning", "message"),
    [
        (CleaningConfig(duplicates="near"), 'cleaning.unicode_form: "NFKC" there, "none" now'),
        (CleaningConfig(), "cleaning: .* there, nothing now"),
    ],
)
def test_another_cleaning_is_refused(
    corpus: CorpusConfig, built: Path, cleaning: CleaningConfig, message: str
) -> None:
    with pytest.raises(ShardError, match=message):
        prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS, cleaning=cleaning), built)


def test_another_version_of_a_library_is_refused(
    corpus: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def versions(number: str) -> Callable[[CleaningConfig], dict[str, str]]:
        return lambda _: {"rensa": number}

    monkeypatch.setattr(build, "library_versions", versions("0.5"))
    with pytest.raises(CorpusError, match="not scanned"):
        prepare_data(
            Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS, cleaning=CLEANING),
            tmp_path,
            task=(0, 2),
            tokenizer_wait_seconds=0,
        )
    monkeypatch.setattr(build, "library_versions", versions("0.6"))
    with pytest.raises(ShardError, match=r"begun with rensa 0.5, here is 0.6[\s\S]*install rensa 0.5"):
        prepare_data(
            Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS, cleaning=CLEANING), tmp_path
        )


def test_a_lost_manifest_is_written_again(corpus: CorpusConfig, built: Path, tmp_path: Path) -> None:
    prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS, cleaning=CLEANING), tmp_path)
    for name in ("manifest.json", "cleaning.json", "done/00002.json"):
        (tmp_path / name).unlink()
    prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS, cleaning=CLEANING), tmp_path)
    assert files_of(tmp_path) == files_of(built)


RUN = """
import sys
from outlast.cleaning.config import CleaningConfig
from outlast.corpus.config import CorpusConfig
from outlast.prepare.build import prepare_data
from outlast.recipe import Recipe
from outlast.shards.config import ShardsConfig
from outlast.tokenizer.config import TokenizerConfig

if __name__ == "__main__":
    path, out, num_processes = sys.argv[1:]
    recipe = Recipe(
        corpus=CorpusConfig(path=path, format="jsonl", validation_fraction=0.1),
        tokenizer=TokenizerConfig(vocab_size=310, keep_whitespace=True),
        shards=ShardsConfig(num_shards=5, num_processes=int(num_processes)),
        cleaning=CleaningConfig(
            unicode_form="NFKC", remove_control_characters=True, min_characters=50, duplicates="near",
            duplicate_lines="drop",
        ),
    )
    prepare_data(recipe, out)
"""


def kill_and_go_on(corpus: CorpusConfig, built: Path, tmp_path: Path, num_kills: int) -> None:
    script = tmp_path / "run.py"
    script.write_text(RUN)
    out = tmp_path / "out"
    command = [sys.executable, str(script), str(corpus.path), str(out), "1"]
    moments = random.Random(num_kills)
    num_killed = 0
    for number in range(num_kills):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        enough = moments.randrange(NUM_FILES)
        while process.poll() is None and (len(list(out.rglob("*"))) if out.exists() else 0) < enough:
            time.sleep(0.001)
        time.sleep(0.002 * (number % 5))
        process.send_signal(signal.SIGKILL)
        num_killed += process.wait() == -signal.SIGKILL
    assert num_killed
    assert subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0
    assert files_of(out) == files_of(built)


def test_killed_at_random_moments_it_ends_with_the_same_bytes(
    corpus: CorpusConfig, built: Path, tmp_path: Path
) -> None:
    kill_and_go_on(corpus, built, tmp_path, 5)


@pytest.mark.long
def test_killed_often_it_ends_with_the_same_bytes(corpus: CorpusConfig, built: Path, tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        kill_and_go_on(corpus, built, tmp_path / str(number), 10)


def test_the_worked_example_is_what_comes_out(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "cleaning.md").read_text(encoding="utf-8")
    example = json.loads(page.partition("```json\n")[2].partition("```")[0])
    path = write_corpus(tmp_path / "a.jsonl", ["hello world", "hello there", "hello world", "hi"])
    corpus = CorpusConfig(path=str(path), format="jsonl")
    config = CleaningConfig(min_characters=5, duplicates="exact")
    _, tally = clean(corpus, config, tmp_path / "out", 2)
    store = LocalStore(tmp_path / "out")
    write_report(store, make_report(config, [tally], read_merged(store)))
    report = json.loads(store.read(REPORT_NAME))
    shown = example.pop("configuration")
    shown.pop("...")
    assert report.pop("configuration").items() >= shown.items()
    assert list(report) == ["format", "version", *list(example)[2:]]
    assert {**report, "sha256": "..."} == example
