"""An own network that does not fit the task is refused by the probe, before a run is started."""

from test_defaults_for import probed


def test_a_network_of_a_wrong_width_is_refused():
    (problem,) = probed({"env": "CartPole-v1"}, name="wrong_networks:Wide")["problems"]
    assert problem["path"] == ["algorithm", "name"]
    assert "cannot act on observations 1x4 of this task, it raised RuntimeError" in problem["message"]
    assert "wrong_networks.py" in problem["message"]


def test_a_lazy_network_is_refused_with_what_to_write():
    (problem,) = probed({"env": "CartPole-v1"}, name="wrong_networks:Lazy")["problems"]
    assert "whose shape is not known before it is used; expected sizes, as nn.Linear(" in problem["message"]


def test_a_word_that_is_not_known_is_refused_with_those_that_are():
    (problem,) = probed({"env": "CartPole-v1"}, name="wrong_networks:Ignored")["problems"]
    assert "says off_policy = 'ignored', expected 'ignores', 'corrects' or 'learns'" in problem["message"]


def test_a_column_in_a_wrong_order_is_refused_by_its_name():
    (problem,) = probed({"env": "CartPole-v1"}, name="wrong_networks:Columns")["problems"]
    assert "Column('partial', dtype, shape): expected a dtype of numbers such as" in problem["message"]
