"""The models of the events, their schema, and the lines agree."""

import json
from dataclasses import MISSING, fields
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from mlxe_async.logs.events import COMMON, EVENTS, Event, event_schema
from mlxe_async.logs.journal import Journal
from mlxe_async.logs.reader import read_log

PROMISED = (
    *("run_start", "probe_ok", "proc_start", "proc_exit", "proc_restart", "hang", "env_error", "phase", "episode_end"),
    *("weights", "evaluation", "checkpoint", "checkpoint_rejected", "ledger", "bottleneck", "run_end"),
)
SCHEMA = event_schema()


def example(event: type[Event], *, whole: bool) -> Event:
    """An event with a value for every field, or only for those that must be given."""
    hints = get_type_hints(event)
    values = {
        item.name: sample(hints[item.name])
        for item in fields(event)
        if whole or (item.default is MISSING and item.default_factory is MISSING)
    }
    return event(**values)


def sample(hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is dict:
        return {"a": sample(arguments[1])}
    if origin is list:
        return [sample(arguments[0])]
    if arguments:  # a union's first member, or the first choice
        return sample(arguments[0]) if isinstance(arguments[0], type) else arguments[0]
    return {str: "x", int: 3, float: 0.5, bool: True, Any: [1, "x"]}[hint]


def matches(value: Any, schema: dict[str, Any]) -> bool:
    """A JSON value against the few words of JSON Schema that the events use."""
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    kinds |= {"object": dict, "array": list}
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    wanted = schema.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    if wanted and not any(
        isinstance(value, kinds[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in wanted
    ):
        return False
    if isinstance(value, list):
        return all(matches(item, schema.get("items", {})) for item in value)
    if isinstance(value, dict):
        known, more = schema.get("properties", {}), schema.get("additionalProperties", {})
        if set(schema.get("required", ())) - set(value) or (more is False and set(value) - set(known)):
            return False
        return all(matches(item, known.get(key, more or {})) for key, item in value.items())
    return True


def test_the_promised_events_exist():
    assert set(PROMISED) <= set(EVENTS)


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("whole", [True, False], ids=["every field", "only what must be given"])
def test_every_event_is_written_as_its_schema_says(tmp_path, name, whole):
    with Journal(tmp_path / "log.jsonl", "a-run") as journal:
        journal.emit(example(EVENTS[name], whole=whole), "executor", 2)
    [line] = read_log(tmp_path / "log.jsonl")
    assert matches(line, SCHEMA["$defs"][name])
    assert (line["event"], line["run"], line["role"], line["idx"], line["seq"]) == (name, "a-run", "executor", 2, 0)


@pytest.mark.parametrize("name", EVENTS)
def test_every_field_is_explained_and_none_hides_a_common_one(name):
    properties = SCHEMA["$defs"][name]["properties"]
    assert all(about["description"].endswith(".") for about in properties.values())
    assert not set(COMMON) & {item.name for item in fields(EVENTS[name])}
    assert SCHEMA["$defs"][name]["description"]


def test_the_schema_is_json_and_its_checker_notices_differences():
    json.dumps(SCHEMA)
    weights = SCHEMA["$defs"]["weights"]
    line = dict.fromkeys(weights["properties"], 1)
    line |= {"ts": "t", "run": "r", "event": "weights", "role": "learner", "idx": None, "norm": None}
    assert matches(line, weights)
    assert not matches({**line, "version": "3"}, weights)
    assert not matches({**line, "version": True}, weights)
    assert not matches({**line, "more": 1}, weights)
    assert not matches({key: value for key, value in line.items() if key != "version"}, weights)
