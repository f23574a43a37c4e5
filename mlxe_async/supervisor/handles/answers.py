"""What the verbs of the roles must answer. A process that answers anything else is ended, and started again.

What environments do in their process is not known: whatever can write to its channel could answer in its place.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from mlxe_async.errors import ProtocolError
from mlxe_async.ipc.messages.answers import Form, Kind, require
from mlxe_async.settings.task import MOST_STATE_BYTES

NUMBER: Kind = (float, None)
WHOLE: Kind = (int, None)

EPISODES: dict[str, Kind] = {
    "env": [int], "episode": [int], "steps": [int], "return": [float], "terminated": [bool], "seed": [int],
}  # fmt: skip
FURTHER = ("stage", "discounted")
"""Further ones, where there are stages, or a discount."""
INGESTED = Form({
    "rows": int, "positions": [int], "corrupt": [{"lane": int, "sequence": int, "detail": str}],
}, "ingested")  # fmt: skip
ROLLOUT = Form({
    "rows": int, "blocks": int, "out_of_bounds": int, "rss_mb": NUMBER, "action_changes": WHOLE, "version": int,
    "episodes": dict(EPISODES),
    "moved": [int], "begun": [int], "running": [bool], "start_ns": int, "seconds": float, "lane_wait_s": float,
    "ingested": [INGESTED.kind],
}, "rollout")  # fmt: skip
PLAN = Form({
    "updates": int, "rows": int, "ingested": INGESTED.kind, "owed": int, "held": int, "mended_priorities": int,
    "start_ns": int, "seconds": float, "ingest_seconds": float,
}, "plan")  # fmt: skip
PUBLISHED = Form({"version": int, "norm": NUMBER, "start_ns": int, "seconds": float}, "published")
LEARNED = Form({
    "version": int, "norm": NUMBER, "updates": int, "rows": int, "lag_min": WHOLE, "lag_mean": NUMBER,
    "lag_max": WHOLE, "late_rows": int, "dropped_rows": int, "metrics": dict, "rolled_back": bool,
    "set_back": ({"best_version": int, "result": float, "iterations": int}, None),
    "start_ns": int, "seconds": float, "publish_seconds": float,
}, "learned")  # fmt: skip
DONE: Kind = {
    "updates": int, "rows": int, "lag_min": WHOLE, "lag_mean": NUMBER, "lag_max": WHOLE, "late_rows": int,
    "dropped_rows": int, "dropped_rollouts": int, "finite": bool, "metrics": dict,
}  # fmt: skip
DIFFERENTIATED = Form({"version": int, "state": int, "nbytes": int, "few": bool, "done": DONE}, "differentiated")
SHELVED = Form({"shelved": bool}, "shelved")
VERDICT: Kind = {
    "version": int, "passed": (bool, None), "episodes": int, "steps": int, "return_min": float, "return_mean": float,
    "seconds": float, "failed_at": WHOLE, "fault": str,
}  # fmt: skip
EVALUATED = Form({"in_flight": int, "verdicts": [VERDICT], "odd": [str]}, "evaluation")


def is_rollout(answer: Any, envs: int) -> None:
    """Refuse what `roles.executor.Executor.generate` cannot have answered, given its number of environments.

    Raises:
        ProtocolError: so it is.
    """
    ROLLOUT.require(answer)
    moved = answer["moved"]
    if moved and (len(set(moved)) != len(moved) or min(moved) < 0 or max(moved) >= envs):
        raise ProtocolError(f"rollout: expected moved of {envs} environments, each once, got {str(moved)[:100]}")
    if not len(moved) == len(answer["begun"]) == len(answer["running"]):
        counts = {len(answer["begun"]), len(answer["running"])}
        raise ProtocolError(
            f"rollout: expected begun and running of {len(moved)} environments, those moved, got {sorted(counts)}"
        )
    episodes = answer["episodes"]
    if (stages := episodes.get("stage")) is not None:
        require(stages, [int], "rollout: episodes: stage")
    if (discounted := episodes.get("discounted")) is not None and discounted != []:
        require(discounted, list, "rollout: episodes: discounted")
        require(discounted, [(float, None)] if None in discounted else [float], "rollout: episodes: discounted")
    lengths = {name: len(episodes[name]) for name in (*EPISODES, *FURTHER) if episodes.get(name) is not None}
    if len(set(lengths.values())) != 1:
        raise ProtocolError(f"rollout: episodes: expected lists of one length, got {lengths}")
    if "wrappers" in answer:
        require(answer["wrappers"], str, "rollout: wrappers")
        if len(answer["wrappers"]) > MOST_STATE_BYTES:
            got = f"got {len(answer['wrappers'])} bytes, expected at most {MOST_STATE_BYTES}"
            raise ProtocolError(f"rollout: wrappers: {got}")
    taken = answer.get("taken", 0)
    require(taken, int, "rollout: taken")
    if min(taken, answer["rows"], answer["blocks"], answer["out_of_bounds"], *answer["begun"]) < 0:
        raise ProtocolError("rollout: expected counts from 0, got a negative one")


def is_learned(answer: Any) -> None:
    """Refuse what no learner can have answered to `learn`.

    Raises:
        ProtocolError: so it is.
    """
    LEARNED.require(answer)


def is_evaluated(answer: Any, under_test: Container[int]) -> None:
    """Refuse verdicts that `roles.evaluator.Evaluator` cannot have come to, of these versions.

    Raises:
        ProtocolError: so it is.
    """
    EVALUATED.require(answer)
    for verdict in answer["verdicts"]:
        if verdict["version"] not in under_test:
            raise ProtocolError(f"evaluation: a verdict on version {verdict['version']}, which is not under test")
