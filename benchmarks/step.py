"""Seconds per training step beside transformers on PyTorch: the same work, interleaved in one run.

A step is forward, backward, clipping by the global norm and AdamW, in float32, with every core. Each side
starts from the same weights (through our export) and gets the same batches, masks and optimizer settings; a
quarter of the rows ends in padding. transformers' masked-LM classes project every position onto the
vocabulary, we only the positions that are predicted, so there are four contestants:

    ours, gathered        as training runs: logits at the predicted positions
    ours, full            logits at every position, as transformers computes them
    theirs, full          transformers as it is
    theirs, gathered      transformers' encoder and head, with our gathering between the two

Theirs use the faster of eager and sdpa attention and torch's fused AdamW, the fastest it has on CPU (the one
transformers' Trainer takes). First, with dropout 0, all of them make three steps: losses must agree to 1e-5
relative, and the weights' changes to 1e-2 (relative norm of the difference). Then all are timed in turn,
round after round, with dropout on; the medians and their ratios are printed.

    python benchmarks/step.py --architecture bert --rows 8 --length 128 --rounds 7
    python benchmarks/step.py --architecture roberta --rows 2 --length 512 --vocab-size 50265
"""

import argparse
import gc
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch.nn import functional

from outlast.huggingface.export import export_model
from outlast.huggingface.names import to_huggingface
from outlast.models.bert import Remat
from outlast.models.config import EncoderConfig, ModelConfig, resolve_model
from outlast.models.params import flatten
from outlast.models.randomness import fold, row_keys
from outlast.objectives.config import MlmConfig
from outlast.objectives.mlm import MlmObjective, make_objective
from outlast.training.config import OptimizerConfig, TrainingConfig
from outlast.training.optimizer import decays, make_optimizer, make_schedule
from outlast.training.state import initial_state
from outlast.training.step import make_train_step

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
SEED, TOTAL_STEPS = 0, 1000
LOSS_TOLERANCE, CHANGE_TOLERANCE = 1e-5, 1e-2

Head = Literal["gathered", "full"]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is trained. The same for every contestant of a comparison."""

    encoder: EncoderConfig
    rows: int
    length: int
    remat: Remat
    optimizer: OptimizerConfig

    def objective(self, head: Head) -> MlmObjective:
        slots = self.length if head == "full" else None
        config = MlmConfig(max_predictions=slots)
        return make_objective(self.encoder, config, special_ids=SPECIAL_IDS, remat=self.remat)

    def batch(self, number: int) -> Arrays:
        """Return random tokens; every fourth row is real in its first half only."""
        ids = np.random.default_rng(number).integers(5, self.encoder.vocab_size, (self.rows, self.length))
        mask = np.ones((self.rows, self.length), np.int8)
        mask[::4, self.length // 2 :] = 0
        return {"input_ids": np.where(mask, ids, 0).astype(np.int32), "attention_mask": mask}

    def without_dropout(self) -> "Setting":
        return replace(self, encoder=replace(self.encoder, dropout=0.0, attention_dropout=0.0))


class Ours:
    """Outlast's own compiled step."""

    def __init__(self, setting: Setting, head: Head) -> None:
        self.name = f"ours, {head}"
        self._setting = setting
        self._table = setting.objective(head).param_table
        schedule = make_schedule(setting.optimizer, TOTAL_STEPS)
        optimizer = make_optimizer(setting.optimizer, schedule, decays(self._table))
        self._state = initial_state(self._table, optimizer, SEED)
        self._step = make_train_step(
            setting.objective(head), optimizer, schedule, seed=SEED, num_microbatches=1
        )

    def advance(self, number: int) -> float:
        self._state, measured = self._step(self._state, self._setting.batch(number))
        jax.block_until_ready(self._state)
        return float(measured.loss_sum) / float(measured.weight_sum)

    def params(self) -> Arrays:
        """Return the parameters, flat, under our names."""
        return {name: np.array(value) for name, value in flatten(self._state.params).items()}

    def weights(self) -> Arrays:
        """Return the parameters under Hugging Face's names."""
        return to_huggingface(self._table, self.params())


