"""Keys of `[algorithm]` that several algorithms have: what a key means is told once, defaults are the algorithm's own.

A function gives the field of one key; a class has keys that belong together, and what follows from them alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mlxe_async.algorithms.interface import STAYS
from mlxe_async.networks import BODIES, Activation, Body, Precision

if TYPE_CHECKING:
    from mlxe_async.networks.mixed import Mixed

Sizes = tuple[Annotated[int, Field(ge=1, le=65536)], ...]
Condition = str | dict[str, str]
BOOTSTRAPS, OLDER = "discount > 0", "schedule.policy_lag > 0"
"""Conditions, see `needs`. Rollouts are older than the weights that learn from them: `OLDER`."""
SOME_ENTROPY, SOME_CRITIC = "entropy > 0", "value_coefficient > 0"
RATE_FALLS = "learning_rate != learning_rate_last"
HIDDEN = "common or policy or value"  # of what is done between two layers
REMEMBERS, DILATED = 'cell != "none"', 'cell == "dilated"'
MIRRORS = 'task.mirror and cell == "none"'  # stored states of a cell have no mirror image


def key(default: Any, text: str, needs: Condition = "", *, stays: bool = False, **limits: float) -> Any:
    """A key: its default, what a higher value does, when it has an effect (see `needs`), and pydantic's limits.

    One that `stays` must not change when a run goes on.
    """
    made: Any = Field  # pydantic's overloads know no limits by name and value
    extra = (STAYS if stays else {}) | ({"needs": needs} if needs else {})
    return made(default, description=text, json_schema_extra=extra or None, **limits)


def _with_default(text: str, condition: Condition, limits: dict[str, Any], default: Any, needs: Any = None) -> Any:
    return key(default, text, condition if needs is None else needs, **limits)


def shared(text: str, needs: Condition = "", **limits: Any) -> Callable[..., Any]:
    """A key that several algorithms have, each with a default, and perhaps a condition, of its own; see `key`."""
    return functools.partial(_with_default, text, needs, limits)


discount = shared("Higher looks further ahead; what it estimates is noisier, and learned later.", ge=0, le=1)
gae_lambda = shared("Higher trusts rewards more and the critic less.", BOOTSTRAPS, ge=0, le=1)
n_step = shared(
    "Rewards counted before the critic is asked; higher trusts it less, and learns of consequences sooner.",
    BOOTSTRAPS,
    ge=1,
    le=100_000,
)
return_scale = shared("Factor for rewards; higher makes values and steps larger, and an entropy bonus smaller.", gt=0)
normalise = shared(
    "Show (obs - mean) / deviation of what was seen so far; of pictures, numbers beside them.", stays=True
)
rows_per_update = shared(
    "Rows to gather before an update or a push; more are smoother and fewer steps. 0: one rollout of each executor.",
    'schedule.gradients == "learner" or schedule.kind != "oa" or schedule.sync == "episode"',
    ge=0,
)
activation = shared("relu learns sharp values fast, tanh bounds what is far away.", "layers", stays=True)
value_coefficient = shared("Higher favours the critic in layers that are shared.", ge=0)
entropy = shared("Higher stays random for longer.", ge=0)
reward_scaling = shared(
    "Divide rewards by the deviation of the discounted return: losses of any task are alike.", stays=True
)
annealed = shared("Keys that fall to 0 within anneal_steps.", {"entropy": SOME_ENTROPY})
batch = shared("Rows per update; more are smoother and slower.", ge=1)
start_rows = shared("Rows to gather before learning begins; more are more diverse.", ge=1)
train_every = shared("New rows per update; higher replays every row less often.", "min_updates == 0", ge=1, le=10**6)
target_every = shared("Updates between moves of the target network; higher is slower.", BOOTSTRAPS, ge=1)
target_rate = shared("Share of the way it moves; higher follows faster.", BOOTSTRAPS, gt=0, le=1)
learning_rate = shared("Higher learns faster, until it forgets or diverges.", gt=0)
learning_rate_last = shared("Rate after anneal_steps; higher keeps learning faster.", ge=0)
anneal_steps = shared("Environment steps until learning_rate_last; more fall slower.", RATE_FALLS, ge=1)
max_gradient_norm = shared("Longer gradients are cut to this; 0 never cuts.", ge=0)


class NetworkFields(BaseModel):
    """Settings of our networks beside their layers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    body: Body = key(
        "none",
        "Convolutions before all layers. nature: three, which pictures get where nothing is said; small: 16 of 3 x 3, "
        "for grids; elu: four of 32.",
        stays=True,
    )
    precision: Precision = key(
        "float32", "tf32 (on a GPU) and bfloat16 compute convolutions faster and coarser; weights stay float32."
    )
    input_scale: tuple[float, ...] = key((1.0,), "Factor per input; raising one makes it matter sooner.", stays=True)

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

    def refuse_factors(self, mixed: Mixed | None, *, in_bytes: bool) -> None:
        """Refuse factors for observations of pictures alone, whose pixels have a factor of their own as bytes.

        Raises:
            ValueError: it is so.
        """
        has_numbers = mixed is not None and mixed.numbers
        is_scaled = mixed is not None or in_bytes
        of_body = BODIES[self.body].scale if self.body in BODIES and is_scaled else None
        if self.input_scale != (1.0,) and of_body is not None and not has_numbers:
            raise ValueError(
                f'input_scale: body = "{self.body}" needs input_scale = [1.0]: pixels are brought to 0 ... 1 anyway'
            )


