"""What the verbs print: text for people, JSON for scripts, help that says it all and comes at once."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from outlast.cli.main import main
from outlast.storage import LocalStore
from outlast.training.ranking import read_evaluations
from support.command import RECIPE
from support.command_line import Run
from support.datasets import draw_documents, write_sentence_data

JSON_VERBS = {
    "recipe show": "recipe",
    "shards show": "manifest",
    "shards verify": "manifest",
    "stream bench": "manifest",
    "checkpoint list": "run",
    "checkpoint verify": "run",
    "checkpoint digest": "run",
    "checkpoint recover": "run",
    "evaluate": "run",
    "fill-mask": "model",
    "verify": "run",
}
"""Every verb that prints a table, and what it looks at."""

HEAVY = {
    "jax",
    "numpy",
    "pydantic",
    "rich",
    "tokenizers",
    "sentencepiece",
    "obstore",
    "safetensors",
    "pyarrow",
}


def verbs(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, found in group.commands.items():
        if isinstance(found, click.Group):
            yield from verbs(found, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", found


def test_every_verb_that_prints_a_table_prints_json() -> None:
    found = {
        name for name, verb in verbs(main) if any("--json" in parameter.opts for parameter in verb.params)
    }
    assert found == set(JSON_VERBS)
    others = {name for name, _ in verbs(main)} - found
    shards = {
        "shards pair",
        "shards export-tfrecord",
        "shards import-tfrecord",
        "shards import",
        "shards images",
        "shards repack",
    }
    assert others == {
        "init",
        "recipe schema",
        "tokenizer import",
        "corpus",
        "prepare",
        "import",
        "train",
        "export",
        *shards,
    }  # they print one path


@pytest.mark.parametrize("verb", JSON_VERBS)
def test_json_is_one_document_and_all_there_is(
    outlast: Run, verb: str, data: Path, finished_run: Path, model: Path
) -> None:
    where: dict[str, list[str | Path]] = {
        "recipe": [RECIPE],
        "manifest": [data / "manifest.json"],
        "run": [finished_run],
        "model": [model, "import [MASK]"],
    }
    few = ["--seconds", "1", "--batch", "2", "--length", "16"] if verb == "stream bench" else []
    outcome = outlast(*verb.split(), *where[JSON_VERBS[verb]], *few, "--json")
    assert outcome.code == 0, outcome
    found = json.loads(outcome.out)
    if verb == "recipe show":
        assert found["model.preset"] == {"value": "tiny", "from": "file"}
    elif verb == "shards show":
        assert found["splits"]["train"]["shards"] == 3
        assert isinstance(found["splits"]["train"]["tokens"], int)
    elif verb == "verify":
        assert found == {"problems": [], "not_looked_at": ["metrics/"]}
    elif verb.endswith("verify"):
        assert found == {"problems": []}
    elif verb == "checkpoint list":
        (row,) = found
        assert (row["step"], row["attempt"], row["state"]) == (3, 1, "committed")
        assert row["size_bytes"] > 1000
    elif verb == "checkpoint recover":
        assert found == {"rebuilt": [], "steps": [3], "lost_step": None}
    elif verb == "checkpoint digest":
        assert (found["step"], len(found["sha256"])) == (3, 64)
    elif verb == "stream bench":
        assert found["examples_per_second"] > 0
        assert found["limit"] in ("store", "gathering", "memory")
    elif verb == "evaluate":
        assert found["num_examples"] > 8, "all of them, though the recipe's evaluations read 8"
        assert 4 < found["loss"] < 8
    else:
        assert [len(answers) for answers in found] == [5]
        assert set(found[0][0]) == {"score", "token", "token_str", "sequence"}


def test_an_evaluation_of_a_part_is_asked_for(outlast: Run, train: Run, tmp_path: Path) -> None:
    """During training the recipe says how many examples; the verb reads all, or as many as it is told."""
    trained = train("training.total_steps=1")
    assert ", over 8 examples" in trained.err
    (kept,) = read_evaluations(LocalStore(tmp_path / "run")).values()
    part = outlast("evaluate", tmp_path / "run", "--json", "--set", "training.evaluation_examples=8")
    assert json.loads(part.out) == kept


def test_one_line_of_json_for_each_text(outlast: Run, model: Path) -> None:
    outcome = outlast("fill-mask", model, "[MASK] a", "[MASK] b [MASK]", "--json", "--top", "2")
    lines = [json.loads(line) for line in outcome.out.splitlines()]
    assert [[len(answers) for answers in masks] for masks in lines] == [[2], [2, 2]]


def test_a_data_set_described_to_a_person(outlast: Run, data: Path) -> None:
    manifest = data / "manifest.json"
    fields = json.loads(outlast("shards", "show", manifest, "--json").out)
    lines = outlast("shards", "show", manifest).out.splitlines()
    told = dict(re.split(r" {2,}", line, maxsplit=1) for line in lines)
    assert re.fullmatch(
        r"2\d documents, 1\d\dk tokens in 3 shards of 3\d\dkB, 2\.\d\d bytes of text per token", told["train"]
    )
    assert told["validation"].startswith(f"{fields['splits']['validation']['documents']} documents, ")
    assert told["tokenizer"] == f"500 pieces, fingerprint {fields['tokenizer']['fingerprint']}"
    assert told["special ids"] == "pad 0, unk 1, cls 2, sep 3, mask 4"
    assert told["fingerprint"] == fields["fingerprint"]
    assert not re.search(r"[{}\[\]]", "".join(lines))


def test_pairs_are_added_and_described(outlast: Run, tmp_path: Path) -> None:
    write_sentence_data(LocalStore(tmp_path), {"train": [draw_documents(0, 40)]})
    manifest = tmp_path / "manifest.json"
    outcome = outlast("shards", "pair", manifest, "--length", "32", "--length", "64", "--passes", "2")
    assert outcome.code == 0, outcome
    assert outcome.out == f"{manifest}\n"
    told = outlast("shards", "show", manifest).out
    assert re.search(
        r"^pairs of 32 +\d\d\d train, 2 passes, \d+(\.\d+)?kB, second segment random in [56]\d\.\d%$",
        told,
        re.MULTILINE,
    )
    assert "pairs of 64" in told
    refused = outlast("shards", "pair", manifest, "--length", "32", "--passes", "3")
    assert refused.code == 1
    assert "num_passes: 2 there, 3 now" in refused.err


def test_checkpoints_listed_to_a_person(outlast: Run, train: Run, tmp_path: Path) -> None:
    for total_steps in (1, 2, 3):
        told = train(f"training.total_steps={total_steps}", "checkpoint.keep_newest=5").err
        assert f"optimizer.warmup_steps is 20, the run has {total_steps} steps" in told
    rows = json.loads(outlast("checkpoint", "list", tmp_path / "run", "--json").out)
    assert [row["step"] for row in rows] == [3, 2, 1]  # newest first
    header, *lines = outlast("checkpoint", "list", tmp_path / "run").out.splitlines()
    assert re.split(r" {2,}", header) == [
        *("step", "attempt", "size", "loss", "examples", "which", "kept because", "state")
    ]
    assert [line.split()[0] for line in lines] == ["3", "2", "1"]
    assert all(re.fullmatch(r"\d\d\dkB", line.split()[2]) for line in lines)


def test_the_digest_is_one_line_of_step_and_sha256(outlast: Run, finished_run: Path) -> None:
    assert re.fullmatch(r"3 [0-9a-f]{64}\n", outlast("checkpoint", "digest", finished_run).out)


def test_answers_as_a_table(outlast: Run, model: Path) -> None:
    text, header, *rows = outlast("fill-mask", model, "import [MASK]", "--top", "3").out.splitlines()
    assert text == "import [MASK]"
    assert header.split() == ["score", "token", "sequence"]
    assert len(rows) == 3
    assert all(re.match(r"0\.\d{3} ", row) for row in rows)


def test_every_option_says_what_it_does_and_its_default() -> None:
    options = [(name, option) for name, verb in verbs(main) for option in verb.params]
    for name, option in options:
        if not isinstance(option, click.Option):
            continue
        assert option.help, f"{name} {option.opts}"
        if not (option.required or option.is_flag or option.multiple):
            shown = option.show_default or "[default: " in option.help
            assert shown, f"{name} {option.opts} does not tell its default"
    assert all(verb.help for _, verb in verbs(main))


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"], ["trian"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import json, sys; from outlast.cli.main import run_command_line; run_command_line(sys.argv[1:]);"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "click" in loaded
    assert loaded & HEAVY == set()


def test_verbs_stand_in_the_order_of_the_journey(outlast: Run) -> None:
    commands = outlast("--help").out.partition("Commands:")[2]
    shown = re.findall(r"^  ([a-z-]+)  ", commands, re.MULTILINE)
    assert shown == list(main.commands)
    journey = ["init", "prepare", "shards", "train", "evaluate", "export", "fill-mask"]
    assert [name for name in shown if name in journey] == journey


def test_the_first_lines_of_a_run_say_what_it_found_and_the_last_what_comes_next(
    train: Run, tmp_path: Path, data: Path
) -> None:
    lines = train("training.total_steps=1").err.splitlines()
    device = next(line for line in lines if line.startswith("device: "))
    assert re.fullmatch(r"device: 1 of 1 cpu devices \(.+\), computes in float32", device)
    assert f"data: {data / 'manifest.json'}" in lines
    batch = next(line for line in lines if line.startswith("batch: "))
    assert re.fullmatch(
        r"batch: 4 examples of 16 tokens; an epoch: \d+ examples, \S+k tokens, \S+ steps", batch
    )
    assert any(line.startswith("compiled programs are kept in ") for line in lines)
    run = tmp_path / "run"
    assert lines[-1] == (
        f"the run is complete: {run}; next: outlast evaluate {run}   or: outlast export {run} run-model"
    )
