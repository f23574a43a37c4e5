"""Algorithms whose settings are not the same again once they are written down and read."""

from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import BaseModel, Field, computed_field, field_validator

from mlxe_async.algorithms import Algorithm


class Acts(Algorithm):
    memory: ClassVar[str] = "rollouts"
    off_policy: ClassVar[str] = "corrects"

    def build(self):
        import torch

        self.network = torch.nn.Linear(self.spaces.entries, self.spaces.actions)

    def policy(self, obs, acting=None):
        from mlxe_async.algorithms.distributions import Categorical

        return Categorical(self.network(obs))

    def update(self, batch, clock):
        return {}


class Halves(Acts):
    class Settings(BaseModel):
        rate: float = 0.5

        @field_validator("rate")
        @classmethod
        def _halved(cls, rate):
            return rate / 2


class Hides(Acts):
    class Settings(BaseModel):
        discount: float = Field(0.9, exclude=True)


class Forgets(Acts):
    class Settings(BaseModel):
        bound: float | None = 0.5

        @field_validator("bound")
        @classmethod
        def _none(cls, bound):
            return None if bound == 3 else bound


class HoldsCode(Acts):
    class Settings(BaseModel):
        shape: Callable[..., Any] = print


class Computes(Acts):
    class Settings(BaseModel):
        width: int = 8

        @computed_field
        @property
        def twice(self) -> int:
            return 2 * self.width
