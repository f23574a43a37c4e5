"""Everything the log can tell: one frozen dataclass per event, a sentence per field.

Every line of `log.jsonl` holds the fields of `COMMON` and those of one event. Numbers are numbers; what is unknown or
not finite is null. The same table makes the JSON schema that `python -m mlxe_async schema --events` prints.
"""

from __future__ import annotations

import re
import types
import typing
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

Phase = Literal["generate", "memorize", "learn", "publish", "evaluate", "checkpoint"]

COMMON: dict[str, tuple[type | types.UnionType, str]] = {
    "ts": (str, "Wall clock, UTC, ISO 8601 with milliseconds. May jump; for people."),
    "mono_ns": (int, "Monotonic clock of the host in nanoseconds: for differences."),
    "seq": (int, "Number of the line within the run, from 0; a gap means lost lines."),
    "run": (str, "The run's name: that of its folder."),
    "event": (str, "Which event the line tells."),
    "role": (str, "The role that it is about: supervisor, nursery, probe, executor, memorizer, learner or evaluator."),
    "idx": (int | None, "Which executor, from 0; null for roles there is one of."),
}


@dataclass(frozen=True)
class Event:
    """Base of all events; `name` is what stands under `event` in the log."""

    name: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Event")).lower()


@dataclass(frozen=True)
class RunStart(Event):
    """The run begins; no role has been started."""

    seed: Annotated[int, "The run's seed."]
    schedule: Annotated[str, "Who waits for whom: serial, istb, is, ia or oa."]
    algorithm: Annotated[str, "What learns."]
    env: Annotated[str, "What is learned."]
    settings: Annotated[dict[str, Any], "All settings, defaults included, without secrets."]
    versions: Annotated[dict[str, str], "Versions of Python and of the packages that matter."] = field(
        default_factory=dict
    )
    host: Annotated[dict[str, Any], "Kernel, cores and memory of the host."] = field(default_factory=dict)
    python_path: Annotated[list[str], "Folders from which own code may be imported."] = field(default_factory=list)
    modules: Annotated[list[str], "Modules that the settings name to be imported."] = field(default_factory=list)
    resumed: Annotated[bool, "Whether the run goes on from a checkpoint."] = False


@dataclass(frozen=True)
class RunResume(Event):
    """The run goes on from a checkpoint: what was told from that moment on, until it was taken up, is void."""

    checkpoint: Annotated[int, "Its number; 0: nothing was saved, and the run begins anew."]
    version: Annotated[int, "Version of the weights in it."]
    env_steps: Annotated[int, "Environment steps until then."]
    episodes: Annotated[int, "Episodes finished until then."]
    updates: Annotated[int, "Updates until then."]
    seconds: Annotated[float, "Seconds the run had used until then."]
    previous_run_died: Annotated[bool, "Whether the run ended without a last word."] = False
    changed: Annotated[list[str], "Settings that are others now, with the old and the new value."] = field(
        default_factory=list
    )
    versions: Annotated[list[str], "Python and packages that are others now, with the old and the new version."] = (
        field(default_factory=list)
    )
    exact: Annotated[bool, "Whether it goes on as if it had never been interrupted, as far as is known."] = True
    void_from: Annotated[
        int | None, "Number of the first line that is void: the next one when the state was taken."
    ] = None
    void_to: Annotated[int | None, "Number of the last line before the run was taken up; below void_from: none is."] = (
        None
    )
    gap_ns: Annotated[
        int | None, "To be taken from the clocks of all lines since then, so that they go on from there."
    ] = None


@dataclass(frozen=True)
class InitFrom(Event):
    """The run begins with the weights of another run."""

    path: Annotated[str, "The other run's folder."]
    checkpoint: Annotated[int, "Number of the checkpoint that was taken."]
    version: Annotated[int, "Version of the weights in it."]
    weights_hash: Annotated[str, "SHA-256 of these flat weights."]
    passed_over: Annotated[list[str], "Checkpoints that are damaged, and why; another one was taken instead."] = field(
        default_factory=list
    )


