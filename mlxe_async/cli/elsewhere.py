"""Command lines of other packages, answered with what to type here.

They begin with an algorithm, a task, a verb or options: `ppo.py --env-id CartPole-v1`, `train --algo ppo`, `enjoy`.
Here a settings file says what to learn; so the answer writes one, and gives the command that runs it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence

from mlxe_async.algorithms import NAMES_ELSEWHERE, REGISTRY, meant_by
from mlxe_async.settings.loading import written_in
from mlxe_async.settings.synonyms import SYNONYMS
from mlxe_async.settings.translating import Written, answer, own_key, parsed
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
FLAGS = {
    "track wandb wandb_project_name wandb_entity with_wandb": "export latest --to tensorboard afterwards, or --follow",
    "no_cuda": "nothing, since learner.device is the CPU when left out",
    "save_model": "nothing: the run's folder keeps checkpoints",
    "upload_model": "export latest --to card, afterwards",
    "torch_deterministic deterministic": "--set schedule.kind=is, which repeats itself bit for bit",
    "config conf config_file conf_file f": f"the file alone, as {_RUN}",
    "restart_behavior resume_from resume continue": "--resume latest",
    "render": "play latest --render, once it has learned",
    "no_render": "nothing: a run shows no window",
    "quiet silent": "--no-progress",
    "dry_run": "--check",
    "hyperparams hyperparameters params": "--set a.b=VALUE for each",
    "num_seeds n_seeds": "--seeds N",
    "experiment_suffix": "--set run.name=VALUE",
    "verbose": "nothing: --no-progress hides it",
}


def answered(arguments: Sequence[str]) -> str:
    """Say what to type instead of a command line of another package; empty where it is none.

    Args:
        arguments: of this program, which knows no such command and has no such file.
    """
    first = arguments[0]
    is_option = first.startswith("-")
    options = list(_options(arguments if is_option else arguments[1:]))
    if not is_option and not first.endswith(".toml"):
        return _by_word(first, options)
    foreign = [name for name, _ in options if f"--{name}" not in OURS]
    file = next((word for word in arguments if word.endswith(".toml") and not word.startswith("-")), "")
    if not foreign or (not file and first in OURS):
        return ""
    if not file:
        return _file(f"got --{visible(foreign[0], 60)} and no settings file", options)
    told = _translated([(name, "" if value == file else value) for name, value in options], written_in(file))
    return f"--{visible(foreign[0], 60)}: no such option{told}" if told else ""


_OF_PLAY = {
    "max_num_episodes num_episodes n_episodes eval_episodes": "--episodes {}",
    "max_num_frames n_timesteps num_timesteps": "--max-steps {}",
    "no_render": "nothing: without --render nothing is shown",
    "eval_deterministic deterministic": "nothing: the best actions are taken, and --sampled draws them",
    "stochastic": "--sampled",
    "save_video record record_video video_name": "--video FILE.mp4",
    "load_checkpoint_kind load_best": "--checkpoint best, or last",
    "experiment exp_name exp_id run_name experiment_name": "RUN: play {} takes the newest run of that name",
    "train_dir f folder log_path logdir log_dir": "--dir {}",
    "env env_id algo algo_name": "nothing: the settings of the run say it",
}
"""Options of other packages for what plays or tests a policy, as they are for `play` and `eval`."""


def answered_by(usage: str, arguments: Sequence[str], known: Collection[str]) -> str:
    """Say what options of other packages are for a command of this program; empty where none is known.

    Args:
        usage: of the command, its name first.
        arguments: of the command.
        known: its own options.
    """
    options = [(name, value) for name, value in _options(arguments) if f"--{name}" not in (*known, *OURS, "--h")]
    if not options:
        return ""
    command = usage.removeprefix("python -m mlxe_async ").partition(" ")[0]
    if "--set" in known:
        file = next((word for word in arguments if word.endswith(".toml")), "")
        told = _translated(options, written_in(file) if file else written_in({}), command)
    else:
        told = _of_play(options, command)
    return f"{command}: --{visible(options[0][0], 60)}: no such option{told}" if told else ""


def _of_play(options: Sequence[tuple[str, str]], command: str = "play") -> str:
    """Say what options are for a command that takes a run."""
    told = []
    for name, value in options:
        found = _of(_OF_PLAY, name) if command in ("play", "eval") else _of(_OF_RUNS, name)
        if found:
            given = found.format(shlex.quote(visible(value, 60)) if value else "VALUE")
            told.append(f"--{visible(name, 40)} is {given.replace('RUN: play', f'RUN: {command}')}")
    return f"; {'; '.join(told)}" if told else ""


_OF_RUNS = {names: said for names, said in _OF_PLAY.items() if said.startswith(("RUN", "--dir", "nothing: the s"))}


def _by_word(first: str, options: Sequence[tuple[str, str]]) -> str:
    """The answer to a line that begins with a word that is neither a command nor a settings file."""
    word = re.sub(r"\.py$", "", first.rpartition("/")[2]).lower()
    got = f'got "{visible(first, 60)}"'
    if word in _LEARN:
        return _file(got, options)
    if verb := _of(_VERBS, word):
        told = _of_play(options, verb.partition(" ")[0]) if verb.startswith(("play", "eval")) else ""
        return f"{got}, expected {_command(verb)}{told or _translated(options, written_in({}))}"
    if _algorithm(first):
        return _file(f"{got}, an algorithm", options, algorithm=first)
    if re.fullmatch(r"[\w:/.-]+-v\d+", first, re.ASCII):
        return _file(f"{got}, a task", options, env=first)
    if first.endswith((".yaml", ".yml", ".json", ".py", ".ini", ".cfg")):
        told = f"{got}, expected a settings file in TOML"
        return f"{told}: {_new()} writes one{_translated(options, written_in({}))}"
    return ""


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
    name = {"rainbow_atari": "rainbow", "qdagger": "dqn", "ppg": "ppo"}.get(name, name)
    parts = [name, *(name[: match.start()] for match in reversed(list(re.finditer("[_-]", name))))]
    return next((one for one in parts if one in REGISTRY), _meant(name))


def _meant(name: str) -> str:
    """The algorithm that a name of another package stands for; empty where it is none of those that are known."""
    return meant_by(name)[0] if name.replace("-", "_") in NAMES_ELSEWHERE else ""


def _file(got: str, options: Sequence[tuple[str, str]], *, algorithm: str = "", env: str = "") -> str:
    """The sentence that writes a settings file for an algorithm and a task, as far as they are known."""
    others = []
    for name, value in options:
        key = next(iter(SYNONYMS.get(name.lower().replace("-", "_"), ())), f"task.{name}" if name == "env" else "")
        if key == "task.env" and value:
            env = env or value
        elif (key == "algorithm.name" or name == "run") and value:
            algorithm = algorithm or value
        else:
            others.append((name, value))
    ours = _algorithm(algorithm)
    what = "expected FILE.toml, which says what to learn"
    beside = meant_by(algorithm)[1] if ours and _meant(algorithm.lower()) else ""
    more = f"; {visible(algorithm, 60)} is {ours} {beside}" if beside else ""
    written = (
        written_in({"task": {"env": env or "CartPole-v1"}, "algorithm": {"name": ours}}) if ours else written_in({})
    )
    told = _translated(others, written)
    return f"{got}, {what}: {_new(env, ours)} writes one, and {_RUN} runs it{more}{told}"


def _option(name: str, value: str, file: Written) -> str:
    """Say what an option is, in words behind its name; empty where it is not known."""
    if other := _of(FLAGS, name):
        return f" is {other}"
    if found := answer(name, parsed(value), file, spelt=value):
        return f" is {found.on_line}" if found.keys else f": {found.why}"
    from mlxe_async.settings import Settings  # takes a moment that only a mistake costs

    plain = name.replace("-", "_")
    for table in ("task", "stop", "run", "learner", "memory", "evaluation", "checkpoint", "schedule"):
        fields = getattr(Settings.model_fields[table].annotation, "model_fields", {})
        if plain in fields or (table, plain) in _OF_SCHEDULES:
            return f" is {own_key(f'{table}.{plain}', parsed(value), file).on_line}"
    if plain in (file.fields or ()):
        return f" is {own_key(f'algorithm.{plain}', parsed(value), file).on_line}"
    return ""


def _new(env: str = "", algorithm: str = "") -> str:
    named = f" --algorithm {algorithm}" if algorithm else ""
    return f"python -m mlxe_async advise {shlex.quote(visible(env, 60)) if env else 'ENV'}{named} --write FILE.toml"


def _command(words: str) -> str:
    return words if words.startswith("python") else f"python -m mlxe_async {words}"


def _translated(options: Sequence[tuple[str, str]], file: Written, command: str = "") -> str:
    """Say what each option is here, as the end of a sentence."""
    words = [(f"--{visible(name, 40)}", name, value) for name, value in options if f"--{name}" not in OURS]
    told = [f"{word}{said}" for word, name, value in words if (said := _option(name, value, file))]
    if command == "compare":
        told = [one.replace("is --seeds N", "is --seeds 0..N-1") for one in told]
    return f"; {'; '.join(told)}" if told else ""
