"""Any byte of anything that was written, changed, cut off or exchanged: it is noticed, or no output differs.

The harness knows no format: it changes files of a data set of text, one of pictures, a run, an exported model
and builds that go on, and asks the command line and the public functions for all they give. Each damage is
told by the kind of its file: noticed by who reads it (an error, or a line that was not said before), noticed
by ``outlast verify``, without effect on any output. ``OUTLAST_DAMAGES`` names a file for the table.
"""

import hashlib
import io
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import outlast
from outlast.cleaning.config import CleaningConfig
from outlast.cli.main import run_command_line
from outlast.corpus.config import CorpusConfig
from outlast.errors import OutlastError
from outlast.logs import log
from outlast.prepare.build import prepare_data
from outlast.recipe import Recipe
from outlast.shards.config import ShardsConfig
from outlast.tokenizer.config import TokenizerConfig
from support.builds import write_lines
from support.command import Command
from support.command_line import TINY
from support.command_line import command as command
from support.command_line import data as data
from support.images import write_images

KINDS = (
    (r"attempts/\d+\.json", "claim"),
    (r"attempts/\d+\.heartbeat", "heartbeat"),
    (r"attempts/\d+\.from\.json", "record"),
    (r"attempts/\d+\.run\.json", "description"),
    (r"commits/.*", "commit"),
    (r"data/.*/commit\.json", "list beside the parts"),
    (r"data/.*", "part of a checkpoint"),
    (r"evaluations/.*", "evaluation"),
    (r"metrics/.*", "metrics"),
    (r"(.*/)?tokenizer/manifest\.json", "tokenizer's manifest"),
    (r"(.*/)?tokenizer/.*", "tokenizer's file"),
    (r"manifest\.json", "manifest"),
    (r"(.*/)?(plan\.json|done/.*)", "plan or record of a build"),
    (r"cleaning/scan/.*\.json", "record of a scan"),
    (r"cleaning/scan/.*", "part of a scan"),
    (r"cleaning/merged\.json", "record of the duplicates"),
    (r"cleaning/drops/.*", "verdict on duplicates"),
    (r"cleaning\.json", "cleaning report"),
    (r".*\.tar", "tar"),
    (r".*index.*|.*\.idx.*", "index of a tar"),
    (r"config\.json", "config.json"),
    (r"model\.safetensors", "weights"),
    (r"(train|validation|test)-.*\.safetensors", "shard"),
    (r"(tokenizer.*|special_tokens_map)\.json", "tokenizer.json and its settings"),
    (r"outlast\.json", "outlast.json"),
    (r"README\.md", "model card"),
)
FREE = {"metrics", "model card"}
"""What ``verify`` leaves out: nothing reads it again, or people edit it."""

Outputs = Mapping[str, Any]


class Artifact(NamedTuple):
    name: str
    folder: Path
    outputs: Callable[[Path], Outputs]