@dataclass(frozen=True)
class ProbeOk(Event):
    """Environment, network and `[algorithm]` were built once and fit together."""

    seconds: Annotated[float, "Seconds the probe took."]
    spaces: Annotated[dict[str, Any], "What the environment shows and takes."]
    parameters: Annotated[int, "Weights of the network."]
    plan_bytes: Annotated[int | None, "Shared memory the run reserves."] = None
    memory: Annotated[str, "What is kept of the rows: replay, or rollouts, which are learned from once."] = "replay"


@dataclass(frozen=True)
class ProcStart(Event):
    """A process is ready to work."""

    process: Annotated[str, "Its name, as in ps."]
    pid: Annotated[int, "Its process id."]
    epoch: Annotated[int, "Which process of this name it is, from 1."]
    seconds: Annotated[float, "Seconds from the request to its hand-shake."]


@dataclass(frozen=True)
class ProcExit(Event):
    """A process ended."""

    process: Annotated[str, "Its name."]
    pid: Annotated[int, "Its process id."]
    epoch: Annotated[int, "Which process of this name it was, from 1; 0 for the nursery, where they are not counted."]
    expected: Annotated[bool, "Whether it was asked to end."]
    sentence: Annotated[str, "How it ended, in words."]
    code: Annotated[int | None, "Its exit code; null when a signal killed it."] = None
    signal: Annotated[str | None, "The signal that killed it."] = None
    stack: Annotated[str, "The stack it left behind in a crash, if any."] = ""


@dataclass(frozen=True)
class ProcRestart(Event):
    """A process that died will be replaced."""

    process: Annotated[str, "Its name."]
    epoch: Annotated[int, "Which process of this name its successor will be, from 1."]
    attempt: Annotated[int, "Which restart without progress in between, from 1."]
    delay_s: Annotated[float, "Pause before the start."]
    reason: Annotated[str, "Why it is needed, in words."]
    planned: Annotated[bool, "Whether it was replaced on purpose; such restarts count as no faults."] = False


@dataclass(frozen=True)
class Placed(Event):
    """The learner has got a core that no other process of the run may use, or shares all of them again."""

    core: Annotated[int | None, "Number of the learner's own core, null: it has none."]
    learner: Annotated[float, "What the learner had used in the second before, in cores."]
    others: Annotated[float, "The same of the run's other processes together."]
    foreign: Annotated[float, "The same of all that is not of this run."]
    starved: Annotated[float, "Share of that second in which the learner was ready to run, but had no core."] = 0.0


@dataclass(frozen=True)
class Hang(Event):
    """A process made no progress for longer than its limit and is being ended; its stack follows in `hang_stack`."""

    process: Annotated[str, "Its name."]
    pid: Annotated[int, "Its process id."]
    stuck_s: Annotated[float, "Seconds by which it has outstayed its limit."]
    limit_s: Annotated[float, "Seconds it was allowed."]
    call: Annotated[str, "What it was doing: make, reset, step, act, update, ..., or what it was asked for."] = ""
    setting: Annotated[str, "The one that has this limit; empty if none has."] = ""


@dataclass(frozen=True)
class HangStack(Event):
    """Where a process hung: told once it is dead, at most half a second later, if it could write its stack."""

    process: Annotated[str, "Its name."]
    pid: Annotated[int, "Its process id, as in the `hang` before."]
    call: Annotated[str, "What it was doing, as in the `hang` before."]
    stack: Annotated[str, "Its Python stack."]


@dataclass(frozen=True)
class EnvError(Event):
    """An environment raised or broke its contract; the row was not committed and the environment is made anew.

    With `supervision.nonfinite = "reset_env"` it is only reset after a NaN or an infinity.
    """

    env: Annotated[int, "Which of the executor's environments, from 0."]
    phase: Annotated[str, "In what: make, reset or step."]
    message: Annotated[str, "What was expected and what came."]
    episode: Annotated[int | None, "Number of the episode that is given up."] = None
    step: Annotated[int, "Steps taken in it."] = 0
    seed: Annotated[int | None, "Its seed."] = None
    faults: Annotated[int, "Faults of this executor within its window."] = 1
    trace: Annotated[str, "The traceback, if something was raised."] = ""


