"""The file of ``simcluster rl``: rollouts, reward and weight updates around a scenario that trains.

Terms are those of the frameworks: an engine generates samples of prompts with the policy's weights; the trainer needs
log-probabilities of the old policy, and of a reference for a KL penalty; its new weights go back to the engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, model_validator

from simcluster.base.errors import InputError
from simcluster.base.texts import escape_line_breaks
from simcluster.base.units import Seconds
from simcluster.documents.base_spec import Count, Spec
from simcluster.documents.diagnostics import KeyProblem, RuleError
from simcluster.documents.overrides import apply_overrides
from simcluster.documents.yaml_documents import Document, read_document, validate_document
from simcluster.model.packing import Lengths
from simcluster.scenario.data_section import TokensPerSecond
from simcluster.scenario.document_resolution import read_histograms

PARAMETER_BYTES = {"bf16": 2.0, "fp8": 1.0}  # of engines, by precision
Share = Annotated[float, Field(strict=False, gt=0, le=1)]


class DecodeRoofline(Spec):
    """Decode rate from the GPU's data sheet: the default, an upper limit rather than a measurement."""

    kind: Literal["roofline"] = "roofline"
    level: Share = 1.0
    """Share of the roofline that the engine reaches."""


class DecodeRates(Spec):
    """Measured rates of one engine."""

    kind: Literal["rates"]
    tokens_per_s: Annotated[tuple[tuple[Count, TokensPerSecond], ...], Field(min_length=1, max_length=1000)]
    """Pairs of the number of running sequences and the tokens per second that they generate together; linear between
    pairs and from (0, 0) to the first, constant above the last."""
    prefill_tokens_per_s: TokensPerSecond
    """Prompt tokens that the engine processes per second, during which its sequences wait."""

    @model_validator(mode="after")
    def _check_rates(self) -> Self:
        counts = [count for count, _ in self.tokens_per_s]
        if sorted(set(counts)) != counts:
            raise InputError(f"tokens_per_s has sequences {counts}; list them in increasing order, each once")
        return self


def _to_length_law(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"kind": "lognormal", "median": value, "sigma": 0}
    return value


class RolloutSpec(Spec):
    """Generation of samples: how many, how long, on which GPUs, and how fast."""

    gpus: Count | None = None
    """GPUs that only generate, after those of the trainer; required with placement separate."""
    gpus_per_engine: Count = 1
    """GPUs of one inference engine, over which it splits the model (tensor parallelism)."""
    prompts: Count
    """Prompts per RL step."""
    samples: Count = 1
    """Responses that are sampled for each prompt (the group size of GRPO)."""
    prompt_tokens: Count
    """Tokens of a prompt."""
    response: Annotated[Lengths, BeforeValidator(_to_length_law)]
    """Distribution of response lengths, in tokens; a number: all responses are that long."""
    max_response: Count | None = None
    """Tokens after which a response is cut; default: what model.sequence_length leaves after the prompt."""
    concurrency: Count = 256
    """Sequences that one engine runs at the same time (vLLM's max_num_seqs)."""
    decode: Annotated[DecodeRoofline | DecodeRates, Field(discriminator="kind")] = DecodeRoofline()
    """Rate of an engine: a roofline, or measured rates."""


class RewardSpec(Spec):
    """Reward of a sample, computed away from the GPUs of rollouts and trainer as soon as the sample ends."""

    seconds: Seconds
    """Time that one worker takes to score one sample."""
    workers: Count | None = None
    """Samples that are scored at the same time; default: all."""


class WeightSpec(Spec):
    """Update of the engines' weights after each training step."""

    precision: Literal["bf16", "fp8"] = "bf16"
    """Precision of the weights that travel and that the engines compute with; the KV cache is in 16 bits."""
    method: Literal["broadcast", "send"] = "broadcast"
    """broadcast: the ranks that share a pipeline stage gather whole tensors, and one of them broadcasts to all engines;
    send: each engine GPU receives only its shard, from the trainer ranks that hold it."""
    offload: StrictBool = False
    """Whether the trainer's model state is copied to host memory during rollouts (placement colocated)."""


