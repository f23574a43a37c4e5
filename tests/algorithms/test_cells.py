"""Recurrent cells: the same by numpy, by pieces and by a plain loop, whatever episodes begin within a sequence."""

import numpy as np
import pytest
import torch
from torch import nn

from mlxe_async.networks.by_numpy import is_plain
from mlxe_async.networks.cells import Cell, Cells, Sequences, step_by_step
from mlxe_async.networks.dilated import Dilated
from mlxe_async.networks.seen import cell_entries, cell_parameters

KINDS = [("lstm", 1), ("lstm", 2), ("gru", 1), ("gru", 3), ("dilated", 1), ("dilated", 2)]
INPUTS, SIZE, CORES = 5, 7, 3


def made_cell(kind, layers):
    return Dilated(INPUTS, SIZE, layers, CORES) if kind == "dilated" else Cell(kind, INPUTS, SIZE, layers)


def cell(kind, layers, seed=0, scale=0.7):
    """Weights and biases that are all at work."""
    torch.manual_seed(seed)
    made = made_cell(kind, layers)
    for parameter in made.parameters():
        parameter.data.normal_(0, scale)
    return made


def rows(steps, envs, seed=0):
    """Features (T, B, n), states (B, S) to begin with, rows that begin an episode and rows that there are (T, B)."""
    rng = np.random.default_rng(seed)
    first = rng.random((steps, envs)) < 0.15
    valid = np.arange(steps)[:, None] < rng.integers(steps // 2, steps + 1, envs)
    return rng.normal(size=(steps, envs, INPUTS)), first & valid, valid


def sigmoid(x):
    return 1 / (1 + (-x).exp())


def plain_step(kind, layer, number, x, states):
    """One layer's step by the equations, of tensors; states (k, B, H)."""
    names = (f"weight_ih_l{number}", f"weight_hh_l{number}", f"bias_ih_l{number}", f"bias_hh_l{number}")
    inner, outer, bias, more = (getattr(layer, name) for name in names)
    shown, recalled = x @ inner.T + bias, states[0] @ outer.T + more
    if kind != "gru":
        i, f, g, o = (shown + recalled).chunk(4, -1)
        c = sigmoid(f) * states[1] + sigmoid(i) * g.tanh()
        return torch.stack([sigmoid(o) * c.tanh(), c])
    r, z, n = zip(shown.chunk(3, -1), recalled.chunk(3, -1), strict=True)
    new = (n[0] + sigmoid(sum(r)) * n[1]).tanh()
    return ((1 - sigmoid(sum(z))) * new + sigmoid(sum(z)) * states[0])[None]


def plain(kind, made, x, state, first):
    """Outputs (T, B, H) and states (T, B, S) by one step after the other."""
    outputs, states = [], []
    for seen, begins in zip(x, torch.as_tensor(first), strict=True):
        state = state * ~begins[:, None]
        seen, state = (plain_cores if kind == "dilated" else plain_layers)(kind, made, seen, state)
        outputs.append(seen)
        states.append(state)
    return torch.stack(outputs), torch.stack(states)


def plain_layers(kind, made, x, state):
    """One step of all layers."""
    layers, after = made.layers, []
    shape = (len(state), 1 if kind == "gru" else 2, layers.num_layers, SIZE)
    parts = state.reshape(shape).permute(2, 1, 0, 3)
    for number in range(layers.num_layers):
        after.append(plain_step(kind, layers, number, x, parts[number]))
        x = after[-1][0]
    return x, torch.stack(after).permute(2, 1, 0, 3).reshape(state.shape)


def plain_cores(kind, made, x, state):
    """One step of the core whose turn it is, one environment after the other."""
    outputs, after = [], []
    for seen, before in zip(x, state, strict=True):
        turn, cores = int(before[-1]) % CORES, [*before[:-1].chunk(CORES)]
        cores[turn] = plain_layers(kind, made.core, seen[None], cores[turn][None])[1][0]
        shape = (2, made.core.layers.num_layers, SIZE)
        outputs.append(sum(core.reshape(shape)[0, -1] for core in cores) / CORES)
        after.append(torch.cat([*cores, torch.tensor([(turn + 1) % CORES]).to(before)]))
    return torch.stack(outputs), torch.stack(after)


@pytest.mark.parametrize(("kind", "layers"), KINDS)
def test_numpy_steps_as_torch_does(kind, layers):
    made, rng = cell(kind, layers), np.random.default_rng(0)
    mine = theirs = rng.normal(size=(4, made.entries)).astype(np.float32)
    for _ in range(50):
        x = (3 * rng.normal(size=(4, INPUTS))).astype(np.float32)
        found, mine = made(x, mine)
        with torch.no_grad():
            expected, after = made(torch.from_numpy(x), torch.from_numpy(theirs))
        theirs = after.numpy()
        assert isinstance(found, np.ndarray)
        assert (made.core if kind == "dilated" else made)._views.steps is not None
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mine, theirs, atol=2e-6)