@dataclass(frozen=True)
class EnvNote(Event):
    """An environment does something odd that is put up with: told once by each executor for each kind."""

    kind: Annotated[str, "Which kind: dtype (observations are cast), bounds (they leave them) or endless (no end)."]
    message: Annotated[str, "What, in words."]


@dataclass(frozen=True)
class Poison(Event):
    """An episode brought its executor down again and again: it is passed over, and another seed takes its place."""

    env: Annotated[int, "Which of the executor's environments, from 0."]
    episode: Annotated[int, "Number of the episode."]
    seed: Annotated[int, "Its seed."]
    deaths: Annotated[int, "How often the executor died in it."]
    sentence: Annotated[str, "How it died at last, in words."] = ""


@dataclass(frozen=True)
class CrashReport(Event):
    """A report was written about a process that died, or an executor that was given up."""

    file: Annotated[str, "Its name in the run's folder; `python -m mlxe_async repro FILE` lives it again."]
    process: Annotated[str, "Which process."]
    what: Annotated[str, "What happened, in words."]
    env: Annotated[int | None, "Which of the executor's environments was being called, if any."] = None
    phase: Annotated[str | None, "In what: make, reset or step."] = None
    episode: Annotated[int | None, "Number of the episode."] = None
    seed: Annotated[int | None, "Its seed."] = None
    step: Annotated[int | None, "The step under way, from 1; 0 in a reset."] = None
    actions: Annotated[int | None, "Actions the report holds, from the first step on; null: not known."] = None


@dataclass(frozen=True)
class PhaseEvent(Event):
    """A phase finished: the unit of work of a run, and the one line to analyse its speed and its learning by."""

    phase: Annotated[Phase, "Which one."]
    start_ns: Annotated[int, "When it began, by the clock of mono_ns."]
    seconds: Annotated[float, "How long it took."]
    version: Annotated[int, "Version of the weights it worked with (publish: the one it made)."]
    env_steps: Annotated[
        int | None,
        "Environment steps of the run so far; learn: when it was begun, as update knows them.",
    ] = None
    rows: Annotated[int, "Rows generated, memorized, or learned from."] = 0
    episodes: Annotated[int, "Episodes that finished in it."] = 0
    updates: Annotated[int, "Updates of the weights."] = 0
    losses: Annotated[dict[str, float | None], "Means of what the algorithm reports."] = field(default_factory=dict)
    lag_min: Annotated[int | None, "Smallest policy lag of the rows learned from."] = None
    lag_mean: Annotated[float | None, "Mean policy lag."] = None
    lag_max: Annotated[int | None, "Largest policy lag."] = None
    dropped_rows: Annotated[int, "Rows left out because they were too old."] = 0
    waits: Annotated[dict[str, float], "Seconds spent waiting, by what was waited for."] = field(default_factory=dict)
    ingest_seconds: Annotated[float, "Seconds in which rows were taken in before it (memorize)."] = 0.0
    action_changes: Annotated[
        int | None, "Changes of action for which task.action_change_cost was taken off (generate)."
    ] = None


@dataclass(frozen=True)
class OfAnEpisode:
    """Fields of each event that tells of an episode which is through; no event by itself."""

    env: Annotated[int, "Which of the executor's environments, from 0."]
    episode: Annotated[int, "Its number within this environment, from 0."]
    episode_return: Annotated[float, "Sum of the environment's own rewards, without shaping."]
    length: Annotated[int, "Its steps."]
    terminated: Annotated[bool, "Whether the world ended it; else it was truncated."]
    version: Annotated[int, "Version of the weights at its last step."]


