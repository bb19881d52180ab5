"""Who is compared by ``step.py``: our training step and that of transformers on PyTorch.

In: a setting, the same for all. Out: objects that make one step at a time. Each side starts from the same
weights (through our export) and gets the same batches, masks and optimizer settings.
"""

from dataclasses import dataclass, replace
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
from outlast.models.config import EncoderConfig
from outlast.models.params import flatten
from outlast.models.randomness import fold, row_keys
from outlast.objectives.loss import mean_loss
from outlast.objectives.mlm import MlmObjective
from outlast.recipe import Recipe, make_recipe
from outlast.recipe.text import text_tables
from outlast.run.assemble import make_learner
from outlast.run.kind import DataFacts, Learner
from outlast.training.optimizer import make_schedule
from outlast.training.step import make_train_step

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}

Head = Literal["gathered", "full"]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is trained. The same for every contestant of a comparison."""

    recipe: Recipe
    vocab_size: int
    torch_device: str = "cpu"

    @property
    def rows(self) -> int:
        return self.recipe.stream.global_batch_size

    @property
    def length(self) -> int:
        return self.recipe.stream.sequence_length

    @property
    def encoder(self) -> EncoderConfig:
        return self.learner("gathered").objective.model

    def learner(self, head: Head) -> Learner[MlmObjective]:
        slots = self.length if head == "full" else None
        _, objective = text_tables(self.recipe)
        recipe = replace(self.recipe, objective=replace(objective, max_predictions=slots))
        return make_learner(recipe, DataFacts(vocab_size=self.vocab_size, special_ids=SPECIAL_IDS))

    def batch(self, number: int) -> Arrays:
        """Return random tokens; every fourth row is real in its first half only."""
        ids = np.random.default_rng(number).integers(5, self.encoder.vocab_size, (self.rows, self.length))
        mask = np.ones((self.rows, self.length), np.int8)
        mask[::4, self.length // 2 :] = 0
        return {"input_ids": np.where(mask, ids, 0).astype(np.int32), "attention_mask": mask}

    def without_dropout(self) -> "Setting":
        model, _ = text_tables(self.recipe)
        model = replace(model, dropout=0.0, attention_dropout=0.0)
        return replace(self, recipe=replace(self.recipe, model=model))

    def with_training(self, **keys: Any) -> "Setting":
        training = replace(self.recipe.training, **keys)
        return replace(self, recipe=replace(self.recipe, training=training))


def make_setting(
    model: dict[str, Any],
    *,
    vocab_size: int,
    rows: int,
    length: int,
    torch_device: str = "cpu",
    **training: Any,
) -> Setting:
    """Return the setting of these keys of ``[model]`` and ``[training]``.

    ``compute_dtype`` is of activations and products; theirs by torch's autocast, as their Trainer has it.
    """
    tables = {
        "model": {"max_positions": max(512, length), **model},
        "stream": {"global_batch_size": rows, "sequence_length": length},
        "objective": {"mask_probability": 0.15},  # of every architecture, as the published figures were made
        "optimizer": {"learning_rate": 1e-4},
        "training": {"seed": 0, "total_steps": 1000, **training},
    }
    return Setting(
        recipe=make_recipe(tables, where="the setting"), vocab_size=vocab_size, torch_device=torch_device
    )


class Ours:
    """Outlast's own compiled step."""

    def __init__(self, setting: Setting, head: Head) -> None:
        self.name = f"ours, {head}"
        self._setting = setting
        learner = setting.learner(head)
        self._table = learner.objective.param_table
        self._state = learner.initial_state()
        self._step = make_train_step(
            learner.objective, learner.optimizer, learner.schedule, seed=learner.seed, num_microbatches=1
        )

    def advance(self, number: int) -> float:
        self._state, measured = self._step(self._state, self._setting.batch(number))
        jax.block_until_ready(self._state)
        return float(mean_loss(measured.terms))

    def temporary_bytes(self) -> int:
        """Return what the compiler sets aside for the step beside state and batch."""
        compiled: Any = self._step
        lowered = compiled.lower(self._state, self._setting.batch(0))
        return lowered.compile().memory_analysis().temp_size_in_bytes

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
        self._model.train().to(setting.torch_device)
        config = setting.recipe.optimizer
        parameters = list(self._model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(
            groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True
        )
        self._schedule = make_schedule(config, setting.recipe.training.total_steps)
        self._batches: dict[int, tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]] = {}

    def prepare(self, number: int) -> None:
        """Mask a step's batch as our step does, outside the time that is measured."""
        batch = self._setting.batch(number)
        learner = self._setting.learner("gathered")
        keys = fold(row_keys(learner.seed, "train", number, jnp.arange(self._setting.rows)), "masks")
        ids, mask = jnp.asarray(batch["input_ids"]), jnp.asarray(batch["attention_mask"])
        masked = learner.objective.mask(ids, mask, keys)
        labels = np.where(np.asarray(masked.weights) > 0, np.asarray(masked.labels), -100)
        device = self._setting.torch_device
        ids, mask, positions, labels = (
            torch.tensor(np.asarray(array).astype(np.int64), device=device)
            for array in (masked.input_ids, batch["attention_mask"], masked.positions, labels)
        )
        self._batches[number] = ({"input_ids": ids, "attention_mask": mask}, positions, labels)

    def advance(self, number: int) -> float:
        inputs, positions, labels = self._batches[number]
        for group in self._optimizer.param_groups:
            group["lr"] = float(self._schedule(number))
        self._optimizer.zero_grad()
        halved = self._setting.recipe.training.compute_dtype == "bfloat16"
        with torch.autocast(self._setting.torch_device, torch.bfloat16, enabled=halved):
            loss = self._loss(inputs, positions, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._setting.recipe.optimizer.clip_norm)
        self._optimizer.step()
        return loss.item()

    def weights(self) -> Arrays:
        return {name: value.detach().cpu().numpy().copy() for name, value in self._model.named_parameters()}

    def _loss(
        self, inputs: dict[str, torch.Tensor], positions: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        if self._head == "full":
            everywhere = torch.full_like(inputs["input_ids"], -100).scatter(1, positions, labels)
            return self._model(**inputs, labels=everywhere).loss
        hidden = self._model.base_model(**inputs).last_hidden_state
        chosen = torch.take_along_dim(hidden, positions[:, :, None], dim=1)
        return functional.cross_entropy(self._project(chosen).flatten(0, 1), labels.flatten())

    def _project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits: BERT and BigBird call their head cls, RoBERTa lm_head, ModernBERT has two parts."""
        if hasattr(self._model, "decoder"):
            return self._model.decoder(self._model.head(hidden))
        return (self._model.cls if hasattr(self._model, "cls") else self._model.lm_head)(hidden)


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
