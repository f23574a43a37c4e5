"""Command lines of other packages, answered with what to type here.

They begin with an algorithm, a task, a verb or options: `ppo.py --env-id CartPole-v1`, `train --algo ppo`, `enjoy`.
Here a settings file says what to learn; so the answer writes one, and gives the command that runs it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from mlxe_async.algorithms import REGISTRY
from mlxe_async.settings.problems import our_name_of
from mlxe_async.settings.reading import Unreadable, read_toml
from mlxe_async.storage.safe_text import visible

OURS = (
    *("--resume", "--set", "--check", "--seeds", "--no-progress", "--trust", "--help", "--version", "-h"),
    *("--dashboard", "--dashboard-port", "--dashboard-stays"),
)
_RUN = "python -m mlxe_async FILE.toml"
_LEARN = ("train", "learn", "run", "fit", "start", "launch", "go")
_VERBS = {
    "enjoy watch render visualize visualise demo rollout": "play latest --render",
    "evaluate evaluation test score validate": "eval latest",
    "continue load restore restart": "--resume latest",
    "list ls envs environments list-envs": "advise --list for environments, runs list for runs",
    "tensorboard tb wandb plot_curves mlflow": "export latest --to tensorboard",
    "plot plot_train plot_results": "curve latest for numbers, report latest for a page of pictures",
    "push push_to_hub upload hub package": "export latest --to card",
    "onnx save convert": "export latest --to onnx policy.onnx",
    "benchmark bench ablation sweep seeds": f"{_RUN} --seeds 5, or compare FILE.toml OTHER.toml",
    "optimize optimise hpo hyperopt profile": "tune FILE.toml",
    "init create startproject template example examples": "new NAME --examples",
    "config settings options keys hyperparams params": "--help settings, or --help TABLE",
    "monitor status top attach tail logs log": "follow latest",
    "clean rm delete prune": "runs prune --keep 10",
    "video record record_video": "play latest --video FILE.mp4",
    "algorithms algos models agents": "advise ENV ranks those that fit; --help ALGORITHM lists the keys of one",
    "debug dry-run dryrun validate-config lint": f"{_RUN} --check",
}
_OF_SCHEDULES = {("schedule", key) for key in ("kind", "executors", "envs_per_executor", "rollout_steps", "sync")}
_DEVICES = {"true": "cuda", "false": "cpu", "1": "cuda", "0": "cpu"}
_FLAGS = {
    "capture_video save_video record": "--set evaluation.video=true",
    "track wandb wandb_project_name wandb_entity with_wandb": "export latest --to tensorboard afterwards, or --follow",
    "tensorboard tensorboard_log use_tensorboard": "--set 'logs.export=[\"tensorboard\"]'",
    "no_cuda": "nothing, since learner.device is the CPU when left out",
    "save_model": "nothing; the run's folder keeps checkpoints",
    "upload_model": "export latest --to card, afterwards",
    "torch_deterministic deterministic": "--set schedule.kind=is, which repeats itself bit for bit",
    "config conf config_file conf_file f": f"the file alone, as {_RUN}",
    "restart_behavior resume_from resume continue": "--resume latest",
    "render no_render": "play latest --render, once it has learned",
    "quiet silent": "--no-progress",
    "dry_run": "--check",
    "hyperparams hyperparameters params": "--set a.b=VALUE for each",
    "num_seeds n_seeds": "--seeds N",
    "experiment_suffix": "--set run.name=NAME",
    "verbose": "nothing; --no-progress hides it",
}


def answered(arguments: Sequence[str]) -> str:
    """Say what to type instead of a command line of another package; empty where it is none.

    Args:
        arguments: of this program, which knows no such command and has no such file.
    """
    first = arguments[0]
    options = list(_options(arguments if first.startswith("-") else arguments[1:]))
    if not first.startswith("-") and not first.endswith(".toml"):
        word = re.sub(r"\.py$", "", first.rpartition("/")[2]).lower()
        if word in _LEARN:
            return _file(f'got "{visible(first, 60)}"', options)
        if verb := _of(_VERBS, word):
            return f'got "{visible(first, 60)}", expected {_command(verb)}{_translated(options)}'
        if name := _algorithm(first):
            return _file(f'got "{visible(first, 60)}", an algorithm', options, algorithm=name)
        if re.fullmatch(r"[\w:/.-]+-v\d+", first, re.ASCII):
            return _file(f'got "{visible(first, 60)}", a task', options, env=first)
        if first.endswith((".yaml", ".yml", ".json", ".py", ".ini", ".cfg")):
            told = f'got "{visible(first, 60)}", expected a settings file in TOML'
            return f"{told}: {_new()} writes one{_translated(options)}"
        return ""
    foreign = [name for name, _ in options if f"--{name}" not in OURS]
    if not foreign or (first.startswith("-") and any(one in OURS for one in arguments[:1])):
        return ""
    if first.startswith("-"):
        return _file(f"got --{visible(foreign[0], 60)} and no settings file", options)
    told = _translated(options, _algorithm_in(first))
    return f"--{visible(foreign[0], 60)}: no such option{told}" if told else ""


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and value of each option, in the forms `--a b`, `--a=b`, `--a` and `-a b`."""
    words = list(arguments)
    for place, word in enumerate(words):
        if not re.match(r"--?[A-Za-z]", word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        following = words[place + 1] if place + 1 < len(words) else ""
        yield name, value if equals else "" if following.startswith("-") else following


def _of(known: dict[str, str], word: str) -> str:
    plain = word.lower().replace("-", "_")
    return next((ours for theirs, ours in known.items() if plain in theirs.replace("-", "_").split()), "")


def _algorithm(word: str) -> str:
    """The algorithm that a name, or a script such as `sac_continuous_action.py`, is of; empty if of none."""
    name = re.sub(r"\.py$", "", word.rpartition("/")[2]).lower()
    name = {"appo": "ppo", "rainbow_atari": "rainbow", "qdagger": "dqn", "ppg": "ppo", "a3c": "a2c"}.get(name, name)
    parts = [name, *(name[: match.start()] for match in reversed(list(re.finditer("[_-]", name))))]
    return next((one for one in parts if one in REGISTRY), "")


def _file(got: str, options: Sequence[tuple[str, str]], *, algorithm: str = "", env: str = "") -> str:
    """The sentence that writes a settings file for an algorithm and a task, as far as they are known."""
    others = []
    for name, value in options:
        key, _ = _key(name)
        if key == "task.env" and value:
            env = env or value
        elif (key == "algorithm.name" or name == "run") and value:
            algorithm = algorithm or _algorithm(value)
        else:
            others.append((name, value))
    what = "expected FILE.toml, which says what to learn"
    return f"{got}, {what}: {_new(env, algorithm)} writes one, and {_RUN} runs it{_translated(others, algorithm)}"


def _algorithm_in(file: str) -> str:
    """The algorithm that a settings file names; empty where it does not."""
    try:
        raw, _ = read_toml(file, file)
    except Unreadable:
        return ""
    table = raw.get("algorithm")
    name = table.get("name") if isinstance(table, dict) else ""
    return name if isinstance(name, str) else ""


def _key(name: str, algorithm: str = "") -> tuple[str, str]:
    """Our key that an option means, with a remark; nothing where none is known."""
    if ours := our_name_of(name, algorithm):
        return ours.partition(",")[0].partition(" or ")[0], ours.partition(" (")[2].removesuffix(")")
    from mlxe_async.settings import Settings  # takes a moment that only a mistake costs

    plain = name.replace("-", "_")
    for table in ("task", "stop", "run", "learner", "memory", "evaluation", "checkpoint", "schedule"):
        fields = getattr(Settings.model_fields[table].annotation, "model_fields", {})
        if plain in fields or (table, plain) in _OF_SCHEDULES:
            return f"{table}.{plain}", ""
    return "", ""


def _new(env: str = "", algorithm: str = "") -> str:
    named = f" --algorithm {algorithm}" if algorithm else ""
    return f"python -m mlxe_async advise {shlex.quote(visible(env, 60)) if env else 'ENV'}{named} --write FILE.toml"


def _command(words: str) -> str:
    return words if words.startswith("python") else f"python -m mlxe_async {words}"


def _translated(options: Sequence[tuple[str, str]], algorithm: str = "") -> str:
    """Say what each option is here, as the end of a sentence."""
    told = []
    for name, value in options:
        word = f"--{visible(name, 40)}"
        if word in OURS:
            continue
        if other := _of(_FLAGS, name):
            told.append(f"{word} is {other}")
            continue
        key, remark = _key(name, algorithm)
        if key:
            if key == "learner.device" and value.lower() in _DEVICES:
                value, remark = _DEVICES[value.lower()], ""
            elif "not in shares" in remark:
                value = ""
            given = shlex.quote(visible(value, 60)) if value else "VALUE"
            told.append(f"{word} is --set {key}={given}{f' ({remark})' if remark else ''}")
    return f"; {', '.join(told)}" if told else ""
