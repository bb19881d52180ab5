"""Several devices make the update of one, and the compiled step holds the collectives that were asked for.

Each case runs in a process of its own, with four CPU devices: one compilation for one device, one for the
mesh, then twenty steps of both.
"""

import math
import sys
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.models.params import flatten
from outlast.recipe import make_recipe
from outlast.run.assemble import make_learner
from outlast.run.kind import DataFacts, Learner
from outlast.training.config import MeshConfig
from outlast.training.mesh import ONE_DEVICE, Layout, make_layout
from outlast.training.state import TrainState
from outlast.training.step import make_train_step
from support.devices import result_on_devices
from support.programs import Moved, read_program

NUM_DEVICES, ROWS, LENGTH, STEPS = 4, 64, 16, 20
SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
VOCAB_SIZE, NUM_CLASSES = 60, 8
FEW_BYTES = 512
"""Of scalars: weights and sums of losses, and squares of gradients."""


class Case(NamedTuple):
    architecture: str
    data: int
    fsdp: int
    num_microbatches: int = 1
    remat: str = "selective"

    def __str__(self) -> str:
        parts = f", {self.num_microbatches} microbatches" if self.num_microbatches > 1 else ""
        return f"{self.architecture} {self.data} x {self.fsdp}{parts}, {self.remat}"

    @property
    def length(self) -> int:
        return 32 if self.architecture == "bigbird" else LENGTH


