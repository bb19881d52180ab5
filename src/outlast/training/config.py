"""The ``[optimizer]`` and ``[training]`` tables."""

from typing import Literal

import pydantic
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from outlast.config import Location, Operation, table


@table
class OptimizerConfig:
    name: Literal["adamw", "adam", "sgd", "adafactor"] = "adamw"
    """What turns gradients into updates."""
    learning_rate: PositiveFloat = 5e-4
    """The highest learning rate, reached at the end of the warm-up; not reached by a run that is shorter."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled (adamw, adafactor); of sgd a part of the gradient, before the momentum, as in PyTorch."""
    decay_biases_and_norms: bool = False
    """Whether weight decay also applies to biases and to the scales of norms."""
    beta1: float = pydantic.Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment; the momentum of sgd."""
    beta2: float = pydantic.Field(default=0.98, ge=0, lt=1)
    """Decay of the second moment, of adam and adamw."""
    epsilon: PositiveFloat = 1e-6
    """Added to the root of the second moment (adam, adamw), or to the squares of the gradient (adafactor)."""
    bias_correction: bool = True
    """Set to false for BERT's own AdamW, which has none."""
    clip_norm: PositiveFloat = 1.0
    """Largest global norm of the gradient; inf: no clipping."""
    schedule: Literal["linear", "cosine", "constant", "step"] = "linear"
    """After the warm-up: linear or cosine to the end; constant, then linear over decay_steps; in steps."""
    warmup_steps: NonNegativeInt = 0
    """First steps, in which the learning rate rises linearly from 0 to its highest."""
    warmup_epochs: NonNegativeFloat | None = None
    """In place of warmup_steps: passes over the training split. Not with phases."""
    final_fraction: float = pydantic.Field(default=0.0, ge=0, le=1)
    """The learning rate at the end, as a fraction of the highest."""
    decay_steps: NonNegativeInt = 0
    """constant: the last steps, in which the rate falls; all after the warm-up where those are fewer. step:
    the steps between two divisions, counted from the start of the run."""
    decay_epochs: PositiveFloat | None = None
    """In place of decay_steps. Not with phases."""
    decay_divisor: PositiveFloat = 5.0
    """step: what the rate is divided by."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "OptimizerConfig":
        if self.schedule == "step" and not (self.decay_steps or self.decay_epochs):
            raise ValueError("schedule = 'step' needs decay_steps, the steps between two divisions")
        for steps, epochs in (("warmup_steps", "warmup_epochs"), ("decay_steps", "decay_epochs")):
            if getattr(self, steps) and getattr(self, epochs) is not None:
                raise ValueError(f"{steps} and {epochs} say the same thing: give one of the two")
        if self.name in ("sgd", "adafactor") and not self.bias_correction:
            raise ValueError(
                f"bias_correction = false has no meaning for {self.name}; it belongs to adam and adamw"
            )
        return self


@table
class PhaseConfig:
    """One of ``[[training.phases]]``: steps of a length and a batch of their own."""

    steps: PositiveInt
    """Updates in this phase."""
    sequence_length: PositiveInt | None = None
    """Default: stream.sequence_length."""
    global_batch_size: PositiveInt | None = None
    """Default: stream.global_batch_size."""


@table
class TrainingConfig:
    total_steps: PositiveInt = 1000
    """Updates of the parameters. With phases it is the sum of theirs, and can be left out. It may change
    where that leaves every learning rate so far as it was."""
    epochs: PositiveFloat | None = None
    """In place of total_steps: passes over the training split. Not with phases."""
    phases: tuple[PhaseConfig, ...] = ()
    """Parts of the run, one after the other, such as 128 tokens and then 512. Parameters, optimizer and
    learning rates go on from one to the next."""
    seed: NonNegativeInt = 0
    """Of the initial parameters, the order of the data, masks and dropout."""
    num_microbatches: Operation[PositiveInt] = 1
    """Parts that a batch is computed in, one after the other, to save memory; changes rounding only."""
    compute_dtype: Operation[Literal["float32", "bfloat16"]] = "float32"
    """Of activations and products; parameters, softmax, norms and loss stay float32."""
    remat: Operation[Literal["none", "selective", "layer"]] = "selective"
    """What the backward pass computes again: nothing, all but the products, or whole layers."""
    attention_kernel: Operation[Literal["auto", "plain", "fused"]] = "auto"
    """What computes attention: plain is XLA's own products and softmax; fused a kernel that keeps the scores
    out of memory, on GPU and TPU; auto the one that is known to be worth it on the device."""
    log_interval_steps: Operation[PositiveInt] = 10
    """Steps between two lines of metrics."""
    evaluation_interval_steps: Operation[PositiveInt | None] = None
    """Steps between two evaluations; None: at the end only."""
    evaluation_examples: Operation[PositiveInt | None] = None
    """Examples of the validation split that an evaluation during training reads, spread evenly; None: all.
    The verb evaluate reads all."""
    compilation_cache_dir: Location[Operation[str | None]] = "~/.cache/outlast/compilation"
    """Where compiled programs are kept, so that a restart need not compile again."""


@table
class MeshConfig:
    data: Operation[PositiveInt | None] = None
    """Groups of devices that share the rows of a batch and have all parameters each. Default: as many as
    there are devices, divided by fsdp."""
    fsdp: Operation[PositiveInt | None] = None
    """Devices of a group: they share its rows, and parameters, gradients and the state of the optimizer are
    divided among them. Default: 1; where these do not fit into the memory of one device, all devices."""
    allow_idle: Operation[bool] = False
    """Whether devices may be left without work; else a mesh that is smaller than the machine is refused."""
