"""``outlast prepare`` beside the peers' ways of preparing the same text, with the same vocabulary.

    python benchmarks/preparation/prepare_peers.py DATA --mib 1 --rounds 3 --peers-python PYTHON
        --bert-script bert/create_pretraining_data.py --tfrecord-script .../prepare_tfrecord_shards.py

* BERT's own script (google-research/bert; its tokenization.py beside it): sentence pairs of 128 tokens, 10
  passes over the text. Ours: sentences and pair tables of the same length and number of passes.
* transformers' TFRecord script (examples/tensorflow/language-modeling-tpu, in releases 4.x): blocks of 512
  tokens, four processes as it is written. Ours: token shards, from which blocks of any length are cut.

The scripts run as they are, under PYTHON (TensorFlow, datasets, transformers); BERT's with TensorFlow's
``compat.v1`` under the name tensorflow. Everything is timed from the start of the command to its end. One
WordPiece vocabulary of the English Kyoto articles. The median of the ratios, round by round, counts.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from prepare_corpus import read_documents, repeat, train

from outlast.corpus.sentences import split_sentences
from outlast.storage import LocalStore
from outlast.tokenizer.encode import load_tokenizer
from prepare import run_prepare

_BERT = """
import runpy, sys
import tensorflow.compat.v1 as tensorflow
sys.modules["tensorflow"] = tensorflow
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_SPECIAL = {"<pad>": "[PAD]", "<unk>": "[UNK]"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--mib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peers-python", default=sys.executable)
    parser.add_argument("--bert-script", type=Path)
    parser.add_argument("--tfrecord-script", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        documents = read_documents(arguments.data, "en")
        folder = train(work, "tokenizers wordpiece", documents)
        texts = list(repeat(documents, int(arguments.mib * 2**20)))
        print(f"{arguments.mib} MiB of text, {len(texts)} documents")
        if arguments.bert_script:
            compare_bert(work, folder, texts, arguments)
        if arguments.tfrecord_script:
            compare_tfrecord(work, folder, texts, arguments)


def compare_bert(work: Path, folder: Path, texts: list[str], arguments: argparse.Namespace) -> None:
    """Measure BERT's script and ours: sentences, pairs of 128 tokens, 10 passes."""
    text = work / "bert" / "text"
    text.mkdir(parents=True)
    divided = ["\n".join(line.strip() for line in split_sentences(document)) for document in texts]
    (text / "all.txt").write_text("\n\n".join(divided))
    pieces = load_tokenizer(LocalStore(folder.parent), folder.name).pieces
    (work / "vocab.txt").write_text("\n".join(_SPECIAL.get(piece, piece) for piece in pieces) + "\n")
    command = [arguments.peers_python, "-c", _BERT, str(arguments.bert_script.resolve())]
    command += [f"--input_file={text / 'all.txt'}", f"--output_file={work / 'bert.tfrecord'}"]
    command += [f"--vocab_file={work / 'vocab.txt'}", "--do_lower_case=False", "--dupe_factor=10"]
    options = ("shards.pairs.lengths=[128]", "shards.pairs.num_passes=10", "corpus.format=text")
    show(
        "BERT's create_pretraining_data.py",
        lambda: run(command, work),
        lambda: ours(work, text, folder, arguments.processes, "lines", options),
        arguments.rounds,
    )
    print(f"  its records {size(work, 'bert.tfrecord')}, ours {size(work / 'out', '*.safetensors')}")


def compare_tfrecord(work: Path, folder: Path, texts: list[str], arguments: argparse.Namespace) -> None:
    """Measure transformers' script and ours: tokens of whole documents."""
    text, tokenizer = work / "tfrecord" / "text", work / "tfrecord" / "tokenizer"
    text.mkdir(parents=True)
    tokenizer.mkdir()
    lines = (json.dumps({"text": document}, ensure_ascii=False) + "\n" for document in texts)
    (text / "train.jsonl").write_text("".join(lines))
    shutil.copy(folder / "tokenizer.json", tokenizer)
    (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    command = [arguments.peers_python, str(arguments.tfrecord_script.resolve()), "--split", "train"]
    command += ["--dataset_name", str(text), "--dataset_config", "default"]
    command += ["--tokenizer_name_or_path", str(tokenizer), "--output_dir", str(work / "records")]

    def theirs() -> float:
        shutil.rmtree(work / "cache", ignore_errors=True)  # else datasets takes what it made before
        return run(command, work)

    show(
        "transformers' prepare_tfrecord_shards.py",
        theirs,
        lambda: ours(work, text, folder, arguments.processes, "none", ()),
        arguments.rounds,
    )
    print(
        f"  its records {size(work / 'records', '**/*.tfrecord')}, ours {size(work / 'out', '*.safetensors')}"
    )


def run(command: list[str], work: Path) -> float:
    """Run a peer's command without network; return its seconds."""
    environment = os.environ | {
        "HF_HOME": str(work / "cache"),
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    began = time.perf_counter()
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return time.perf_counter() - began


def ours(
    work: Path, text: Path, folder: Path, processes: int, sentences: str, options: tuple[str, ...]
) -> float:
    """Run ``outlast prepare``; return its seconds."""
    shutil.rmtree(work / "out", ignore_errors=True)
    more = [word for option in options for word in ("--set", option)]
    return run_prepare(work, text, work / "out", folder, processes, sentences, *more)


def show(name: str, theirs: Callable[[], float], ours: Callable[[], float], rounds: int) -> None:
    """Run two ways in turn and print their seconds."""
    seconds = [(theirs(), ours()) for _ in range(rounds)]
    ratio = statistics.median(their / our for their, our in seconds)
    their, our = (statistics.median(column) for column in zip(*seconds, strict=True))
    print(f"{name}: {their:.1f} s, outlast prepare {our:.2f} s, {ratio:.1f} times as fast", flush=True)


def size(folder: Path, pattern: str) -> str:
    """Return how large the files of a folder are together."""
    return f"{sum(path.stat().st_size for path in folder.glob(pattern)) / 2**20:.1f} MiB"


if __name__ == "__main__":
    main()