def learner_of(case: Case) -> Learner[Any]:
    """Return a model of two layers and more; BERT with pairs, ModernBERT with documents kept apart."""
    name = case.architecture
    if name == "resnet":
        tables: dict[str, Any] = {
            "stream": {"packing": "images", "global_batch_size": ROWS},
            "model": {"preset": "resnet18", "depths": [3, 1], "widths": [8, 16]},
            "optimizer": {"name": "sgd", "learning_rate": 0.02},
        }
        return make_learner(make_recipe(tables, where="a test"), DataFacts(num_classes=NUM_CLASSES))
    model = {"hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "num_layers": 2}
    objective: dict[str, Any] = {"modernbert": {"separate_documents": True}, "bert": {"next_sentence": True}}
    tables = {
        "stream": {"packing": "pairs" if name == "bert" else "blocks", "sequence_length": case.length},
        "model": {"architecture": name, "max_positions": 64, **model},
        "objective": objective.get(name, {}),
        "optimizer": {"learning_rate": 1e-3},
        "training": {"remat": case.remat, "num_microbatches": case.num_microbatches},
    }
    if name == "bigbird":
        tables["model"] |= {"block_size": 4, "num_random_blocks": 1, "random_blocks": "uniform"}
    recipe = make_recipe(tables, where="a test")
    return make_learner(recipe, DataFacts(vocab_size=VOCAB_SIZE, special_ids=SPECIAL_IDS))


def batch_of(case: Case, step: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(step)
    if case.architecture == "resnet":
        # Each device's rows are of a brightness of their own, so their own statistics would be far off.
        bright = np.repeat(np.arange(NUM_DEVICES) * 40, ROWS // NUM_DEVICES)[:, None, None, None]
        images = (rng.integers(0, 80, (ROWS, 8, 8, 3)) + bright).astype(np.uint8)
        return {"images": images, "labels": rng.integers(0, NUM_CLASSES, ROWS).astype(np.int32)}
    ids = rng.integers(3, VOCAB_SIZE, (ROWS, case.length)).astype(np.int32)
    mask = (np.arange(case.length) < rng.integers(4, case.length + 1, (ROWS, 1))).astype(np.int8)
    batch = {"input_ids": np.where(mask, ids, 0).astype(np.int32), "attention_mask": mask}
    if case.architecture == "bert":
        batch["next_sentence_label"] = (np.arange(ROWS) % 3 == 0).astype(np.int32)
    return batch


class Trained(NamedTuple):
    state: TrainState
    losses: list[float]
    program: Any
    unlike: list[str]
    """Arrays of which two devices held other bits after some step."""


def trained(case: Case, layout: Layout) -> Trained:
    learner = learner_of(case)
    step: Any = make_train_step(
        learner.objective,
        learner.optimizer,
        learner.schedule,
        seed=learner.seed,
        num_microbatches=case.num_microbatches,
        layout=layout,
    )
    state = learner.initial_state(layout)
    program = step.lower(state, layout.placed(batch_of(case, 0))).compile()
    losses: list[float] = []
    unlike: list[str] = []
    for number in range(STEPS):
        state, measured = program(state, layout.placed(batch_of(case, number)))
        terms = measured.terms.values()
        losses.append(sum(float(term.loss_sum) / float(term.weight_sum) for term in terms))
        unlike += unlike_replicas(state)
    return Trained(state, losses, program, unlike)


def unlike_replicas(state: TrainState) -> list[str]:
    found: list[str] = []
    for path, array in jax.tree_util.tree_leaves_with_path(state):
        by_place: dict[str, bytes] = {}
        for shard in array.addressable_shards:
            content = np.asarray(shard.data).tobytes()
            if by_place.setdefault(str(shard.index), content) != content:
                found.append(jax.tree_util.keystr(path))
    return found


def layout_of(case: Case) -> Layout:
    mesh = MeshConfig(data=case.data, fsdp=case.fsdp)
    return make_layout(mesh, plan=(), num_microbatches=case.num_microbatches, state_bytes=0)


def compared(*fields: Any) -> dict[str, Any]:
    """Return how a case differs from one device, and what its program moves; in a process with devices."""
    case = Case(*fields)
    layout = layout_of(case)
    whole, divided = trained(case, ONE_DEVICE), trained(case, layout)
    one, other = (
        np.concatenate(
            [np.ravel(np.asarray(x)) for x in jax.tree.leaves((run.state.params, run.state.model_state))]
        )
        for run in (whole, divided)
    )
    programs = [read_program(run.program.as_text()) for run in (whole, divided)]
    return {
        "losses": [whole.losses, divided.losses],
        "distance": float(np.linalg.norm(one - other) / np.linalg.norm(one)),
        "unlike": divided.unlike,
        "product_flops": [program.product_flops for program in programs],
        "collectives": programs[1].collectives,
        "params": owned(case, layout),
    }


class Owned(NamedTuple):
    """A parameter, of stacked layers one."""

    name: str
    shape: tuple[int, ...]
    stacked: bool
    layers: int
    loops: int
    """Layers of the loop that uses it: ModernBERT's first one goes along with an attention norm of ones."""
    divisor: int

    @property
    def bytes(self) -> int:
        return 4 * math.prod(self.shape)


def owned(case: Case, layout: Layout) -> list[Owned]:
    return [
        Owned(
            name,
            param.shape[param.stacked :],
            param.stacked,
            param.shape[0] if param.stacked else 1,
            param.shape[0] + (param.first_layer if case.architecture == "modernbert" else 0)
            if param.stacked
            else 1,
            layout.shape["fsdp"] if tuple(layout.spec_of(param)) else 1,
        )
        for name, param in flatten(learner_of(case).objective.param_table).items()
    ]


ORDINARY = [
    Case("bert", data=2, fsdp=2, num_microbatches=2),
    Case("modernbert", data=4, fsdp=1),
    Case("resnet", data=2, fsdp=2),
]
LONG = [
    Case(name, data, fsdp, num_microbatches, remat)
    for name in ("bert", "roberta", "bigbird", "modernbert", "resnet")
    for data, fsdp in ((4, 1), (1, 4), (2, 2))
    for num_microbatches, remat in (((1, "none"),) if name == "resnet" else ((1, "none"), (2, "selective")))
]


def check(case: Case) -> None:
    flags = "--xla_backend_optimization_level=0"  # a third of the time to compile
    found = result_on_devices(NUM_DEVICES, __file__, f"compared(*{tuple(case)!r})", flags)
    tolerance = 2e-5 if case.architecture == "resnet" else 1e-6
    whole, divided = found["losses"]
    np.testing.assert_allclose(divided, whole, rtol=tolerance)
    assert found["distance"] < tolerance
    assert not found["unlike"]
    whole, divided = found["product_flops"]
    # Where layers are gathered, remat "none" keeps what attention computed for a head, which is else computed
    # once more: there it is less.
    least = 0 if case.fsdp > 1 and case.remat == "none" else 0.98
    assert least * whole <= divided * NUM_DEVICES <= 1.02 * whole
    whole_losses, divided_losses = (np.array(each) for each in found["losses"])
    apart = np.max(np.abs(divided_losses / whole_losses - 1))
    sys.stdout.write(f"{case}: losses {apart:.1e}, parameters {found['distance']:.1e} apart\n")
    collectives = [Moved(kind, tuple(shape), *rest) for kind, shape, *rest in found["collectives"]]
    for kind in sorted({each.kind for each in collectives}):
        own = [each for each in collectives if each.kind == kind]
        arrays = sum(each.times for each in own)
        sys.stdout.write(f"  {kind}: {arrays} arrays, {total_bytes(own)} bytes\n")
    check_collectives(case, collectives, [Owned(*fields) for fields in found["params"]])


def check_collectives(case: Case, collectives: list[Moved], params: list[Owned]) -> None:
    """Compare what a step moves with what the layout says: what is gathered is one parameter after the other,
    of stacked layers one layer, and gradients are added up once.
    """
    assert {each.kind for each in collectives} <= {"all-reduce", "all-gather", "reduce-scatter"}
    of = {
        kind: [each for each in collectives if each.kind == kind]
        for kind in ("all-reduce", "all-gather", "reduce-scatter")
    }
    divided = [param for param in params if param.divisor > 1]
    assert all(each.shape in [tuple(param.shape) for param in divided] for each in of["all-gather"])
    # The backward pass gathers a layer again, but not what it does not need of it, such as a bias. What is no
    # layer is gathered once, or once for each microbatch.
    parts = case.num_microbatches
    least = sum(param.bytes * (param.loops * parts if param.stacked else 1) for param in divided)
    most = sum(param.bytes * parts * (2 * param.loops if param.stacked else 1) for param in divided)
    assert least <= total_bytes(of["all-gather"]) <= most
    scattered = sum(param.bytes * param.loops * parts // param.divisor for param in divided)
    # A shortcut's norm is added to the last one of its block, so their biases have one gradient.
    twins = sum(param.bytes // param.divisor for param in divided if "shortcut/norm/bias" in param.name)
    assert scattered - twins <= total_bytes(of["reduce-scatter"]) <= scattered
    added = sum(
        param.bytes * param.layers // param.divisor
        for param in params
        if case.data > 1 or (case.fsdp > 1 and param.divisor == 1)
    )
    norms = sum(param.bytes * param.layers for param in params if param.name.endswith("norm/scale"))
    # Mean and variance of each batch norm, forward, backward and perhaps forward again.
    statistics = 6 * norms if case.architecture == "resnet" else 0
    assert added - twins <= total_bytes(of["all-reduce"]) <= added + statistics + FEW_BYTES


def total_bytes(collectives: list[Moved]) -> int:
    return sum(each.bytes * each.times for each in collectives)


@pytest.mark.parametrize("case", ORDINARY, ids=str)
def test_four_devices_make_the_update_of_one(case: Case) -> None:
    check(case)


@pytest.mark.long
@pytest.mark.parametrize("case", LONG, ids=str)
def test_every_mesh_makes_the_update_of_one_device(case: Case) -> None:
    check(case)