@dataclass(frozen=True)
class EpisodeEnd(OfAnEpisode, Event):
    """A training episode finished."""

    episodes: Annotated[int, "Episodes finished in the run so far, this one included."]
    env_steps: Annotated[int, "Environment steps of the run so far."]
    seed: Annotated[int | None, "Its seed."] = None
    average: Annotated[
        float | None, "Moving average of returns: 0.99 of the one before and 0.01 of this; the first is its return."
    ] = None
    discounted_return: Annotated[
        float | None,
        "Sum of algorithm.discount^t times the environment's own reward of step t, from 0; null: the algorithm has no "
        "discount.",
    ] = None


@dataclass(frozen=True)
class GreedyEpisode(OfAnEpisode, Event):
    """An episode of an executor that only exploits is through: nothing is learned from it, and it counts nowhere."""

    env_steps: Annotated[int, "Environment steps of the run so far, those of such episodes not among them."]
    seed: Annotated[int | None, "Its seed."] = None


@dataclass(frozen=True)
class Metrics(Event):
    """Numbers that an executor's environments told of themselves by `info["metrics"]`, twice a second at most."""

    values: Annotated[dict[str, float], "Mean of each since it was told last."]
    env_steps: Annotated[int, "Environment steps of the run so far."]


@dataclass(frozen=True)
class LongEpisode(Event):
    """The first training episode of stop.episode_steps steps, else of 50,000, is through.

    `began` and `ended` count the run when its rollout was asked for and when it was through: `episodes` finished,
    `episodes_started`, `env_steps` with all that executors have taken and not yet delivered, `updates`, `version`,
    `seconds`, and `mono_ns`.
    """

    length: Annotated[int, "Its steps."]
    version: Annotated[int, "Version of the weights at its last step."]
    began: Annotated[dict[str, float], "Counts then; empty where it began before the run was resumed."]
    ended: Annotated[dict[str, float], "Counts then; this episode is one of those finished."]


@dataclass(frozen=True)
class Weights(Event):
    """A version of the weights was published."""

    version: Annotated[int, "Its number, from 1."]
    updates: Annotated[int, "Updates of the run so far."]
    env_steps: Annotated[int, "Environment steps of the run so far."]
    episodes: Annotated[int, "Episodes finished so far."]
    norm: Annotated[float | None, "Euclidean norm of the flat weights."] = None


@dataclass(frozen=True)
class Quantiles(Event):
    """Quantiles of actions, weights and gradients after some updates, where logs.quantiles_every asks for them."""

    version: Annotated[int, "Version of the weights that was published then."]
    updates: Annotated[int, "Updates of the run so far."]
    env_steps: Annotated[int, "Environment steps of the run when these updates were begun."]
    values: Annotated[
        dict[str, dict[str, float]],
        "min, max, and p1, p5, p10, p25, p50, p75, p90, p95, p99, below which that part in per cent lies: of `actions` "
        "that the last update learned from, `gradients` as its last step found them, and `weights` as published; of "
        "each as a whole, and by component or parameter, such as actions/0 and weights/actor.0.weight.",
    ]
    counts: Annotated[dict[str, int], "The number of numbers of each."]
    shares: Annotated[dict[str, list[float]], "Of Discrete actions the part of rows with each, from action 0 on."] = (
        field(default_factory=dict)
    )


@dataclass(frozen=True)
class Updates(Event):
    """How a learner's process does its updates; written when it begins."""

    fast: Annotated[bool, "Whether code that was derived from the algorithm's file does them, or the file itself."]
    reason: Annotated[str | None, "Why they are done as the file is written."] = None
    products: Annotated[str | None, "Which library multiplies the matrices of such code."] = None


@dataclass(frozen=True)
class TrainingResult(Event):
    """What an iteration came to in training, with promote_best: the best version so far is chosen by it."""

    result: Annotated[float, "Mean return of its episodes by the environment's own rewards, or the sum of their steps."]
    by: Annotated[str, "Which of the two: mean_return or steps."]
    version: Annotated[int, "The version it belongs to; under oa that of the executor that ended the iteration."]


