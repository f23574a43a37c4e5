"""A picture shows each layer of the network with its sizes, what works side by side below each other."""

import pytest
from policies_to_export import policy_of

from mlxe_async.errors import SettingsError
from mlxe_async.export import picture


def boxes(policy):
    return [(one.stage, one.branch, one.kind, one.sizes, one.weights) for one in picture.layers_of(policy)]


def test_actor_and_critic_are_branches_with_their_sizes():
    assert boxes(policy_of({"env": "CartPole-v1"}, policy=[32], value=[16])) == [
        ("see", "", "Normaliser", "4 → 4", 0),
        ("heads", "actor", "Linear", "4 → 32", 160),
        ("heads", "actor", "Linear", "32 → 2", 66),
        ("heads", "critic", "Linear", "4 → 16", 80),
        ("heads", "critic", "Linear", "16 → 1", 17),
    ]


def test_convolutions_cells_and_streams_are_told():
    found = boxes(policy_of({"env": "ALE/Pong-v5"}, cell="lstm", cells="apart", common=[32]))
    assert [kind for _, _, kind, _, _ in found] == ["Conv2d"] * 3 + ["Linear"] + ["LSTM"] * 2 + ["Linear"] * 2
    assert found[0][3] == "4 x 84 x 84 → 32 x 20 x 20"
    assert [(stage, branch) for stage, branch, *_ in found[4:6]] == [("cell", "actor"), ("cell", "critic")]
    dueling = boxes(policy_of({"env": "CartPole-v1"}, name="dqn", dueling=True, layers=[8, 8]))
    assert {branch for stage, branch, *_ in dueling if stage == "streams"} == {"value", "advantage"}


def test_all_weights_are_in_a_box():
    policy = policy_of({"env": "parted_tasks:Sights"}, body="nature", common=[16])
    trained = sum(one.numel() for one in policy.module().parameters())
    assert sum(weights for *_, weights in boxes(policy)) == trained


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_it_is_drawn_in_the_format_of_its_name(tmp_path, suffix):
    path = tmp_path / f"network{suffix}"
    assert picture.draw(policy_of({"env": "CartPole-v1"}), path) == "9,155 weights in 7 layers"
    assert path.read_bytes()[:5].strip() in (b"<?xml", b"\x89PNG", b"%PDF-")
    if suffix == ".svg":
        assert "Linear, tanh" in path.read_text() or "<path" in path.read_text()


def test_another_format_and_a_policy_without_a_network_are_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"got network.txt, expected a file ending in .svg, .png, .pdf"):
        picture.draw(policy_of({"env": "CartPole-v1"}), tmp_path / "network.txt")
    with pytest.raises(SettingsError, match="acts by a table"):
        picture.draw(policy_of({"env": "FrozenLake-v1"}, name="q_learning"), tmp_path / "network.svg")
    assert list(tmp_path.iterdir()) == []