class ActorCriticFields(NetworkFields):
    """An actor and a critic, side by side or on layers that they share."""

    common: Sizes = key((), "Layers that actor and critic share; more let them learn from each other.", stays=True)
    policy: Sizes = key((64, 64), "The actor's own layers; more represent finer policies, but slower.", stays=True)
    value: Sizes = key((64, 64), "The critic's own layers; more represent finer values, but slower.", stays=True)
    activation: Activation = key("tanh", "tanh: smooth policies; relu: sharp.", HIDDEN, stays=True)
    layer_norm: bool = key(False, "Normalise each layer: steadier when inputs differ much in size.", HIDDEN, stays=True)
    normalise: bool = normalise(False)


class CellFields(BaseModel):
    """Settings of a recurrent cell behind common layers."""

    cell: Literal["none", "lstm", "gru", "dilated"] = key(
        "none", "A recurrent cell behind common layers, for tasks that hide something.", stays=True
    )
    cell_size: int = key(64, "Its outputs; more remember more, but slower.", REMEMBERS, stays=True, ge=1, le=65536)
    cell_layers: int = key(1, "Cells one above the other.", REMEMBERS, stays=True, ge=1, le=64)
    cell_cores: int = key(8, "States that take turns; more remember longer.", DILATED, stays=True, ge=1, le=256)


class RecurrentFields(CellFields):
    """The same behind the layers that actor and critic share."""

    cells: Literal["shared", "apart"] = key(
        "shared", "apart: actor and critic have a cell each, at twice the cost.", REMEMBERS, stays=True
    )


class ValueNetworkFields(NetworkFields):
    """A network with one value for each action."""

    layers: Sizes = key((128, 128), "Hidden layers; more represent finer values, but slower.", stays=True)
    activation: Activation = activation("relu")
    layer_norm: bool = key(True, "Normalise each layer: values grow more slowly and steadily.", "layers", stays=True)


class ReplayedFields(BaseModel):
    """Settings of replayed rows: mirroring, and a running average of the weights that they lead to."""

    mirror: bool = key(True, "Mirror half of each batch if the task declares a symmetry.", MIRRORS)
    average: float = key(0.0, "Publish a running average; higher follows faster, 0: none.", ge=0, le=1)