@dataclass(frozen=True)
class BestPromoted(Event):
    """Training had not become better for a while: the learner went back to the best version so far."""

    best_version: Annotated[int, "The version it went back to."]
    result: Annotated[float, "The training result of that version, see training_result."]
    iterations: Annotated[int, "Iterations since then, none of them better."]
    version: Annotated[int, "The version published next, which goes on from there."]


@dataclass(frozen=True)
class StageEvent(Event):
    """The next stage of the task's curriculum begins: episodes that begin from now on are in it."""

    stage: Annotated[int, "Which stage, counted from 1."]
    of: Annotated[int, "How many there are."]
    env_steps: Annotated[int, "Environment steps so far."]
    episodes: Annotated[int, "Training episodes that ended so far."]
    reason: Annotated[str, "Why the stage before it is over."]


@dataclass(frozen=True)
class Evaluation(Event):
    """A frozen version was tested with the greedy policy."""

    version: Annotated[int, "Which version."]
    passed: Annotated[bool | None, "Whether it passed; null: without a rule nothing is judged."]
    episodes: Annotated[int, "Test episodes begun."]
    steps: Annotated[int, "Environment steps of the test; they count nowhere else."]
    seconds: Annotated[float, "How long the test took."]
    return_min: Annotated[float | None, "Smallest return; after failed_at all episodes stop, and count so far."] = None
    return_mean: Annotated[float | None, "Mean return; likewise."] = None
    failed_at: Annotated[int | None, "Step at which the first episode failed, which ends the test."] = None
    streak: Annotated[int, "Versions in a row that passed, this one included."] = 0


@dataclass(frozen=True)
class Solved(Event):
    """Enough versions in a row passed; the counts are those of the moment when the first of them was published."""

    version: Annotated[int, "The first of the versions that passed."]
    episodes_started: Annotated[int, "Training episodes started until then."]
    env_steps: Annotated[int, "Environment steps until then."]
    updates: Annotated[int, "Updates until then."]
    seconds: Annotated[float, "Seconds from the start of the run until then."]
    cpu_seconds: Annotated[float | None, "CPU seconds of all processes but the evaluator until then."] = None
    published_ns: Annotated[int | None, "That moment, by the clock of mono_ns."] = None


@dataclass(frozen=True)
class Checkpoint(Event):
    """A checkpoint is safely on disk."""

    number: Annotated[int, "Its number."]
    version: Annotated[int, "Version of the weights in it."]
    bytes: Annotated[int, "Its size."]
    seconds: Annotated[float, "How long saving took."]
    solved: Annotated[bool, "Whether it is the one that solved the task."] = False
    best: Annotated[bool, "Whether it is kept because no tested version had a higher mean return."] = False
    whole: Annotated[bool, "Whether the run can go on from it, not only play its weights."] = False


@dataclass(frozen=True)
class CheckpointRejected(Event):
    """A checkpoint could not be saved, or is not fit to be loaded."""

    number: Annotated[int, "Its number."]
    cause: Annotated[str, "What is wrong with it."]


@dataclass(frozen=True)
class CorruptRecord(Event):
    """A committed block failed its checks and was set aside."""

    lane: Annotated[int, "The executor whose lane it is in."]
    sequence: Annotated[int, "Its number in the lane."]
    header: Annotated[str, "Its header, in hexadecimal."]


@dataclass(frozen=True)
class Ledger(Event):
    """The account of rows: committed == ingested + backlog, in every lane and in sum."""

    committed: Annotated[int, "Rows that executors committed."]
    ingested: Annotated[int, "Rows the memorizer took over."]
    backlog: Annotated[int, "Rows still in the lanes."]
    lost: Annotated[int, "Rows that are in neither place; anything but 0 is an error of ours."] = 0
    torn: Annotated[int, "Rows that failed their checks."] = 0
    kept: Annotated[int, "Rows the memory holds now."] = 0
    capacity: Annotated[int | None, "Rows it can hold."] = None
    overwritten: Annotated[int, "Rows it held that gave way to newer ones."] = 0
    throttled_s: Annotated[float, "Seconds that executors were held back, in sum, because others lagged behind."] = 0.0
    lanes: Annotated[list[dict[str, int | str]], "The same for each lane; numbers beyond 2^53 as text."] = field(
        default_factory=list
    )


