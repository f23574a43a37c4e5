"""Keys of `[algorithm]` that several algorithms have: what a key means is told once, defaults are the algorithm's own.

A function gives the field of one key; a class has keys that belong together, and what follows from them alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from mlxe_async.algorithms.interface import STAYS, needs, needs_any, needs_each
from mlxe_async.networks import BODIES, Activation, Body, Precision

if TYPE_CHECKING:
    from mlxe_async.networks.mixed import Mixed

Sizes = tuple[Annotated[int, Field(ge=1, le=65536)], ...]
Extra = dict[str, JsonValue]
SOME: Extra = {"some": True}
BOOTSTRAPS = needs(discount={"above": 0})
OLDER: Extra = {"schedule.policy_lag": {"above": 0}}  # rollouts than the weights that learn from them
SOME_ENTROPY, SOME_CRITIC = needs(entropy={"above": 0}), needs(value_coefficient={"above": 0})
HIDDEN = needs_any(common=SOME, policy=SOME, value=SOME)  # of what is done between two layers


def key(default: Any, text: str, extra: Extra | None = None, **limits: float) -> Any:
    """A key: its default, what a higher value does, when it has an effect (see `needs`), and pydantic's limits."""
    made: Any = Field  # pydantic's overloads know no limits by name and value
    return made(default, description=text, json_schema_extra=extra, **limits)


def discount(default: float, extra: Extra | None = None) -> Any:
    """Of what comes a step later."""
    return key(
        default, "Higher looks further ahead; what it estimates is noisier, and learned later.", extra, ge=0, le=1
    )


def gae_lambda(default: float) -> Any:
    """Of generalised advantages."""
    text = "Higher trusts rewards more and the critic less."
    return key(default, text, needs(discount={"above": 0}), ge=0, le=1)


def n_step(default: int, extra: Extra | None = None) -> Any:
    """Rewards before the critic is asked."""
    text = "Rewards counted before the critic is asked; higher trusts it less, and learns of consequences sooner."
    return key(default, text, extra, ge=1, le=100_000)


def return_scale(default: float, extra: Extra | None = None) -> Any:
    """Factor for rewards."""
    return key(
        default, "Factor for rewards; higher makes values and steps larger, and an entropy bonus smaller.", extra, gt=0
    )


def normalise(default: bool) -> Any:
    """Of observations; see `NetworkFields`."""
    return key(
        default, "Show (obs - mean) / deviation of what was seen so far; of pictures, numbers beside them.", STAYS
    )


def rows_per_update(default: int) -> Any:
    """Of rollouts."""
    text = "Rows to gather before an update; more are smoother and fewer steps. 0: one rollout of each executor."
    return key(default, text, ge=0)


def value_coefficient(default: float) -> Any:
    """Of the critic's loss."""
    return key(default, "Higher favours the critic in layers that are shared.", ge=0)


def entropy(default: float) -> Any:
    """Of the policy's entropy."""
    return key(default, "Higher keeps the policy random for longer.", ge=0)


def batch(default: int) -> Any:
    """Of a replay memory."""
    return key(default, "Rows per update; more are smoother and slower.", ge=1)


def train_every() -> Any:
    """Of a replay memory."""
    text = "New rows per update; higher replays every row less often."
    return key(2, text, needs(min_updates=[0]), ge=1, le=10**6)


def target_every() -> Any:
    """Of a target network."""
    return key(128, "Updates between moves of the target network; higher is slower.", BOOTSTRAPS, ge=1)


def target_rate() -> Any:
    """Of a target network."""
    return key(1.0, "Share of the way it moves; higher follows faster.", BOOTSTRAPS, gt=0, le=1)


def learning_rate(default: float) -> Any:
    """Of the optimiser, at the start."""
    return key(default, "Higher learns faster, until it forgets or diverges.", gt=0)


def learning_rate_last(default: float) -> Any:
    """Of the optimiser, in the end."""
    return key(default, "Rate after anneal_steps; higher keeps learning faster.", ge=0)


def anneal_steps(default: int, *, alone: bool = False) -> Any:
    """Between the two; `alone`: nothing but the learning rate is annealed by it."""
    text = "Environment steps until learning_rate_last; more fall slower."
    falls: Extra = {"learning_rate": {"not": "learning_rate_last"}}
    return key(default, text, needs(falls) if alone else needs_any(**falls, annealed=SOME), ge=1)


