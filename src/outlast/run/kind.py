"""What a kind of run brings, and what a recipe comes to before any array is made.

In: a ``Recipe``. Out: a ``Learner``, which needs no data set, and with the data ``Parts``. All that depends
on the kind of a run stands behind ``RunKind``; the rest of this room asks it and knows no kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import optax

from outlast.checkpoint.restore import Restored
from outlast.images.config import ImageStreamConfig
from outlast.objectives.loss import Objective
from outlast.recipe import Recipe
from outlast.storage import Store
from outlast.stream.examples import ExampleStream
from outlast.training.identity import Identity
from outlast.training.mesh import ONE_DEVICE, Layout
from outlast.training.optimizer import Schedule
from outlast.training.phases import Phases
from outlast.training.state import TrainState, initial_state

StreamT = TypeVar("StreamT", bound=ExampleStream)
ObjectiveT = TypeVar("ObjectiveT", bound=Objective)


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What a model must know of its data, and no recipe says; each kind has its own.

    Attributes:
        vocab_size, special_ids: of the tokenizer.
        tokenizer: its fingerprint, which is identity; None: there is none.
        num_classes: of the labels.
    """

    vocab_size: int = 0
    special_ids: Mapping[str, int] = field(default_factory=dict[str, int])
    tokenizer: str | None = None
    num_classes: int = 0


@dataclass(frozen=True, kw_only=True)
class Learner(Generic[ObjectiveT]):
    """What learns: the objective on its model, and how gradients become updates."""

    objective: ObjectiveT
    schedule: Schedule
    optimizer: optax.GradientTransformation
    seed: int

    def initial_state(self, layout: Layout = ONE_DEVICE) -> TrainState:
        """Return the state of step 0, a pure function of the seed."""
        objective = self.objective
        return initial_state(objective.param_table, self.optimizer, self.seed, objective.state_table, layout)


@dataclass(frozen=True, kw_only=True)
class Parts(Generic[StreamT, ObjectiveT]):
    """What a recipe and its data come to, before any array is made.

    Attributes:
        recipe: in steps, whatever it was measured in.
        identity: what a resume may not change.
        layout: among which devices it trains; what only reads a checkpoint uses one.
    """

    kind: "RunKind[StreamT, ObjectiveT]"
    recipe: Recipe
    phases: Phases[StreamT]
    facts: DataFacts
    learner: Learner[ObjectiveT]
    identity: Identity
    layout: Layout = ONE_DEVICE

    @property
    def stream(self) -> StreamT:
        """The stream of the first phase; its data sets are those of all phases."""
        return self.phases.streams[0]


class Former(NamedTuple):
    """A checkpoint of a run directory, or of an import, beside the run that reads it.

    Attributes:
        description: what its directory says of it.
        other_tokenizer: whether its parameters are wanted although the data are of other pieces.
    """

    run_dir: str
    restored: Restored
    description: Mapping[str, Any]
    other_tokenizer: bool = False


class RunKind(Protocol[StreamT, ObjectiveT]):
    """What a kind of run brings. The loop, the checkpoints and the metrics are the same for all."""

    architectures: frozenset[str]
    """Of the models that it trains."""
    prefix: str
    """Of the arrays in a checkpoint that an artifact and a new run are made of."""
    held_out_remedy: str
    """How a data set gets a held-out split."""

    def as_begun(self, recipe: Recipe, store: Store) -> Recipe:
        """Return the recipe with the defaults that the run in a directory began with."""
        return recipe

    def open_stream(self, recipe: Recipe, config: ImageStreamConfig, split: str = "train") -> StreamT:
        """Open a split. Raises ConfigError, ShardError."""
        ...

    def facts_of(self, stream: StreamT) -> DataFacts:
        """Return what the model must know of the data."""
        ...

    def make_objective(self, recipe: Recipe, facts: DataFacts) -> ObjectiveT:
        """Return the objective on the model that the recipe describes. Raises ConfigError."""
        ...

    def check_examples(self, stream: StreamT, objective: ObjectiveT) -> None:
        """Check that the model can read the examples. Raises ConfigError."""

    def check_exportable(self, parts: Parts[StreamT, ObjectiveT]) -> None:
        """Refuse a run whose ``export`` would be refused. Raises ConfigError, TokenizerError."""

    def check_same_labels(self, former: Former, parts: Parts[StreamT, ObjectiveT]) -> None:
        """Check that a checkpoint is of the pieces, or the classes, of the data. Raises ConfigError."""

    def start_from(self, former: Former, state: TrainState, parts: Parts[StreamT, ObjectiveT]) -> TrainState:
        """Return the state with the parameters of a checkpoint. Raises ConfigError."""
        ...

    def keep_labels(self, stream: StreamT, store: Store) -> dict[str, Any]:
        """Write into a run directory what an artifact says of its labels; return fields for run.json."""
        ...

    def export(self, former: Former, store: Store, out: Path, provenance: dict[str, Any]) -> Path:
        """Write a checkpoint as a Hugging Face model folder, from its run directory alone; return it."""
        ...