@dataclass(frozen=True)
class Pushes(Event):
    """The account of gradients that executors push: made is the sum of all others, but for those under way."""

    made: Annotated[int, "Rollouts that executors were asked to differentiate."]
    applied: Annotated[int, "Pushes that the learner stepped by, each once."]
    too_old: Annotated[int, "Pushes that were older than schedule.max_policy_lag."] = 0
    odd: Annotated[int, "Pushes that were not finite, and updates that raised."] = 0
    lost: Annotated[int, "Pushes that died with a process."] = 0
    outliers: Annotated[int, "Pushes whose loss was further off than schedule.max_loss_deviations."] = 0
    given_up: Annotated[int, "Pushes that gave way to newer ones, or waited for others at the end."] = 0
    beaten: Annotated[int, "Networks whose score was not the highest so far."] = 0
    waiting: Annotated[int, "Pushes that wait for the learner."] = 0


@dataclass(frozen=True)
class Bottleneck(Event):
    """Where the time went so far, and what would help."""

    share: Annotated[dict[str, float], "Part of the time each role worked, from 0 to 1."]
    slowest: Annotated[
        str, "What limits the pace: executors, learner, memorizer, evaluator, cores, disk, straggler, rounds."
    ]
    advice: Annotated[str, "What was seen, and what could be changed, in words."] = ""
    change: Annotated[dict[str, Any], "Settings that are predicted to help, with their values."] = field(
        default_factory=dict
    )
    predicted: Annotated[float | None, "Rate after that change, as a multiple of today's; null: not known."] = None