def annealed() -> Any:
    """Of a policy that has nothing else that could be."""
    return key((), "What falls to 0 within anneal_steps.", needs_each(entropy=SOME_ENTROPY))


def max_gradient_norm(default: float) -> Any:
    """Of all weights together."""
    return key(default, "Longer gradients are cut to this; 0 never cuts.", ge=0)


class NetworkFields(BaseModel):
    """What our networks have beside their layers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    body: Body = Field(
        "none",
        description="Convolutions before all layers. nature: three, which pictures get where nothing is said; "
        "small: 16 of 3 x 3, for grids; elu: four of 32.",
        json_schema_extra=STAYS,
    )
    precision: Precision = Field(
        "float32",
        description="tf32 (on a GPU) and bfloat16 compute convolutions faster and coarser; weights stay float32.",
    )
    input_scale: tuple[float, ...] = Field(
        (1.0,), description="Factor per input; raising one makes it matter sooner.", json_schema_extra=STAYS
    )

    @model_validator(mode="after")
    def _fits_the_body(self) -> NetworkFields:
        if self.body == "none":
            if self.precision != "float32":
                raise ValueError(
                    f'precision = "{self.precision}" needs a body of convolutions, such as "nature": small layers are '
                    "evaluated by numpy, in float32, and would gain nothing"
                )
            return self
        if "layer_norm" in self.model_fields_set and getattr(self, "layer_norm", False):
            raise ValueError(f'body = "{self.body}" needs layer_norm = false: it is for layers without convolutions')
        for name in ("normalise", "layer_norm"):
            if name in type(self).model_fields and name not in self.model_fields_set:
                self.__dict__[name] = False  # the default follows the body, also in a class whose default is true
        return self

    def refuse_factors(self, mixed: Mixed | None) -> None:
        """Refuse factors where nothing but pictures is shown, whose pixels have one of their own.

        Raises:
            ValueError: it is so.
        """
        has_numbers = mixed is not None and mixed.numbers
        of_body = BODIES[self.body].scale if self.body in BODIES else None
        if self.input_scale != (1.0,) and of_body is not None and not has_numbers:
            raise ValueError(
                f'input_scale: body = "{self.body}" needs input_scale = [1.0]: pixels are brought to 0 ... 1 anyway'
            )


class ActorCriticFields(NetworkFields):
    """An actor and a critic, side by side or on layers that they share."""

    common: Sizes = Field(
        (),
        description="Layers that actor and critic share; more let them learn from each other.",
        json_schema_extra=STAYS,
    )
    policy: Sizes = Field(
        (64, 64),
        description="The actor's own layers; more represent finer policies, but slower.",
        json_schema_extra=STAYS,
    )
    value: Sizes = Field(
        (64, 64),
        description="The critic's own layers; more represent finer values, but slower.",
        json_schema_extra=STAYS,
    )
    activation: Activation = Field(
        "tanh", description="tanh gives smooth policies, relu sharper ones.", json_schema_extra=STAYS | HIDDEN
    )
    layer_norm: bool = Field(
        False,
        description="Normalise each layer: steadier when inputs differ much in size.",
        json_schema_extra=STAYS | HIDDEN,
    )
    normalise: bool = normalise(False)


class ValueNetworkFields(NetworkFields):
    """A network with one value for each action."""

    layers: Sizes = Field(
        (128, 128), description="Hidden layers; more represent finer values, but slower.", json_schema_extra=STAYS
    )
    activation: Activation = Field(
        "relu",
        description="relu learns sharp values fast, tanh bounds what is far away.",
        json_schema_extra=STAYS | needs(layers=SOME),
    )
    layer_norm: bool = Field(
        True,
        description="Normalise each layer: values grow more slowly and steadily.",
        json_schema_extra=STAYS | needs(layers=SOME),
    )


class ReplayedFields(BaseModel):
    """What is done with replayed rows, and with the weights they lead to."""

    mirror: bool = Field(
        True,
        description="Mirror half of each batch if the task declares a symmetry.",
        json_schema_extra=needs({"task.mirror": [True]}),
    )
    average: float = Field(0.0, ge=0, le=1, description="Publish a running average; higher follows faster, 0: none.")