@pytest.mark.parametrize("steps", [1, 7, 32])
@pytest.mark.parametrize(("kind", "layers"), KINDS)
def test_pieces_with_the_state_that_they_begin_with_give_what_one_pass_gives(kind, layers, steps):
    made, (x, first, valid) = Cells(cell(kind, layers), cell(kind, layers, seed=1)), rows(96, 3)
    x, valid = torch.from_numpy(x).float(), np.ones_like(valid)
    begun, none = torch.randn(3, made.entries), np.zeros_like(valid)
    with torch.no_grad():
        whole, _ = made.through(x.reshape(-1, INPUTS), Sequences(valid, first, none, begun))
        state, found = begun, []
        for at in range(0, 96, steps):
            part = slice(at, at + steps)
            last = none[part].copy()
            last[-1] = True
            rows_of = x[part].reshape(-1, INPUTS)
            outputs, state = made.through(rows_of, Sequences(valid[part], first[part], last, state))
            found.append(outputs)
    np.testing.assert_allclose(torch.cat(found), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("by", ["numpy", "torch"])
@pytest.mark.parametrize(("kind", "layers"), KINDS)
def test_outputs_states_and_gradients_are_those_of_a_plain_loop(kind, layers, by):
    """In float64, with episodes that begin in the middle of a sequence and sequences that end early."""
    made, (x, first, valid) = cell(kind, layers).double(), rows(20, 4)
    inner = (made.core if kind == "dilated" else made).layers
    if by == "torch":
        inner.register_forward_hook(lambda *_: None)
    assert is_plain(inner, torch.float64) == (by == "numpy")
    x, begun = torch.from_numpy(x).requires_grad_(), torch.randn(4, made.entries, dtype=torch.float64)
    begun.requires_grad_()
    kept = valid & (np.random.default_rng(1).random(valid.shape) < 0.2)
    weight, leaves = torch.randn(int(valid.sum()), SIZE, dtype=torch.float64), [x, begun, *made.parameters()]
    there = torch.from_numpy(valid)
    outputs, states = made.through(x[there], Sequences(valid, first, kept, begun))
    of_these = torch.autograd.grad((outputs * weight).sum() + states.square().sum(), leaves)
    expected, after = plain(kind, made, x, begun, first)
    torch.testing.assert_close(outputs, expected[there], atol=1e-12, rtol=0)
    torch.testing.assert_close(states, after[torch.from_numpy(kept)], atol=1e-12, rtol=0)
    loss = (expected[there] * weight).sum() + after[torch.from_numpy(kept)].square().sum()
    for mine, theirs in zip(of_these, torch.autograd.grad(loss, leaves), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-8, rtol=0)


def test_without_a_gradient_of_outputs_those_of_states_flow_back_alone():
    made, valid = cell("lstm", 1).double(), np.ones((6, 2), bool)
    x, state = torch.randn(12, INPUTS, dtype=torch.float64), torch.randn(2, made.entries, dtype=torch.float64)
    where = Sequences(valid, ~valid, np.arange(6)[:, None] == np.full(2, 5), state.requires_grad_())
    _, after = made.through(x, where)
    _, expected = plain("lstm", made, x.reshape(6, 2, INPUTS), state, ~valid)
    for size in (SIZE, 2 * SIZE):  # h alone, and all
        mine, theirs = (
            torch.autograd.grad(one[:, :size].sum(), state, retain_graph=True)[0] for one in (after, expected[-1])
        )
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=0)