@dataclass(frozen=True)
class Times(Event):
    """The time of a process, or of a thread of one, so far: seconds by mode, which add up to all that it lived."""

    process: Annotated[str, "Its name, as in ps."]
    seconds: Annotated[
        dict[str, float],
        "Seconds by mode since the run began or was resumed, over all lives: starting, waiting (for a request), "
        "acting, stepping, resetting, room (in its lane), taking_in, drawing, gathering, updating, exchanging (waiting "
        "for the gradients of others), publishing, keeping, testing, saving, and working (anything else); those "
        "without any are left out.",
    ]
    latencies: Annotated[
        dict[str, dict[str, float]],
        "Of acting, stepping, updating and publishing since the process was told last: count of spells, and the "
        "seconds p50, p90 and p99 that half, 90 % and 99 % of them were shorter than, to an eighth.",
    ] = field(default_factory=dict)
    histograms: Annotated[
        dict[str, dict[str, int]],
        "The same spells, counted by length: where a bucket ends in nanoseconds, and how many are in it. Each is a "
        "quarter of a doubling; empty ones are left out.",
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class Gpu(Event):
    """The learner's use of its GPU, once a second at most; never told without one."""

    device: Annotated[str, "The GPU's name."]
    allocated: Annotated[int, "Bytes of the learner's tensors."]
    reserved: Annotated[int, "Bytes that its process holds, for tensors to come too."]
    most: Annotated[int, "Most bytes of tensors so far."]
    whole: Annotated[int, "Bytes of the GPU's memory."]
    busy: Annotated[
        float | None,
        "Part of the driver's last sampling period in which any program had it compute; null: NVML is not at hand.",
    ] = None


@dataclass(frozen=True)
class Straggler(Event):
    """The others wait for one executor, which is slow but within its limits."""

    waited_s: Annotated[float, "Seconds the others have waited so far."]
    rows: Annotated[int, "Rows it has delivered meanwhile."] = 0


@dataclass(frozen=True)
class Starved(Event):
    """No rows have come in for a while: the learner has nothing to learn from."""

    waited_s: Annotated[float, "Seconds since the last rows or the last update."]
    waits_for: Annotated[str, "The process that all others wait for, in words."]


@dataclass(frozen=True)
class StopRequested(Event):
    """Someone asked the run to stop."""

    reason: Annotated[str, "Who or what: a signal's name, or a caller's words."]


@dataclass(frozen=True)
class Warning(Event):  # noqa: A001 - the name of the event in the log; the built-in is of no use in this module
    """Something is not as it should be, and the run goes on."""

    message: Annotated[str, "What, in words."]
    count: Annotated[int, "How often it was seen so far."] = 1
    loud: Annotated[bool, "Whether it is told on stderr even if nothing else is."] = False


@dataclass(frozen=True)
class LoopLag(Event):
    """The supervisor did not get to its work for a while: it was stopped, starved, or blocked by a slow callback."""

    seconds: Annotated[float, "By how much it was late."]


@dataclass(frozen=True)
class Stacks(Event):
    """A user asked what the supervisor is doing, by SIGQUIT, SIGUSR1 or `dump_stacks`; the run goes on."""

    reason: Annotated[str, "Who asked: a signal's name, or a caller's words."]
    path: Annotated[str | None, "File that has all of it, and the run's status."]
    stacks: Annotated[str, "What its threads and tasks are doing, cut at 16 KiB."] = ""


@dataclass(frozen=True)
class LogGap(Event):
    """Lines could not be written for a while, for want of disk space for example."""

    dropped: Annotated[int, "How many lines are missing."]
    cause: Annotated[str, "Why."]


@dataclass(frozen=True)
class RunEnd(Event):
    """The last line of a run that ended by itself or was asked to."""

    reason: Annotated[str, "Which stop condition, signal or failure ended it."]
    solved: Annotated[bool, "Whether the task was solved."]
    episodes: Annotated[int, "Training episodes finished."]
    env_steps: Annotated[int, "Environment steps."]
    updates: Annotated[int, "Updates of the weights."]
    seconds: Annotated[float, "Seconds since the start of the run."]
    cpu_seconds: Annotated[float, "CPU seconds of all its processes."]
    weights_hash: Annotated[str | None, "SHA-256 of the final flat weights."]
    exit_code: Annotated[int, "What the command returns."]
    trace: Annotated[str, "The traceback of what ended it, a mistake of the program's own or of foreign code."] = ""


EVENTS: dict[str, type[Event]] = {event.name: event for event in Event.__subclasses__()}


def event_schema() -> dict[str, Any]:
    """The JSON schema of one line of the log: one of the events, each with all its fields."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of log.jsonl",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in EVENTS],
        "$defs": {name: _object(event) for name, event in EVENTS.items()},
    }


def _object(event: type[Event]) -> dict[str, Any]:
    properties = {key: {**_json_type(hint), "description": about} for key, (hint, about) in COMMON.items()}
    properties["event"]["const"] = event.name
    hints = get_type_hints(event, include_extras=True)
    for item in fields(event):
        hint, about = get_args(hints[item.name])
        properties[item.name] = {**_json_type(hint), "description": about}
        if item.default is not MISSING:
            properties[item.name]["default"] = item.default
    return {
        "description": " ".join((event.__doc__ or "").split()),
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _json_type(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (types.UnionType, typing.Union):
        members = [_json_type(argument) for argument in arguments]
        names: list[str] = []
        for member in members:
            names += [member["type"]] if isinstance(member["type"], str) else member["type"]
        return {"type": list(dict.fromkeys(names))}
    if origin is list:
        return {"type": "array", "items": _json_type(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _json_type(arguments[1])}
    if hint is Any:
        return {}
    if hint is float:
        return {"type": ["number", "null"]}  # one that is not finite is written as null
    return {"type": {str: "string", bool: "boolean", int: "integer", type(None): "null"}[hint]}
