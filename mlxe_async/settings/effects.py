"""Keys that have no effect because other keys switch them off.

A user who writes such a key means something that will not happen, so it is refused, and the key that switches it off
is named. Defaults were not written by the user and are never refused, nor is an algorithm's `false` where that is the
default. A key of a file that `--set` switched off is tolerated with a remark: overriding one key does not force a user
to take out all that depend on it.

For the fields of an algorithm the relation is declared beside the field: `json_schema_extra=needs("noisy")` has a
condition in Python's words, of which `and`, `or` and brackets join

| form | the other field is |
|---|---|
| `noisy`, `not noisy`, `layers` | true, false, a list that is not empty |
| `kind == "fast"`, `kind in ("fast", "quick")` | this, one of these |
| `rate != 1.0`, `rate > 0`, `rate < 1`, `rate <= 1` | a number in that range |

A name on the right is the field whose value is meant. Of a list, a table says what single entries need. A name with a
dot, `task.mirror`, is a key of another table, and does not hold where the table has no such key. What names a field
that the class does not have is taken to hold.

Three names stand for what follows from keys: `task.action_kind`, what the task's actions are; `schedule.policy_lag`, by
how many versions rollouts may be older than the weights that learn from them; and `schedule.rows_together`, how many
rows of rollouts are learned from at a time, where that is known.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel

from mlxe_async.settings.model import Settings
from mlxe_async.settings.places import Places
from mlxe_async.settings.problems import Problem, dotted, path_of, shown
from mlxe_async.settings.task import ATARI, CARTPOLE, Atari, CartPole

if TYPE_CHECKING:
    from mlxe_async.algorithms import Algorithm

ACTION_KIND, POLICY_LAG = "task.action_kind", "schedule.policy_lag"
_FILLED_IN = ("schedule", "memory")  # tables of which an algorithm may have other defaults


def built_in(name: str) -> type[Algorithm] | None:
    """The class of a built-in algorithm, without torch; of any other only the probe can tell."""
    from mlxe_async.algorithms import REGISTRY, load_algorithm  # brings numpy, for which no other mistake waits

    return load_algorithm(name) if name in REGISTRY else None


def idle(settings: Settings, memory: str | None = None, *, is_named: bool = True) -> Iterator[Problem]:
    """Keys of all tables but `[algorithm]` that have no effect, defaults among them.

    Args:
        settings: the tree.
        memory: what its algorithm learns from, as far as that is known.
        is_named: ask the algorithm's class; false where its name is only a default beside other mistakes.
    """
    schedule, learner, supervision, task = settings.schedule, settings.learner, settings.supervision, settings.task
    env, algorithm = task.env.rpartition(":")[2], built_in(settings.algorithm.name) if is_named else None
    if memory is None and algorithm:
        memory = algorithm.memory

    def off(table: str, keys: str, switch: str, instead: str | None = None, why: str = "") -> Iterator[Problem]:
        sentence = _sentence(switch, settings.value_of(switch), instead, why)
        return (Problem((*path_of(table), key), sentence, path_of(switch)) for key in keys.split())

    if not settings.stop.solved:
        yield from off("stop", "steps_after_solved", "stop.solved", "true", "it counts from there")
    if not settings.evaluation.enabled:
        yield from off("evaluation", "interval_steps passes in_flight video", "evaluation.enabled", "true")
    if settings.evaluation.rule == "cap":
        yield from off("evaluation", "threshold", "evaluation.rule", '"mean_return"')
    if schedule.sync == "episode":
        yield from off("schedule", "rollout_steps", "schedule.sync", '"rollout"')
    if schedule.kind in ("serial", "istb"):
        of_roles = {"schedule": "memorizer", "learner": "own_core", "supervision": "max_executor_rss_mb"}
        but = " but the evaluator" if schedule.kind == "istb" else ""
        for table, key in of_roles.items():
            yield from off(table, key, "schedule.kind", None, f"all roles{but} live in one process there")
    if schedule.kind in ("serial", "is") and not schedule.simulated_lag:
        why = "it bounds what schedule.simulated_lag makes older, which is 0"
        yield from off("schedule", "max_policy_lag", "schedule.kind", None, why)
    if not learner.promote_best:
        yield from off("learner", "promote_by", "learner.promote_best", "a number above 0")
    if learner.threads > 1:
        yield from off("learner", "own_core", "learner.threads", "1")
    if not settings.may_be_fast:
        yield from off("learner", "products", "learner.fast", "true")
    if learner.device != "cpu":
        yield from off("learner", "products", "learner.device", '"cpu"')
    if learner.device == "cpu":
        yield from off("learner", "graphs", "learner.device", '"cuda"')
        if settings.algorithm.table.get("precision") == "tf32":
            yield from off("algorithm", "precision", "learner.device", '"cuda"', "tf32 is float32 there")
    if settings.memory.block_rows < schedule.envs_per_executor:
        why = "rows of one step of all of them travel together"
        yield from off("memory", "block_rows", "schedule.envs_per_executor", None, why)
    if memory == "rollouts":
        for table, key in {"memory": "keep_rows", "schedule": "updates_per_publish"}.items():
            why = "it learns from each rollout once, and from whole ones"
            yield from off(table, key, "algorithm.name", None, why)
    if not supervision.restart_limit:
        keys = "restart_window_s backoff_s backoff_max_s"
        yield from off("supervision", keys, "supervision.restart_limit", "a number above 0")
    if not supervision.env_fault_limit:
        yield from off("supervision", "env_fault_window_s", "supervision.env_fault_limit", "a number above 0")
    for key in CartPole.model_fields:
        by = "task.adverse_starts" if key.startswith("adverse_") else "task.shaped_reward"
        if not env.startswith(CARTPOLE):
            yield from off("task.cartpole", key, "task.env", 'one of "CartPole-..."')
        elif not getattr(task, by.removeprefix("task.")):
            yield from off("task.cartpole", key, by, "true")
    for key in Atari.model_fields:
        if not env.startswith(ATARI):
            yield from off("task.atari", key, "task.env", 'one of "ALE/..."')
        elif not task.atari.preprocess and key != "preprocess":
            yield from off("task.atari", key, "task.atari.preprocess", "true")
    if algorithm and "mirror" not in algorithm.Settings.model_fields:
        yield from off("task", "mirror", "algorithm.name", None, "it mirrors no rows")
    elif algorithm and settings.algorithm.table.get("mirror") is False:
        yield from off("task", "mirror", "algorithm.mirror", "true")
    elif algorithm and settings.algorithm.table.get("cell", "none") != "none":
        yield from off("task", "mirror", "algorithm.cell", '"none"', "stored states have no mirror image")


def idle_in(
    model: type[BaseModel], table: Mapping[str, Any], beside: Mapping[str, Any] | None = None
) -> Iterator[Problem]:
    """The fields of an algorithm's `Settings` that have no effect, with what switches them off.

    Args:
        model: the class that declares them.
        table: `[algorithm]` as written; what is left out has its default.
        beside: all tables, for relations to keys of others; without them these are taken to hold.
    """
    fields = model.model_fields
    values = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    values |= {name: value for name, value in table.items() if name in fields}
    known = _Known(values, beside and _with_what_follows(beside, values))
    for name, field in fields.items():
        if values[name] is False and field.default is False:
            continue  # what is switched off anyway is what was asked for
        extra: Any = field.json_schema_extra
        needed = extra.get("needs", {}) if isinstance(extra, Mapping) else {}
        entries = values[name] if isinstance(values[name], list | tuple) else ()
        for entry, condition in (needed if isinstance(needed, Mapping) else {None: needed}).items():
            if (part := known.lacking(_parsed(condition))) and (entry is None or entry in entries):
                problem, inside = known.problem(name, part), "" if entry is None else f"{shown(entry)} in it "
                yield Problem(problem.path, f"{inside}{problem.message}", problem.other)


class _Part(NamedTuple):
    """The part of a condition that is about one other key.

    Args:
        switch: that key.
        form: how it is compared; empty: it stands alone.
        wanted: with what.
    """

    switch: str
    form: str
    wanted: ast.expr


def _parsed(condition: str) -> ast.expr:
    """A condition, read.

    Raises:
        ValueError: it is none.
    """
    try:
        return ast.parse(condition, mode="eval").body
    except (SyntaxError, TypeError):
        raise ValueError(f"needs: got {condition!r}, expected a condition such as 'noisy and discount > 0'") from None


def _part_of(node: ast.expr) -> _Part:
    """A condition without `and` and `or`.

    Raises:
        ValueError: it has none of the forms.
    """
    match node:
        case ast.Name() | ast.Attribute():
            return _Part(ast.unparse(node), "", ast.Constant(True))
        case ast.UnaryOp(ast.Not(), ast.Name() | ast.Attribute() as name):
            return _Part(ast.unparse(name), "Eq", ast.Constant(False))
        case ast.Compare(ast.Name() | ast.Attribute() as name, [way], [wanted]) if type(way).__name__ in _FORMS:
            return _Part(ast.unparse(name), type(way).__name__, wanted)
    raise ValueError(f"needs: got {ast.unparse(node)}, expected a comparison of a field, see settings.effects")


@dataclass(frozen=True)
class _Known:
    """The values that conditions are judged by.

    Args:
        values: of the fields of `[algorithm]`.
        beside: all other tables; None: nothing is known of them.
    """

    values: Mapping[str, Any]
    beside: Mapping[str, Any] | None

    def lacking(self, condition: ast.expr) -> _Part | None:
        """The part by which a condition does not hold: the first, of alternatives that of the first; None: it holds."""
        if isinstance(condition, ast.BoolOp):
            lacks = [self.lacking(one) for one in condition.values]
            if isinstance(condition.op, ast.And):
                return next(filter(None, lacks), None)
            return lacks[0] if all(lacks) else None
        return None if self._holds(part := _part_of(condition)) else part

    def problem(self, name: str, part: _Part) -> Problem:
        """Return the problem that a field has no effect because this part of its condition does not hold."""
        switch, wanted = part.switch, self._wanted(part)
        value = self._value(switch)
        if switch == ACTION_KIND:
            env = self._value("task.env")
            sentence = _sentence("task.env", env, None, f"its actions are {value}, not {' or '.join(wanted)}")
            return Problem(("algorithm", name), sentence, ("task", "env"))
        if switch == POLICY_LAG:
            switch, instead = ("schedule.kind", '"oa"')
            if self._value(switch) == "oa":
                switch, instead = "schedule.max_policy_lag", "a number above 0"
            why = "no rollout is older than the policy there"
            sentence = _sentence(switch, self._value(switch), instead, why)
            return Problem(("algorithm", name), sentence, path_of(switch))
        if not part.form:
            instead = "a list that is not empty" if isinstance(value, list | tuple) else "true"
        elif isinstance(wanted, tuple):
            instead = " or ".join(map(shown, wanted))
        else:
            instead = f"{_FORMS[part.form][1]} {shown(wanted)}"
        other = path_of(switch) if "." in switch else ("algorithm", switch)
        return Problem(("algorithm", name), _sentence(switch, value, instead), other)

    def _value(self, switch: str) -> Any:
        if "." not in switch:
            return self.values.get(switch)
        table, _, key = switch.partition(".")
        return (self.beside or {}).get(table, {}).get(key)

    def _wanted(self, part: _Part) -> Any:
        """Return what a key is compared with; a tuple where it may be one of several values."""
        is_key = isinstance(part.wanted, ast.Name | ast.Attribute)
        wanted = self._value(ast.unparse(part.wanted)) if is_key else ast.literal_eval(part.wanted)
        return (wanted,) if part.form == "Eq" else wanted

    def _holds(self, part: _Part) -> bool:
        is_beside = "." in part.switch
        if self.beside is None if is_beside else part.switch not in self.values:
            return True  # nothing is known of it: an algorithm of one's own may leave out fields that others have
        value, wanted = self._value(part.switch), self._wanted(part)
        if not part.form:
            return bool(value)
        if is_beside and value is None and not isinstance(wanted, tuple):
            return part.form == "NotEq"
        try:
            return bool(_FORMS[part.form][0](value, wanted))
        except TypeError:
            return True  # of another type than it should be: that is what is told


_FORMS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "Eq": (lambda value, wanted: value in wanted, ""),
    "In": (lambda value, wanted: value in wanted, ""),
    "NotEq": (operator.ne, "something other than"),
    "Gt": (operator.gt, "a number above"),
    "Lt": (operator.lt, "a number below"),
    "LtE": (operator.le, "at most"),
}


def _with_what_follows(beside: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """All tables, with what follows from the schedule."""
    if "kind" not in (schedule := dict(beside.get("schedule", {}))):
        return beside
    kind, bound = schedule["kind"], schedule.get("max_policy_lag")
    schedule["policy_lag"] = (1 if bound is None else bound) if kind == "oa" else schedule.get("simulated_lag", 0)
    if any(one != 1 for one in schedule.get("temperature_by_executor") or ()) or schedule.get("epsilon_by_executor"):
        schedule["policy_lag"] = max(1, schedule["policy_lag"])  # another policy's rows, as older ones are
    # `ia` learns from as many rollouts as the fastest finish, others gather what they are told to.
    if schedule.get("sync") == "rollout" and kind != "ia" and not values.get("rows_per_update"):
        rollouts = 1 if kind == "oa" else schedule["executors"] - schedule.get("exploit_only", 0)
        schedule["rows_together"] = rollouts * schedule["envs_per_executor"] * schedule["rollout_steps"]
    return {**beside, "schedule": schedule}


def refused_and_remarks(found: Iterator[Problem] | list[Problem], places: Places) -> tuple[list[Problem], list[str]]:
    """Judge the keys without effect that the user wrote: which are refused, and remarks on those that are tolerated."""
    refused, remarks = [], []
    for problem in found:
        by_set = places.written.get(problem.path)
        if by_set is None or problem.other is None:
            continue
        if not by_set and places.written.get(problem.other[:2]):
            remarks.append(f"{dotted(problem.path)} {problem.message.partition(';')[0]}: what switches it off was set")
        else:
            refused.append(problem)
    return refused, remarks


def is_certain(problem: Problem, places: Places) -> bool:
    """Return whether that holds whatever the algorithm's own defaults are, which only the probe knows."""
    other = problem.other or ()
    return other in places.written or other[0] not in _FILLED_IN or other[1] == "kind"


def _sentence(switch: str, value: Any, instead: str | None, why: str = "") -> str:
    other = f", or set {switch} = {instead}" if instead else ""
    reason = f" ({why})" if why else ""
    return f"has no effect with {switch} = {toml_like(value)}{reason}; take it out{other}"


def toml_like(value: Any) -> str:
    """A value as it would be written, lists included."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    return shown(value)
