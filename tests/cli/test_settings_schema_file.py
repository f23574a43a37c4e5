"""The schema that editors read beside the settings files is the one that the command prints."""

import json
from pathlib import Path

import pytest

from mlxe_async.algorithms import REGISTRY
from mlxe_async.cli import main

FOLDER = Path(__file__).parents[2] / "settings"


def test_the_schema_file_is_current(capsys):
    assert main(["schema"]) == 0
    hint = "renew it: python -m mlxe_async schema > settings/schema.json"
    assert json.loads((FOLDER / "schema.json").read_text()) == json.loads(capsys.readouterr().out), hint


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_settings_file_names_its_schema_first(path):
    assert path.read_text().splitlines()[0] == "#:schema ./schema.json"


def test_the_schema_knows_every_algorithm_and_your_own():
    schema = json.loads((FOLDER / "schema.json").read_text())
    variants = [variant["$ref"].removeprefix("#/$defs/") for variant in schema["$defs"]["AlgorithmTable"]["oneOf"]]
    assert variants == [*REGISTRY, "another"]
    assert all(schema["$defs"][name]["properties"]["name"]["const"] == name for name in REGISTRY)


def test_every_reference_leads_somewhere():
    schema = json.loads((FOLDER / "schema.json").read_text())

    def references(node):
        if isinstance(node, dict):
            yield from ([node["$ref"]] if isinstance(node.get("$ref"), str) else [])
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for item in node:
                yield from references(item)

    found = list(references(schema))
    assert found
    assert all(reference.removeprefix("#/$defs/") in schema["$defs"] for reference in found)