def verb(*arguments: str | Path) -> tuple[int, str, str]:
    """Run a command in this process; return its code and what it printed to either stream."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_command_line([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def digest_of(batches: Iterable[Mapping[str, Any]], most: int) -> str:
    total = hashlib.sha256()
    for _, batch in zip(range(most), batches, strict=False):
        for name in sorted(batch):
            total.update(name.encode() + np.ascontiguousarray(batch[name]).tobytes())
    return total.hexdigest()


def of_text(folder: Path) -> Outputs:
    manifest = folder / "manifest.json"
    length: dict[str, Any] = {"sequence_length": 16, "global_batch_size": 64}
    return {
        "train": digest_of(outlast.open_stream(manifest, **length), 40),
        "validation": digest_of(
            outlast.open_stream(manifest, split="validation", evaluation=True, **length), 10**6
        ),
        "shown": verb("shards", "show", manifest),
    }


def of_images(folder: Path) -> Outputs:
    manifest = folder / "manifest.json"
    small: dict[str, Any] = {"image_size": 16, "evaluation_resize": 20}
    return {
        split: digest_of(
            outlast.open_images(manifest, global_batch_size=4, split=split, evaluation=True, **small), 10**6
        )
        for split in ("train", "validation")
    } | {"shown": verb("shards", "show", manifest)}


def of_run(folder: Path) -> Outputs:
    model = folder.parent / "exported again"
    shutil.rmtree(model, ignore_errors=True)
    found: dict[str, Any] = {
        "list": verb("checkpoint", "list", folder, "--json"),
        "digest": verb("checkpoint", "digest", folder),
        "best": verb("export", folder, model, "--best"),
    }
    if model.exists():
        found |= {path.name: path.read_bytes() for path in sorted(model.iterdir())}
    return found


def of_model(folder: Path) -> Outputs:
    loaded = outlast.load_model(folder)
    assert isinstance(loaded, outlast.Model)
    ids = np.arange(5, 21, dtype=np.int32)[None]
    logits = loaded(ids)["logits"]
    return {"logits": logits.tobytes(), "answers": outlast.fill_mask(folder, ["import [MASK]"])}


def of_report(folder: Path) -> Outputs:
    manifest = folder / "manifest.json"
    return {
        "dropped": verb("shards", "show", manifest, "--dropped"),
        "shown": verb("shards", "show", manifest),
    }


def builds(place: Path) -> list[Artifact]:
    """A build whose scan is over, one whose duplicates and tokenizer are there, one that has ended."""
    texts = str(write_lines(place / "text.jsonl", 60))
    corpus = CorpusConfig(path=texts, format="jsonl", validation_fraction=0.2)
    recipe = Recipe(
        corpus=corpus,
        cleaning=CleaningConfig(duplicates="near", duplicate_lines="drop", min_characters=50),
        tokenizer=TokenizerConfig(vocab_size=310, keep_whitespace=True),
        shards=ShardsConfig(num_shards=4, num_processes=1),
    )

    def of_build(folder: Path) -> Outputs:
        copy = place / "goes on"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        prepare_data(recipe, copy)
        return {str(path.relative_to(copy)): path.read_bytes() for path in copy.rglob("*") if path.is_file()}

    scanned, merged, ended = (place / name for name in ("scanned", "merged", "ended"))
    for task in (0, 1):
        with pytest.raises(OutlastError, match=r"not scanned|no tokenizer"):
            prepare_data(recipe, scanned, task=(task, 2), tokenizer_wait_seconds=0)
    shutil.rmtree(scanned / "failed")
    prepare_data(recipe, ended)
    shutil.copytree(ended, merged)
    shutil.rmtree(merged / "done")
    for path in (*merged.glob("*.safetensors"), merged / "manifest.json", merged / "cleaning.json"):
        path.unlink()
    return [
        Artifact("scanned build", scanned, of_build),
        Artifact("merged build", merged, of_build),
        Artifact("cleaned text", ended, of_report),
    ]


@pytest.fixture(scope="module", autouse=True)
def former_settings() -> Iterator[None]:
    """What the verbs change for the whole process is put back."""
    import jax

    former = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.level, log.propagate = former
    jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture(scope="module")
def artifacts(command: Command, data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Artifact]:
    place = tmp_path_factory.mktemp("whole")
    text, run, model, images = (place / name for name in ("text", "run", "model", "images"))
    shutil.copytree(data, text)
    write_images(images, [6, 6, 4])
    for steps in (1, 2, 3):
        keys = (*TINY, f"training.total_steps={steps}", "checkpoint.keep_newest=5")
        code, _, err = verb(*command.training(data / "manifest.json", run, *keys))
        assert code == 0, err
    assert verb("export", run, model)[0] == 0
    return [
        Artifact("text", text, of_text),
        Artifact("images", images, of_images),
        Artifact("run", run, of_run),
        Artifact("model", model, of_model),
    ]


def kind_of(name: str) -> str:
    return next((kind for pattern, kind in KINDS if re.fullmatch(pattern, name)), name)


def damaged(rng: random.Random, files: list[Path], folder: Path) -> tuple[str, dict[Path, bytes]]:
    """Choose a damage: what it is, and the new content of the files that it changes."""
    kinds: dict[str, list[Path]] = {}
    for path in files:
        kinds.setdefault(kind_of(path.relative_to(folder).as_posix()), []).append(path)
    kind = rng.choice(sorted(kinds))  # a small file as often as a large one
    path = rng.choice(kinds[kind])
    content = bytearray(path.read_bytes())
    how = rng.random()
    others = [other for other in kinds[kind] if other.read_bytes() != bytes(content)]
    if how < 0.1 and others:
        other = rng.choice(others)
        return kind, {path: other.read_bytes(), other: bytes(content)}
    if how < 0.2:
        return kind, {path: bytes(content[: rng.randrange(len(content))])}
    bit = rng.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    return kind, {path: bytes(content)}


def put(path: Path, content: bytes) -> None:
    """Put a file in the place of another: a reader that has not ended yet keeps the one that it has."""
    aside = path.parent.parent / f"{path.name}.aside"
    aside.write_bytes(content)
    aside.replace(path)


def told(outputs: Outputs) -> set[str]:
    """What the verbs said beside their results, and the codes that they ended with."""
    verbs = [value for value in outputs.values() if isinstance(value, tuple)]
    return {line for _, _, err in verbs for line in err.splitlines()} | {f"{code}" for code, _, _ in verbs}


def results(outputs: Outputs) -> dict[str, Any]:
    return {name: value[1] if isinstance(value, tuple) else value for name, value in outputs.items()}


def judge(artifact: Artifact, whole: Outputs, caplog: pytest.LogCaptureFixture) -> tuple[bool, bool]:
    """Whether a reader notices, and whether an output differs."""
    caplog.clear()
    try:
        found = artifact.outputs(artifact.folder)
    except OutlastError:
        return True, True
    said = bool(told(found) - told(whole)) or any(record.levelname == "WARNING" for record in caplog.records)
    printed = [value[1] for value in found.values() if isinstance(value, tuple)]
    said = said or any("damaged" in text for text in printed)  # the state of a checkpoint in the list
    return said, results(found) != results(whole)


def try_damages(
    artifacts: list[Artifact], number: int, seed: int, caplog: pytest.LogCaptureFixture
) -> Counter[tuple[str, str, str]]:
    """Damage one thing at a time, look, and put it back; return the counts by artifact, kind and outcome."""
    rng = random.Random(seed)
    counts: Counter[tuple[str, str, str]] = Counter()
    wrong: list[str] = []
    for artifact in artifacts:
        whole = artifact.outputs(artifact.folder)
        again = artifact.outputs(artifact.folder)
        assert results(again) == results(whole)
        assert told(again) <= told(whole)
        assert verb("verify", artifact.folder)[0] == 0
        files = sorted(path for path in artifact.folder.rglob("*") if path.is_file() and path.stat().st_size)
        for _ in range(number // len(artifacts)):
            kind, changes = damaged(rng, files, artifact.folder)
            former = {path: path.read_bytes() for path in changes}
            for path, content in changes.items():
                put(path, content)
            noticed, differs = judge(artifact, whole, caplog)
            verified = verb("verify", artifact.folder)[0] == 1
            for path, content in former.items():
                put(path, content)
            outcomes = {"damages": True, "reader": noticed, "verify": verified, "no effect": not differs}
            outcomes["unseen"] = differs and not noticed
            outcomes["unverified"] = not verified and kind not in FREE
            for outcome in (name for name, holds in outcomes.items() if holds):
                counts[artifact.name, kind, outcome] += 1
            if outcomes["unseen"] or outcomes["unverified"]:
                wrong.append(f"{artifact.name}: {kind}: {[len(content) for content in changes.values()]}")
    assert not wrong, "\n".join([*wrong, table(counts)])
    return counts


def table(counts: Counter[tuple[str, str, str]]) -> str:
    rows = sorted({(name, kind) for name, kind, _ in counts})
    lines = [
        "| of | file | damages | noticed by the reader | by `verify` | without effect |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in [*rows, None]:
        cells = [
            sum(
                n
                for (name, kind, outcome), n in counts.items()
                if outcome == what and row in (None, (name, kind))
            )
            for what in ("damages", "reader", "verify", "no effect")
        ]
        lines.append(f"| {' | '.join(row or ('all', ''))} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def test_some_damages_of_everything(artifacts: list[Artifact], caplog: pytest.LogCaptureFixture) -> None:
    counts = try_damages(artifacts, 60, 0, caplog)
    assert sum(n for (_, _, outcome), n in counts.items() if outcome == "damages") == 60


def test_some_damages_of_builds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    try_damages(builds(tmp_path), 30, 0, caplog)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_damages_of_builds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    counts = try_damages(builds(tmp_path), 600, 1, caplog)
    if place := os.environ.get("OUTLAST_DAMAGES"):
        Path(place).with_suffix(".builds").write_text(table(counts))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_thousand_damages_of_everything(
    artifacts: list[Artifact], caplog: pytest.LogCaptureFixture
) -> None:
    counts = try_damages(artifacts, 1000, 1, caplog)
    if place := os.environ.get("OUTLAST_DAMAGES"):
        Path(place).write_text(table(counts))
