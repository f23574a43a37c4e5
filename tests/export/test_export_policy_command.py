"""`export RUN --to picture|card|onnx` writes a saved policy, and refuses what makes no sense for one."""

import numpy as np
import pytest
from policies_to_export import policy_of

from mlxe_async import load_policy
from mlxe_async.cli import main
from mlxe_async.errors import SettingsError
from mlxe_async.export import card, onnx_file


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A folder that has a saved policy, and no log."""
    with monkeypatch.context() as patch:
        patch.setattr(onnx_file, "write", _missing)
        card.write(policy_of({"env": "CartPole-v1"}), tmp_path / "runs" / "one", [])
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "one"


def _missing(policy, path):
    raise SettingsError(["export --to onnx: needs a package"])


def test_a_picture_is_drawn_where_it_is_asked_for(run, tmp_path, capsys):
    assert main(["export", "one", "--to", "picture", "a/b/net.svg"]) == 0
    assert capsys.readouterr().out.endswith("a/b/net.svg: 9,155 weights in 7 layers\n")
    assert (tmp_path / "a" / "b" / "net.svg").stat().st_size > 1000
    assert main(["export", "one", "--to", "picture"]) == 0
    assert (tmp_path / "network.svg").exists()
    capsys.readouterr()


def test_a_card_of_a_card_is_the_same_policy(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(onnx_file, "write", _missing)
    assert main(["export", "one", "--to", "card", "--checkpoint", "last"]) == 0
    assert "to give it away: hf upload YOUR-NAME/one card/one\n" in capsys.readouterr().out
    obs = np.random.default_rng(0).normal(0, 1, (9, 4)).astype(np.float32)
    np.testing.assert_array_equal(load_policy("card/one").act(obs), load_policy("one").act(obs))


def test_the_extra_that_is_missing_is_told(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(onnx_file, "write", _missing)
    assert main(["export", "one", "--to", "onnx", "policy.onnx"]) == 2
    assert "needs a package" in capsys.readouterr().err
    assert not (tmp_path / "policy.onnx").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--to", "onnx", "--follow"], "expected none: a policy is saved, and does not grow"),
        (["--to", "onnx", "x.onnx", "--out", "y"], "got PATH and --out, expected one of them"),
        (["--to", "onnx", "runs"], "runs is a folder, expected a file"),
        (["--to", "picture", "x.txt"], "expected a file ending in .svg, .png, .pdf"),
        (["--to", "card", "runs"], "runs is there, expected a new or an empty folder"),
        (["--to", "csv", "tables"], "got PATH, which is for onnx, card, picture; of a log take --out FOLDER"),
        (["--to", "csv", "--checkpoint", "best"], "got --checkpoint, which is for onnx, card, picture"),
        (["--to", "onnx", "--checkpoint", "worst"], 'got "worst"'),
    ],
)
def test_what_makes_no_sense_is_refused(run, tmp_path, capsys, words, told):
    assert main(["export", "one", *words]) == 2
    assert told in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_a_place_that_cannot_be_written_to_is_told(run, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["export", "one", "--to", "picture", "file/net.svg"]) == 4
    assert "cannot be written" in capsys.readouterr().err


def test_a_run_that_is_not_there_is_told(run, capsys):
    assert main(["export", "other", "--to", "onnx"]) != 0
    assert 'there is no run "other"' in capsys.readouterr().err
