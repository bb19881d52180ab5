"""Builds of shards by the real command: a corpus, recipes, commands that are killed and started again.

In: a folder or bucket. Out: ``Build``, whose lives end where a test says, and what it has left there.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outlast.storage import Store, open_store
from support.command import Command

WORDS = [
    *("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards"),
    *("quietly", "mix", "日本語", "and", "naïve", "text"),
]
TABLES = {
    "corpus": {"format": "jsonl", "validation_fraction": 0.1},
    "tokenizer": {"vocab_size": 310, "keep_whitespace": True},
    "shards": {"num_shards": 6, "num_processes": 1},
}
PLAIN: dict[str, object] = {}
CLEANED: dict[str, object] = {
    "cleaning.duplicates": "near",
    "cleaning.duplicate_lines": "drop",
    "cleaning.min_characters": 50,
}
PAIRED: dict[str, object] = {
    "corpus.sentences": "lines",
    "shards.pairs.lengths": [32, 48],
    "shards.pairs.num_passes": 2,
}


def write_lines(path: Path, num_documents: int = 300) -> Path:
    """Write a corpus of JSON lines, some of them alike; return its path."""
    words = random.Random(3)
    texts = [
        "\n".join(" ".join(words.choices(WORDS, k=12)) for _ in range(words.randint(1, 6)))
        for _ in range(num_documents)
    ]
    texts += words.sample(texts, num_documents // 10)
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    return path


def write_recipe(path: Path, corpus: str, settings: dict[str, object]) -> Path:
    """Write a recipe for that corpus, with settings by dotted keys; return its path."""
    tables: dict[str, dict[str, object]] = {name: dict(keys) for name, keys in TABLES.items()}
    for key, value in {"corpus.path": corpus, **settings}.items():
        table, _, name = key.rpartition(".")
        tables.setdefault(table, {})[name] = value
    lines = [
        f"[{table}]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in keys.items())
        for table, keys in tables.items()
    ]
    path.write_text("\n".join(lines))
    return path


def objects_in(store: Store) -> dict[str, bytes]:
    """Return every object of a store by name, what killed writers left included."""
    names = [*(info.name for info in store.list()), *store.list_leftovers()]
    return {name: store.read(name) for name in names}


@dataclass
class Build:
    """A build that is killed and started again.

    Args:
        line: the command's arguments.
        num_tasks: processes that share the work; 0: one without --task.
        num_objects: how many the finished build has.
    """

    command: Command
    line: Sequence[str | Path]
    out: str
    num_tasks: int
    num_objects: int
    rng: random.Random
    num_kills: int = 0
    processes: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    def start(self) -> None:
        """Start the processes that do not run."""
        shares = [["--task", f"{task}/{self.num_tasks}"] for task in range(self.num_tasks)] or [[]]
        for index, share in enumerate(shares):
            if index >= len(self.processes):
                self.processes.append(self.command.start(*self.line, *share))
            elif self.processes[index].poll() is not None:
                _rest_of(self.processes[index])
                self.processes[index] = self.command.start(*self.line, *share)

    def kill_at_random(self) -> bool:
        """Kill one or all of the processes at a random moment; return whether one of them was alive."""
        if self.rng.random() < 0.2:
            time.sleep(self.rng.uniform(0.1, 1.5))
        else:
            there = self._count()
            self._wait_for(self.rng.randint(min(there + 1, self.num_objects), self.num_objects))
            time.sleep(self.rng.uniform(0, 0.03))
        together = self.rng.random() < 0.5
        victims = self.processes if together else [self.rng.choice(self.processes)]
        killed = [self._kill(process) for process in victims]
        self.num_kills += sum(killed)
        return any(killed)

    def end(self) -> None:
        """Start what does not run, and see all of it succeed."""
        self.start()
        for process in self.processes:
            output = _rest_of(process)
            assert process.returncode == 0, output

    def _count(self) -> int:
        return len(open_store(self.out).list())

    def _wait_for(self, num_objects: int) -> None:
        deadline = time.monotonic() + 120
        while any(process.poll() is None for process in self.processes) and self._count() < num_objects:
            assert time.monotonic() < deadline, "the build stands still"
            time.sleep(0.002)

    def _kill(self, process: subprocess.Popen[str]) -> bool:
        alive = process.poll() is None
        if alive:
            os.killpg(process.pid, signal.SIGKILL)
        _rest_of(process)
        return alive and process.returncode == -signal.SIGKILL


def _rest_of(process: subprocess.Popen[str]) -> str:
    """Wait for a process's end; return what it said, nothing where that has been taken before."""
    if process.stdout is None or process.stdout.closed:
        return ""
    return process.communicate(timeout=250)[0]
