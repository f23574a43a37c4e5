"""Keys that an algorithm's own `Settings` would drop without a word: refused, with the key that was meant."""

from typing import Annotated

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from mlxe_async.settings import algorithm_problems


class Sizes(BaseModel):
    width: int = 64
    depth: int = 2


class Plain(BaseModel):
    learning_rate: float = 0.01
    discount: float = 0.99
    sizes: Sizes = Sizes()
    heads: Annotated[tuple[Sizes, ...] | None, Field()] = None
    batch: int = Field(32, validation_alias=AliasChoices("batch", "rows"))
    scales: dict[str, float] = {}


class Open(Plain):
    model_config = ConfigDict(extra="allow")


class Closed(Plain):
    model_config = ConfigDict(extra="forbid")


def told(model, **table):
    return [(problem.path, problem.message) for problem in algorithm_problems(model, {"name": "own:Own", **table})]


@pytest.mark.parametrize("model", [Plain, Closed])
def test_a_key_that_the_class_does_not_have_is_refused_with_the_one_that_was_meant(model):
    ((path, message),) = told(model, learnin_rate=0.1)
    assert path == ("algorithm", "learnin_rate")
    assert message.startswith("got 0.1, expected one of the keys of [algorithm] (learning_rate, discount, ")
    assert message.endswith('; did you mean "learning_rate"?')


def test_what_other_packages_call_it_is_answered_with_the_key_of_the_class():
    ((_, message),) = told(Plain, gamma=0.9)
    assert message == "got 0.9, expected algorithm.discount, as it is called here"


def test_tables_inside_and_those_in_lists_are_looked_at_too():
    ((path, message),) = told(Plain, sizes={"widht": 3})
    assert path == ("algorithm", "sizes", "widht")
    assert message == 'got 3, expected one of the keys of [algorithm.sizes] (width, depth); did you mean "width"?'
    ((path, _),) = told(Plain, heads=[{"width": 1}, {"deep": 3}])
    assert path == ("algorithm", "heads", 1, "deep")


def test_all_that_is_wrong_is_told_in_the_order_in_which_it_was_written():
    found = told(Plain, typo=1, discount="high", learnin_rate=0.1)
    assert [path[1] for path, _ in found] == ["typo", "discount", "learnin_rate"]


def test_a_class_that_allows_further_keys_and_names_that_it_knows_are_left_alone():
    assert told(Open, learnin_rate=0.1) == []
    assert told(Plain, rows=16, scales={"any": 1.0}, sizes={"width": 8}, heads=[{"depth": 1}]) == []


def test_a_secret_is_not_shown():
    secret = {"api_token": "abc"}
    ((_, message),) = told(Plain, **secret)
    assert "abc" not in message