class Theirs:
    """transformers' model, written out as its Trainer runs it."""

    def __init__(self, setting: Setting, head: Head, attention: str, folder: Path) -> None:
        self.name = f"theirs, {head}"
        self._setting, self._head = setting, head
        self._model = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation=attention)
        self._model.train()
        config = setting.optimizer
        parameters = list(self._model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(
            groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True
        )
        self._schedule = make_schedule(config, TOTAL_STEPS)
        self._batches: dict[int, tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]] = {}

    def prepare(self, number: int) -> None:
        """Mask a step's batch as our step does, outside the time that is measured."""
        batch = self._setting.batch(number)
        objective = self._setting.objective("gathered")
        keys = fold(row_keys(SEED, "train", number, jnp.arange(self._setting.rows)), "masks")
        ids, mask = jnp.asarray(batch["input_ids"]), jnp.asarray(batch["attention_mask"])
        masked = objective.mask(ids, mask, keys)
        labels = np.where(np.asarray(masked.weights) > 0, np.asarray(masked.labels), -100)
        inputs = {"input_ids": _tensor(masked.input_ids), "attention_mask": _tensor(batch["attention_mask"])}
        self._batches[number] = (inputs, _tensor(masked.positions), _tensor(labels))

    def advance(self, number: int) -> float:
        inputs, positions, labels = self._batches[number]
        for group in self._optimizer.param_groups:
            group["lr"] = float(self._schedule(number))
        self._optimizer.zero_grad()
        loss = self._loss(inputs, positions, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._setting.optimizer.clip_norm)
        self._optimizer.step()
        return loss.item()

    def weights(self) -> Arrays:
        return {name: value.detach().numpy().copy() for name, value in self._model.named_parameters()}

    def _loss(
        self, inputs: dict[str, torch.Tensor], positions: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        if self._head == "full":
            everywhere = torch.full_like(inputs["input_ids"], -100).scatter(1, positions, labels)
            return self._model(**inputs, labels=everywhere).loss
        hidden = self._model.base_model(**inputs).last_hidden_state
        chosen = torch.take_along_dim(hidden, positions[:, :, None], dim=1)
        head = self._model.cls if hasattr(self._model, "cls") else self._model.lm_head
        return functional.cross_entropy(head(chosen).flatten(0, 1), labels.flatten())


Contestant = Ours | Theirs


def export_initial(setting: Setting, folder: Path) -> Path:
    """Write the initial weights as a model that transformers loads."""
    return export_model(
        Ours(setting, "gathered").params(),
        setting.encoder,
        folder,
        special_ids=SPECIAL_IDS,
        write_tokenizer=lambda _: None,
        provenance={},
    )


def contestants(
    setting: Setting, heads: list[Head], attention: str, folder: Path
) -> list[Callable[[], Contestant]]:
    """Return what makes each contestant: one by one, for they are large."""
    make: list[Callable[[], Contestant]] = []
    for head in heads:
        make.append(partial(Ours, setting, head))
        make.append(partial(Theirs, setting, head, attention, folder))
    return make


def check_same_work(make: list[Callable[[], Contestant]], num_steps: int = 3) -> None:
    """Let each contestant make a few steps; stop where losses or updated weights differ from the first's."""
    reference: tuple[list[float], Arrays, Arrays] | None = None
    for build in make:
        side = build()
        start = side.weights()
        losses = [_advance(side, number) for number in range(num_steps)]
        end = side.weights()
        if reference is None:
            reference = (losses, start, end)
        expected, first, last = reference
        loss = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
        names = [name for name in last if name in end]
        change = math.sqrt(sum(float(np.sum((last[n] - first[n]) ** 2)) for n in names))
        apart = math.sqrt(sum(float(np.sum((end[n] - last[n]) ** 2)) for n in names))
        print(
            f"check  {side.name:18s} {len(names)} tensors, "
            f"losses apart {loss:.1e}, updates {apart / change:.1e}"
        )
        if loss > LOSS_TOLERANCE or apart > CHANGE_TOLERANCE * change:
            raise SystemExit(f"{side.name} does other work")
        del side
        gc.collect()


def time_in_turn(sides: list[Contestant], rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return wall and CPU seconds per step of each contestant; the first two steps of each do not count."""
    times: dict[str, tuple[list[float], list[float]]] = {side.name: ([], []) for side in sides}
    for number in range(rounds + 2):
        for side in sides:
            if isinstance(side, Theirs):
                side.prepare(number)
            wall, cpu = time.perf_counter(), time.process_time()
            side.advance(number)
            times[side.name][0].append(time.perf_counter() - wall)
            times[side.name][1].append(time.process_time() - cpu)
        print(f"round {number}: " + ", ".join(f"{n} {w[-1]:.3f}" for n, (w, _) in times.items()), flush=True)
    return {name: (wall[2:], cpu[2:]) for name, (wall, cpu) in times.items()}


def faster_attention(setting: Setting, folder: Path) -> str:
    """Return which of transformers' two attentions is faster here, over three steps each."""
    sides: list[Contestant] = []
    for attention in ("eager", "sdpa"):
        side = Theirs(setting, "full", attention, folder)
        side.name = attention
        sides.append(side)
    medians = {name: statistics.median(wall) for name, (wall, _) in time_in_turn(sides, 3).items()}
    print("theirs " + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in medians.items()))
    return min(medians, key=lambda name: medians[name])


def report(times: dict[str, tuple[list[float], list[float]]]) -> None:
    medians = {name: statistics.median(wall) for name, (wall, _) in times.items()}
    for name, (wall, cpu) in times.items():
        print(
            f"{name:18s} median {medians[name]:.3f} s (min {min(wall):.3f}, max {max(wall):.3f}), "
            f"CPU {statistics.median(cpu):.3f} s"
        )
    for ours, theirs in (("gathered", "full"), ("full", "full"), ("gathered", "gathered")):
        names = f"ours, {ours}", f"theirs, {theirs}"
        if all(name in medians for name in names):
            print(f"ratio  {names[0]} / {names[1]}: {medians[names[0]] / medians[names[1]]:.3f}")


def _advance(side: Contestant, number: int) -> float:
    if isinstance(side, Theirs):
        side.prepare(number)
    return side.advance(number)


def _tensor(array: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(array).astype(np.int64))


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--architecture", choices=["bert", "roberta"], default="bert")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--num-layers", type=int)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--remat", choices=["none", "selective", "layer"], default=TrainingConfig().remat)
    parser.add_argument("--rounds", type=int, default=7, help="0: only check that the work is the same")
    parser.add_argument("--heads", nargs="+", choices=["gathered", "full"], default=["gathered", "full"])
    parser.add_argument("--attention", choices=["eager", "sdpa"], help="theirs; the faster one if not given")
    parser.add_argument("--no-check", action="store_true")
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    model = ModelConfig(
        architecture=arguments.architecture,
        preset=arguments.preset,
        num_layers=arguments.num_layers,
        dropout=arguments.dropout,
        attention_dropout=arguments.dropout,
    )
    setting = Setting(
        encoder=resolve_model(
            model,
            vocab_size=arguments.vocab_size,
            special_ids=SPECIAL_IDS,
            sequence_length=arguments.length,
        ),
        rows=arguments.rows,
        length=arguments.length,
        remat=arguments.remat,
        optimizer=OptimizerConfig(learning_rate=1e-4),
    )
    print(f"{arguments.architecture} {arguments.preset}, {setting.rows} x {setting.length}, {arguments}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = export_initial(setting, Path(temporary, "with_dropout"))
        attention = arguments.attention or faster_attention(setting, folder)
        if not arguments.no_check:
            dry = setting.without_dropout()
            dry_folder = export_initial(dry, Path(temporary, "without_dropout"))
            check_same_work(contestants(dry, arguments.heads, attention, dry_folder))
        gc.collect()
        if arguments.rounds:
            sides = [make() for make in contestants(setting, arguments.heads, attention, folder)]
            report(time_in_turn(sides, arguments.rounds))


if __name__ == "__main__":
    main()
