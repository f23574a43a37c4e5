"""How a picture looks on a terminal: lines of styled text for a width and a height.

Colour carries no meaning that a word or a shape does not carry too, and only colours that can be read on light and on
dark grounds are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.text import Text

from mlxe_async.cli.view.picture import FAULTS, UNITS, Lane, Picture, Test

NAME = 11
DOING = 10
RATE = 17
BAR = 24
TWO_COLUMNS = 110
GAP = 4
LONGEST_STRIP = 60

COLOURS = {"executor": "cyan", "learner": "green", "memorizer": "magenta", "evaluator": "blue"}


class Glyphs:
    """The characters to draw with.

    Args:
        plain: ASCII only.
    """

    def __init__(self, *, plain: bool = False) -> None:
        self.levels = "..::-==#" if plain else "▁▂▃▄▅▆▇█"
        self.full, self.rest = ("#", "-") if plain else ("━", "─")
        self.untold = "?" if plain else "·"
        self.dot = " - " if plain else " · "
        self.branch = "`-" if plain else "└ "
        self.overflow: Literal["crop", "ellipsis"] = "crop" if plain else "ellipsis"


def draw(picture: Picture, now_ns: int, width: int, height: int, glyphs: Glyphs) -> list[Text]:
    """The whole picture, no line wider than `width`, no more lines than `height`.

    Args:
        picture: what is known.
        now_ns: the present, by the clock of the log.
        width: columns to be used.
        height: lines to be used.
        glyphs: characters to be used.
    """
    if picture.began_ns is None:
        return [
            _cut(Text("starting: the environment is tried once, then the processes are made", "dim"), width, glyphs)
        ]
    head = _head(picture, now_ns, width, glyphs)
    foot = _faults(picture, now_ns, glyphs)
    if width >= TWO_COLUMNS:
        half = (width - GAP) // 2
        right = [*_facts(picture, half, glyphs), *_bars(picture, now_ns, half, glyphs)]
        left = _lanes(picture, now_ns, half, max(2, height - len(head) - len(foot) - 2), glyphs)
        blocks = [head, _beside(left, right, half, glyphs), foot]
    else:
        middle = [*_facts(picture, width, glyphs)]
        bars = _bars(picture, now_ns, width, glyphs)
        room = height - len(head) - len(middle) - len(bars) - len(foot) - 3
        blocks = [head, _lanes(picture, now_ns, width, max(2, room), glyphs), [*middle, *bars], foot]
    airy = sum(map(len, blocks)) + len(blocks) - 1 <= height
    lines = [line for block in blocks for line in ([Text(), *block] if airy and block is not head else block)]
    return [_cut(line, width, glyphs) for line in lines[:height]]


def _head(picture: Picture, now_ns: int, width: int, glyphs: Glyphs) -> list[Text]:
    title = picture.title
    state = duration(picture.elapsed(now_ns))
    if picture.ending:
        state = f"ended ({picture.ending}) after {state}"
    elif picture.is_lost:
        state = f"gone without a word after {state}"
    elif picture.stopping:
        state = f"stops ({picture.stopping}), {state}"
    solved = f"solved{glyphs.dot}" if picture.is_solved else ""
    first = Text.assemble((title["run"], "bold"), " ")
    last = Text.assemble((solved, "bold green"), (state, "bold red" if picture.is_lost else "bold"))
    first.truncate(max(0, width - last.cell_len), overflow=glyphs.overflow)
    first.append(" " * max(1, width - first.cell_len - last.cell_len)).append(last)
    about = [f"{title['algorithm']} on {title['env']}", f"schedule {title['schedule']}", f"seed {title['seed']}"]
    what = glyphs.dot.join([*about, picture.stage] if picture.stage else about)
    counts = Text()
    for value, unit in (
        (f"{picture.counts['env_steps']:,}", "steps"),
        (f"{picture.rate(now_ns):,.0f}/s", ""),
        (f"{picture.counts['episodes']:,}", "episodes"),
        (f"{picture.counts['updates']:,}", "updates"),
        (f"{picture.version:,}", "versions"),
    ):
        counts.append(value, "bold").append(f" {unit}   " if unit else "   ")
    return [first, Text(what, "dim"), counts]


def _facts(picture: Picture, width: int, glyphs: Glyphs) -> list[Text]:
    mean, best = picture.mean_return(), picture.best
    said = f"mean {_number(mean)}  best {_number(best)}" if mean is not None and best is not None else "none yet"
    room = max(0, min(LONGEST_STRIP, width - NAME - 1 - len(said) - 2))
    lines = [_named("return").append(sparkline(picture.returns.points(room), glyphs), "green")]
    lines[0].append("  " if lines[0].cell_len > NAME + 1 else "").append(said)
    lines.append(_named("policy lag"))
    if picture.lag_mean is None:
        lines[-1].append("none yet", "dim")
    else:
        largest = f", max {_number(picture.lag_max)}" if picture.lag_max is not None else ""
        bound = f", bound {_number(picture.lag_limit)}" if picture.lag_limit is not None else ""
        lines[-1].append(f"mean {_number(picture.lag_mean)}{largest}{bound} versions")
    if picture.test is not None:
        lines.append(_test(picture.test, glyphs))
    if picture.metrics:
        told = glyphs.dot.join(f"{name} {_number(value)}" for name, value in picture.metrics.items())
        lines.append(_named("metrics").append(told))
    if picture.slowest:
        lines.append(_named("limit").append(f"{picture.slowest}: {picture.advice}", "dim"))
    return lines


def _test(test: Test, glyphs: Glyphs) -> Text:
    line = _named("last test").append(f"version {test.version:,} ")
    verdicts = {True: ("passed", "bold green"), False: ("failed", "bold"), None: ("not judged", "bold")}
    line.append(*verdicts[test.passed])
    if test.failed_at is not None:
        line.append(f" at step {test.failed_at:,.0f}")
    if test.return_mean is not None:
        line.append(f"{glyphs.dot}mean return {_number(test.return_mean)}")
    return line


def _bars(picture: Picture, now_ns: int, width: int, glyphs: Glyphs) -> list[Text]:
    lines = []
    if picture.takes_rollouts:
        rows = "" if picture.rollout_rows is None else f", {picture.rollout_rows:,.0f} rows in the last"
        lines.append(_named("memory").append(f"rollouts, learned from once{rows}", "dim"))
    elif picture.kept is None:
        lines.append(_named("memory").append("not counted yet", "dim"))
    else:
        lines.append(_bar("memory", picture.kept, picture.capacity, "rows", width, glyphs, "magenta"))
    for name, (spent, limit) in picture.towards_stop(now_ns).items():
        title, unit = name.removeprefix("env_"), "in a row" if name == "passed" else ""
        line = _bar(title, spent, limit, unit, width, glyphs, "default")
        if (seconds := picture.to_go(name, now_ns)) is not None:
            line.append(f"{glyphs.dot}{duration(seconds)} to go", "dim")
        lines.append(line)
    if not picture.limits and not picture.passes:
        lines.append(_named("stop").append("no condition: it goes on until it is told to stop", "dim"))
    return lines


def _bar(name: str, value: float, limit: float, unit: str, width: int, glyphs: Glyphs, colour: str) -> Text:
    room = max(4, min(BAR, width - NAME - 34)) if width < TWO_COLUMNS // 2 else BAR
    filled = max(0, min(room, round(room * value / limit))) if limit else 0
    line = _named(name).append(glyphs.full * filled, f"bold {colour}").append(glyphs.rest * (room - filled), "dim")
    return line.append(f" {value:,.0f}").append(f" of {limit:,g} {unit}".rstrip() if limit else f" {unit}", "dim")


def _lanes(picture: Picture, now_ns: int, width: int, room: int, glyphs: Glyphs) -> list[Text]:
    lanes = list(picture.lanes.values())
    executors = [lane for lane in lanes if lane.role == "executor"]
    others = [lane for lane in lanes if lane.role != "executor"]
    shown = executors
    if len(lanes) > room:  # the odd ones are the ones to see
        alone = max(0, room - len(others) - 1)
        shown = sorted(sorted(executors, key=lambda lane: not lane.is_faulty)[:alone], key=executors.index)
    rest = [lane for lane in executors if lane not in shown]
    lines = [_lane(lane, now_ns, width, glyphs) for lane in shown]
    if rest:
        lines.append(_summary(rest, len(shown), now_ns, width, glyphs))
    return lines + [_lane(lane, now_ns, width, glyphs) for lane in others]


def _lane(lane: Lane, now_ns: int, width: int, glyphs: Glyphs) -> Text:
    shares = lane.activity.shares(now_ns, _strip_room(width))
    is_guest = lane.role == "memorizer" and not lane.own_process
    name = f"{glyphs.branch}{lane.name}" if is_guest else lane.name
    share, rate = lane.activity.lately(now_ns)
    return _row(name, lane.doing(now_ns), shares, share, rate, lane.role, glyphs, is_faulty=lane.is_faulty)


def _summary(lanes: Sequence[Lane], shown: int, now_ns: int, width: int, glyphs: Glyphs) -> Text:
    strips = [lane.activity.shares(now_ns, _strip_room(width)) for lane in lanes]
    known = [[share for share in column if share is not None] for column in zip(*strips, strict=True)]
    shares = [sum(column) / len(column) if column else None for column in known]
    lately = [lane.activity.lately(now_ns) for lane in lanes]
    share = sum(share for share, _ in lately) / len(lanes)
    faulty = sum(lane.is_faulty for lane in lanes)
    doing = f"{faulty} ill" if faulty else "generate"
    name = f"{len(lanes):,} {'more' if shown else 'exec.'}"
    rate = sum(rate for _, rate in lately)
    return _row(name, doing, shares, share, rate, "executor", glyphs, is_faulty=faulty > 0)


def _row(
    name: str,
    doing: str,
    shares: Sequence[float | None],
    share: float,
    rate: float,
    role: str,
    glyphs: Glyphs,
    *,
    is_faulty: bool,
) -> Text:
    line = _named(name).append(f"{doing:<{DOING}}", "bold red" if is_faulty else "")
    line.append("".join(_cell(part, glyphs) for part in shares), COLOURS[role])
    return line.append(f" {share:>4.0%}").append(f"{compact(rate):>7} {UNITS[role]:<9}", "dim")


def _strip_room(width: int) -> int:
    return max(0, min(LONGEST_STRIP, width - NAME - 1 - DOING - 5 - RATE))


def _cell(share: float | None, glyphs: Glyphs) -> str:
    if share is None:
        return glyphs.untold
    return " " if share < 0.01 else glyphs.levels[min(7, int(share * 8))]


def _faults(picture: Picture, now_ns: int, glyphs: Glyphs) -> list[Text]:
    line = _named("faults")
    if not picture.faults:
        return [line.append("none", "dim")]
    counted = [f"{count:,} {FAULTS[name][count != 1]}" for name, count in picture.faults.items()]
    line.append(glyphs.dot.join(counted), "bold red")
    ago = duration(max(0.0, (now_ns - picture.last_fault_ns) / 1e9))
    return [line, _named("").append(f"{ago} ago: {picture.last_fault}", "dim")]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _named(name: str) -> Text:
    return Text(f"{name:<{NAME}} ")


def _beside(left: Sequence[Text], right: Sequence[Text], half: int, glyphs: Glyphs) -> list[Text]:
    lines = []
    for number in range(max(len(left), len(right))):
        line = _cut(left[number], half, glyphs) if number < len(left) else Text()
        if number < len(right):
            line.append(" " * (half + GAP - line.cell_len)).append(_cut(right[number], half, glyphs))
        lines.append(line)
    return lines


def _cut(line: Text, width: int, glyphs: Glyphs) -> Text:
    line.truncate(width, overflow=glyphs.overflow)
    line.rstrip()
    return line


def sparkline(values: Sequence[float], glyphs: Glyphs) -> str:
    """The values as a row of bars, the smallest lowest."""
    if not values:
        return ""
    low, span = min(values), max(values) - min(values)
    return "".join(glyphs.levels[min(7, int(8 * (value - low) / span)) if span else 3] for value in values)


def duration(seconds: float) -> str:
    """`12 s`, `3 min 05 s`, `2 h 07 min`, `3 d 04 h`."""
    whole = int(seconds)
    for unit, small, part, each in (("d", "h", 86_400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= part:
            return f"{whole // part} {unit} {whole % part // each:02} {small}"
    return f"{whole} s"


def compact(number: float) -> str:
    """At most five characters: `0.3`, `950`, `9,500`, `12.3k`, `4.56M`."""
    if number < 9.95:
        return f"{number:.1f}" if number >= 0.05 else "0"
    for limit, factor, mark in ((9_999.5, 1, ""), (999_500, 1e3, "k"), (999.5e6, 1e6, "M"), (1e30, 1e9, "G")):
        if number < limit:
            value = number / factor
            return f"{value:,.0f}{mark}" if not mark or value >= 99.95 else f"{value:.3g}{mark}"
    return "much"