class RlSpec(Spec):
    """The file of ``simcluster rl``: one step of reinforcement learning around a scenario that trains."""

    name: Annotated[str, AfterValidator(escape_line_breaks)] = "RL step"
    """Name in outputs."""
    trainer: str
    """Scenario of the trainer: a file next to this one, or a built-in name. The samples determine its
    training.global_batch and the documents in its sequences."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Changes to keys of the trainer's scenario, as in parallel.tp: 2, or nested: {parallel: {tp: 2}}."""
    placement: Literal["separate", "colocated"] = "separate"
    """Whether rollouts have separate GPUs of the trainer's cluster, or take turns with the trainer on its GPUs."""
    steps_off: Annotated[int, Field(strict=True, ge=0, le=64)] = 0
    """Training steps that the weights of a batch's rollouts may lack; 0: rollouts and training alternate."""
    in_flight: StrictBool = False
    """Whether engines exchange weights while sequences run; default: they first finish the batches they have begun."""
    steps: Annotated[int, Field(strict=True, ge=2, le=1000)] = 16
    """RL steps to simulate; those after the first steps_off + 1 are reported."""
    seed: Annotated[int, Field(strict=True, ge=0)] = 0
    """Random seed of the response lengths."""
    rollout: RolloutSpec
    """Generation of samples."""
    reward: RewardSpec | None = None
    """Reward computation; default: it takes no time."""
    log_probs: tuple[Literal["old", "reference"], ...] = ("old",)
    """Policies whose log-probabilities the trainer's GPUs compute with a forward pass over all samples."""
    updates: Count = 1
    """Optimizer steps per RL step, each on an equal part of the samples."""
    packing: Literal["pad", "first_fit", "first_fit_decreasing"] = "first_fit_decreasing"
    """Rule that packs samples into the trainer's sequences; pad: one sample per sequence. Attention stays within
    samples, and all microbatches have equal attention work."""
    weights: WeightSpec = WeightSpec()
    """Update of the engines' weights."""

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        if broken := list(self._broken_rules()):
            raise RuleError(broken)
        return self

    def _broken_rules(self) -> Iterator[KeyProblem]:
        rollout, apart = self.rollout, self.placement == "separate"
        if rollout.prompts * rollout.samples > 1_000_000:  # each is drawn and simulated
            what = f"prompts {rollout.prompts:,} x samples {rollout.samples:,} is more than 1,000,000 samples per step"
            yield ("rollout", "prompts"), f"{what}; lower one of them"
        if apart and rollout.gpus is None:
            yield ("rollout",), "gpus is missing: placement separate needs it; set it, or placement: colocated"
        if not apart and rollout.gpus is not None:
            yield ("rollout", "gpus"), "rollouts use the trainer's GPUs with placement colocated; remove it"
        if not apart and self.steps_off:
            yield ("steps_off",), "GPUs that take turns cannot overlap; set it to 0, or placement: separate"
        if self.in_flight and not self.steps_off:
            yield ("in_flight",), "no sequence runs at an update of the weights with steps_off 0; remove it"
        if apart and self.weights.offload:
            yield ("weights", "offload"), "engines do not share GPUs with placement separate; remove it"
        if (rollout.gpus or 0) % rollout.gpus_per_engine:
            what = f"{rollout.gpus} is not divisible by gpus_per_engine {rollout.gpus_per_engine}; use a multiple"
            yield ("rollout", "gpus"), what
        if self.steps < self.steps_off + 2:
            yield ("steps",), f"no step is left to report after the first {self.steps_off + 1}; use more"
        if len(set(self.log_probs)) < len(self.log_probs):
            yield ("log_probs",), f"{list(self.log_probs)} names a policy twice; name each once"


def list_changes(section: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and value of each key in nested sections, so that other keys of a section stay.

    >>> [*list_changes({"parallel": {"tp": 2}, "training.micro_batch": 4})]
    [('parallel.tp', 2), ('training.micro_batch', 4)]
    """
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from list_changes(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


class RlDocument(NamedTuple):
    """A validated file of ``simcluster rl``, and the document it was read from."""

    spec: RlSpec
    document: Document


def load_rl(path: str | Path, overrides: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> RlDocument:
    """Read the file of ``simcluster rl``; ``overrides`` change its values at dotted paths."""
    document = apply_overrides(read_document(Path(path)), overrides)
    if rollout := document.data.get("rollout"):
        rollout = read_histograms(document, ("rollout",), rollout, ("response",))
        document = replace(document, data={**document.data, "rollout": rollout})
    return RlDocument(validate_document(RlSpec, document), document)