def test_nothing_flows_back_over_the_beginning_of_an_episode():
    made, valid = cell("lstm", 1), np.ones((4, 1), bool)
    x, state, first = torch.randn(4, INPUTS, requires_grad=True), torch.randn(1, made.entries), ~valid
    first[2] = True
    outputs, _ = made.through(x, Sequences(valid, first, ~valid, state.requires_grad_()))
    before, of_state = torch.autograd.grad(outputs[2:].sum(), [x, state], allow_unused=True)
    assert before[:2].abs().max() == 0
    assert before[2:].abs().min() > 0
    assert of_state is None or of_state.abs().max() == 0


def test_first_weights_are_orthogonal_by_gates_and_biases_zero():
    made = Cell("lstm", 7, 7)
    for gate in made.layers.weight_hh_l0.data.split(7):
        torch.testing.assert_close(gate @ gate.T, torch.eye(7), atol=1e-5, rtol=0)
    assert made.layers.bias_ih_l0.abs().max() == made.layers.bias_hh_l0.abs().max() == 0


@pytest.mark.parametrize(("kind", "layers"), KINDS)
def test_what_a_cell_will_hold_is_told_without_torch(kind, layers):
    made = made_cell(kind, layers)
    expected = [(f"cell.{name}", tuple(one.shape)) for name, one in made.named_parameters()]
    assert [*cell_parameters("cell", kind, INPUTS, SIZE, layers)] == expected
    assert cell_entries(kind, SIZE, layers, CORES) == made.entries


def test_cores_take_turns_and_begin_anew_with_an_episode():
    made, state = cell("dilated", 1), np.zeros((1, 3 * 2 * SIZE + 1), np.float32)
    for step in range(7):
        before = state
        _, state = made(np.full((1, INPUTS), 0.5, np.float32), before)
        changed = (state != before)[0, :-1].reshape(CORES, -1).any(1)
        assert changed.tolist() == [core == step % CORES for core in range(CORES)]
        assert state[0, -1] == (step + 1) % CORES


def test_a_single_core_is_an_lstm():
    made, (x, first, valid) = Dilated(INPUTS, SIZE, 2, cores=1), rows(20, 4)
    x, begun = torch.from_numpy(x[valid]).float(), torch.randn(4, made.entries)
    where = Sequences(valid, first, ~valid & valid, begun)
    expected, _ = made.core.through(x, where._replace(state=begun[:, :-1]))
    torch.testing.assert_close(made.through(x, where)[0], expected)


class Doubled(nn.LSTM):
    """Another gate than torch's."""

    def forward(self, *given):
        outputs, states = super().forward(*given)
        return 2 * outputs, states


def hooked(made):
    made.layers.register_forward_hook(lambda _module, _given, found: (2 * found[0], found[1]))


def hooked_outside(made):
    made.register_forward_hook(lambda _module, _given, found: (2 * found[0], found[1]))


def of_another_class(made):
    made.layers.__class__ = Doubled


def with_a_forward_of_its_own(made):
    real = made.layers.forward

    def forward(*given):
        outputs, states = real(*given)
        return 2 * outputs, states

    made.layers.forward = forward


class Other(Cell):
    """Another cell than the one that it derives from."""

    def forward(self, x, state):
        outputs, after = super().forward(x, state)
        return 2 * outputs, after


def of_a_class_derived_from_it(made):
    made.__class__ = Other


CHANGES = (hooked, hooked_outside, of_another_class, with_a_forward_of_its_own, of_a_class_derived_from_it)


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_in_a_cell_counts_for_arrays_too(change):
    made, rng = cell("lstm", 1), np.random.default_rng(0)
    x, state = rng.normal(size=(2, INPUTS)).astype(np.float32), np.zeros((2, made.entries), np.float32)
    before, _ = made(x, state)
    change(made)
    found, _ = made(x, state)
    np.testing.assert_allclose(found, 2 * before, atol=1e-6)


