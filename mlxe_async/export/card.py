"""A folder that can be given away: a model card for the Hugging Face hub, the weights, settings, picture and graph.

`README.md` begins with the YAML that the hub reads: tags, and results of the run's own evaluations. The folder is also
one that `load_policy` takes. Nothing here opens a connection.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxe_async import __version__
from mlxe_async.errors import ResourceError, SettingsError
from mlxe_async.export import onnx_file, picture
from mlxe_async.settings.writing import dump_settings
from mlxe_async.storage import checkpoints
from mlxe_async.storage.run_folder import CHECKPOINTS, SETTINGS
from mlxe_async.storage.safe_text import visible

if TYPE_CHECKING:
    from mlxe_async.policy import Policy

README, GRAPH, PICTURE = "README.md", "policy.onnx", "network.svg"
LIBRARY = "mlxe_async"


@dataclass(frozen=True)
class Test:
    """The run's own test of a version.

    Args:
        version: which one.
        episodes: of the test.
        steps: of all of them.
        mean: of their returns.
        least: of their returns.
        passed: None: nothing was judged.
    """

    version: int
    episodes: int
    steps: int
    mean: float
    least: float
    passed: bool | None


def test_of(lines: Iterable[Mapping[str, Any]], version: int) -> Test | None:
    """Return the last whole test of a version that a log tells of; None: it was not tested."""
    found = None
    for line in lines:
        if line.get("event") != "evaluation" or line.get("version") != version or line.get("failed_at") is not None:
            continue
        if line.get("return_mean") is not None and line.get("return_min") is not None:
            found = Test(
                version,
                int(line["episodes"]),
                int(line["steps"]),
                float(line["return_mean"]),
                float(line["return_min"]),
                line.get("passed"),
            )
    return found


def write(policy: Policy, folder: Path, lines: Iterable[Mapping[str, Any]]) -> str:
    """Write the folder; returns in a few words what is in it.

    It is put together beside its place and moved there whole.

    Args:
        policy: see `load_policy`.
        folder: where; it must not be there, or be empty.
        lines: of the run's log, for results and costs.

    Raises:
        SettingsError: there is something else in its place.
        ResourceError: it cannot be written.
    """
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise SettingsError([f"export --to card: {visible(str(folder))} is there, expected a new or an empty folder"])
    lines = list(lines)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=".card-", dir=folder.parent))
    except OSError as error:
        raise ResourceError(f"{visible(str(folder))} cannot be made: {error.strerror or error}") from error
    try:
        told = _fill(staged, policy, lines)
        staged.chmod(0o755)
        staged.replace(folder)
    except OSError as error:
        raise ResourceError(f"{visible(str(folder))} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return told


def _fill(folder: Path, policy: Policy, lines: Sequence[Mapping[str, Any]]) -> str:
    notes = list[str]()
    graph: onnx_file.Written | None = None
    for name, made in ((PICTURE, picture.draw), (GRAPH, onnx_file.write)):
        try:
            found = made(policy, folder / name)
        except SettingsError as error:  # a package is missing, or the policy has no network
            notes.append(f"without {name}: {str(error).removeprefix('export ')}")
        else:
            graph = found if isinstance(found, onnx_file.Written) else graph
    (folder / SETTINGS).write_text(_settings(policy))
    _save(folder / CHECKPOINTS, policy)
    (folder / README).write_text(text(policy, lines, [one.name for one in sorted(folder.iterdir())], graph))
    return "; ".join((f"{len(list(folder.iterdir())) - 2} files and the weights", *notes))


def _settings(policy: Policy) -> str:
    """The settings as TOML, without folders of this machine and without what looks like a secret."""
    run = policy.settings.run.model_copy(update={"python_path": (), "dir": "runs", "init_from": None})
    items = {"reset_options": None, "test_options": None, "shuffle_options": False}
    task = policy.settings.task.model_copy(update=items)
    return dump_settings(policy.settings.model_copy(update={"run": run, "task": task}), hide_secrets=True)


def _save(folder: Path, policy: Policy) -> None:
    """Save the weights as the one checkpoint of a run."""
    import numpy as np

    sizes = [int(np.prod(shape)) for _, shape in policy.algorithm.parameters]
    pieces = np.split(policy.flat, np.cumsum(sizes)[:-1])
    tensors = {
        name: piece.reshape(shape) for (name, shape), piece in zip(policy.algorithm.parameters, pieces, strict=True)
    }
    facts = {
        "version": policy.version,
        "parameters": [[name, list(shape)] for name, shape in policy.algorithm.parameters],
        "spaces": policy.spaces.to_json(),
        "counters": dict(policy.counters),
    }
    folder.mkdir()
    checkpoints.save(folder, 1, tensors, facts, keep=1)


# -- the card ----------------------------------------------------------------------------------------------------------


def header(policy: Policy, test: Test | None) -> str:
    """Return the YAML that the hub reads, between its lines of dashes; texts are quoted as JSON, which YAML reads."""
    env, algorithm = _plain(policy.settings.task.env), _plain(policy.settings.algorithm.name)
    tags = [*dict.fromkeys((env, algorithm, "reinforcement-learning", "deep-reinforcement-learning", LIBRARY))]
    lines = [
        "---",
        f"library_name: {LIBRARY}",
        "pipeline_tag: reinforcement-learning",
        "tags:",
        *(f"- {_quoted(one)}" for one in tags),
    ]
    if test is not None:
        lines += [
            "model-index:",
            f"- name: {_quoted(algorithm)}",
            "  results:",
            "  - task:",
            "      type: reinforcement-learning",
            "      name: reinforcement-learning",
            "    dataset:",
            f"      name: {_quoted(env)}",
            f"      type: {_quoted(env)}",
            "    metrics:",
            "    - type: mean_reward",
            f"      value: {test.mean:.2f}",
            "      name: mean_reward",
            "      verified: false",
        ]
    return "\n".join((*lines, "---"))


def text(
    policy: Policy, lines: Sequence[Mapping[str, Any]], files: Sequence[str], graph: onnx_file.Written | None
) -> str:
    """Return the whole model card."""
    settings, test = policy.settings, test_of(lines, policy.version)
    env, algorithm = _plain(settings.task.env), _plain(settings.algorithm.name)
    parts = [header(policy, test), "", f"# {algorithm} on {env}", ""]
    parts += [f"A policy that {LIBRARY} {__version__} trained.", ""]
    parts += [
        f"It sees {policy.spaces.observation_words} and takes {policy.spaces.action_words}.",
        "",
        "## Results",
        "",
        *_results(policy, test),
        "",
        "## Training",
        "",
        *_training(policy, lines),
        "",
        "## Use",
        "",
        "```python",
        f"from {LIBRARY} import load_policy",
        "",
        'policy = load_policy("path/of/this/folder")',
        "action = policy.act(obs)  # greedy; rng=numpy.random.default_rng() draws",
        "```",
        "",
    ]
    if PICTURE in files:
        parts += [f"![the network]({PICTURE})", ""]
    if graph is not None:
        parts += [f"`{GRAPH}`, for ONNX Runtime: {graph.words}.", ""]
    if settings.run.python_path or ":" in settings.task.env or ":" in settings.algorithm.name:
        parts += ["Its settings name code that is not part of this folder; `trust=` names it to `load_policy`.", ""]
    shown = _settings(policy).replace("`" * 3, "'" * 3)
    parts += ["<details><summary>All settings</summary>", "", "```toml", shown.strip(), "```", "", "</details>", ""]
    return "\n".join(parts)


def _results(policy: Policy, test: Test | None) -> list[str]:
    if test is None:
        return [f"Version {policy.version} was not tested whole during the run; `mlxe_async eval` tests it."]
    return [
        "| version | episodes | mean return | smallest return | steps |",
        "|---|---|---|---|---|",
        f"| {test.version} | {test.episodes} | {test.mean:,.2f} | {test.least:,.2f} | {test.steps:,} |",
        "",
        "Greedy actions, in episodes of the run's own test; the run measured it, and no third party verified it.",
    ]


def _training(policy: Policy, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    counted = dict(policy.counters)
    told = [
        f"{counted[name]:,} {words}"
        for name, words in (("env_steps", "environment steps"), ("episodes", "episodes"), ("updates", "updates"))
        if isinstance(counted.get(name), int)
    ]
    ends = [line for line in lines if line.get("event") == "run_end"]
    seconds = ends[-1].get("seconds") if ends else None
    more = f"; the whole run took {seconds:,.1f} s" if isinstance(seconds, int | float) else ""
    schedule = policy.settings.schedule
    how = f"schedule `{schedule.kind}`, {schedule.executors} executors, seed {policy.settings.run.seed}"
    return [f"Saved after {', '.join(told)}{more}: {how}." if told else f"By {how}."]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)


def _plain(text: str) -> str:
    """A name in one harmless line: it may come from anybody's settings."""
    return visible(text, 100).replace("`", "'").replace("|", "/").replace("<", "(").replace(">", ")")