@pytest.mark.parametrize("kind", ["lstm", "dilated"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_in_a_cell_counts_for_whole_sequences_as_for_steps(change, kind):
    made, (x, first, valid) = cell(kind, 1), rows(40, 4)
    changed = made.core if kind == "dilated" else made
    x, begun = torch.from_numpy(x).float(), torch.randn(4, made.entries)
    where = Sequences(valid, first, np.zeros_like(valid), begun)
    rows_of = x[torch.from_numpy(valid)]
    before, _ = made.through(rows_of, where)
    change(changed)
    found, _ = made.through(rows_of, where)
    torch.testing.assert_close(found, step_by_step(made, rows_of, where)[0], atol=1e-5, rtol=0)
    if kind == "lstm":
        torch.testing.assert_close(found, 2 * before, atol=1e-5, rtol=0)


@pytest.mark.parametrize("outer", [Cells, Dilated])
@pytest.mark.parametrize("change", [hooked_outside, "a method"])
def test_what_is_changed_in_what_holds_cells_counts_too(outer, change, monkeypatch):
    made = Cells(cell("gru", 1)) if outer is Cells else cell("dilated", 1)
    x, first, valid = rows(20, 3)
    where = Sequences(valid, first, np.zeros_like(valid), torch.zeros(3, made.entries))
    rows_of = torch.from_numpy(x).float()[torch.from_numpy(valid)]
    before, _ = made.through(rows_of, where)
    if change == "a method":
        real = outer.forward
        monkeypatch.setattr(outer, "forward", lambda self, *given: (2 * real(self, *given)[0], real(self, *given)[1]))
    else:
        change(made)
    torch.testing.assert_close(made.through(rows_of, where)[0], 2 * before, atol=1e-5, rtol=0)


def test_weights_in_place_and_replaced_ones_count_for_arrays():
    made, rng = cell("gru", 1), np.random.default_rng(0)
    x, state = rng.normal(size=(2, INPUTS)).astype(np.float32), rng.normal(size=(2, made.entries)).astype(np.float32)
    for change in (lambda: made.layers.weight_hh_l0.data.mul_(0.5), lambda: replaced(made)):
        change()
        with torch.no_grad():
            expected, _ = made(torch.from_numpy(x), torch.from_numpy(state))
        np.testing.assert_allclose(made(x, state)[0], expected, atol=1e-6)


def replaced(made):
    made.layers.weight_hh_l0 = nn.Parameter(torch.randn_like(made.layers.weight_hh_l0))


@pytest.mark.parametrize(("kind", "layers"), KINDS)
def test_several_steps_in_one_call_are_one_step_after_the_other(kind, layers):
    made, rng = cell(kind, layers).double(), np.random.default_rng(2)
    x = torch.from_numpy(rng.normal(size=(9, 3, INPUTS)))
    state = torch.zeros(3, made.entries, dtype=torch.float64)
    together, after = made(x, state)
    for seen, expected in zip(x, together, strict=True):
        output, state = made(seen, state)
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, after, rtol=0, atol=1e-12)


def test_where_nothing_is_said_a_dilated_lstm_has_one_layer_and_eight_cores():
    made = Dilated(INPUTS, SIZE)
    assert (made.cores, made.core.layers.num_layers, made.entries) == (8, 1, 8 * 2 * SIZE + 1)


@pytest.mark.parametrize(("kind", "layers"), KINDS)
def test_sequences_without_a_row_have_no_outputs_and_no_states(kind, layers):
    made, none = cell(kind, layers), np.zeros((4, 2), bool)
    state = torch.ones(2, made.entries)
    outputs, states = made.through(torch.empty(0, INPUTS), Sequences(none, none, none, state))
    assert (outputs.shape, states.shape) == ((0, SIZE), (0, made.entries))
