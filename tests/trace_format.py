"""The rules of the trace-event format, and what of a trace breaks them."""

from collections import defaultdict

FIELDS = {
    "X": {"name", "ts", "dur", "pid", "tid", "args"},
    "i": {"name", "ts", "pid", "tid", "s", "args"},
    "C": {"name", "ts", "pid", "tid", "args"},
    "M": {"name", "ts", "pid", "tid", "args"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "t": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
}
NUMBER = (int, float)


def ns(microseconds):
    return round(microseconds * 1000)


def of_kind(trace, *kinds):
    return [event for event in trace["traceEvents"] if event["ph"] in kinds]


def names_of_threads(trace):
    """`(pid, tid)` -> name of process and thread."""
    processes = {
        event["pid"]: event["args"]["name"] for event in of_kind(trace, "M") if event["name"] == "process_name"
    }
    return {
        (event["pid"], event["tid"]): (processes[event["pid"]], event["args"]["name"])
        for event in of_kind(trace, "M")
        if event["name"] == "thread_name"
    }


def spans_of(trace, name=None):
    """Spans as `(process, thread, name, begin, end)` in nanoseconds, in the order of the file."""
    threads = names_of_threads(trace)
    return [
        (*threads[event["pid"], event["tid"]], event["name"], ns(event["ts"]), ns(event["ts"]) + ns(event["dur"]))
        for event in of_kind(trace, "X")
        if name in (None, event["name"])
    ]


def arrows_of(trace):
    """Arrows by their number: their events in the order of the file."""
    found = defaultdict(list)
    for event in of_kind(trace, "s", "t", "f"):
        found[event["id"]].append(event)
    return found


def stops_of(trace, name):
    """Of each arrow of a name the spans that it goes through."""
    spans = defaultdict(list)
    for event in of_kind(trace, "X"):
        spans[event["pid"], event["tid"]].append(event)
    return [
        [
            next(one for one in spans[at["pid"], at["tid"]] if one["ts"] <= at["ts"] < one["ts"] + one["dur"])
            for at in events
        ]
        for events in arrows_of(trace).values()
        if events[0]["name"] == name
    ]


def problems(trace):
    """What breaks the rules, a sentence each; none: the trace is as it should be."""
    return [
        *_fields(trace),
        *_named(trace),
        *_order(trace),
        *_overlaps(trace),
        *_arrows(trace),
    ]


def _fields(trace):
    for event in trace["traceEvents"]:
        wanted = FIELDS.get(event.get("ph"))
        if wanted is None or not wanted <= set(event):
            yield f"fields: {event}"
        elif not isinstance(event["ts"], NUMBER) or event["ts"] < 0 or not isinstance(event["name"], str):
            yield f"values: {event}"
        elif event["ph"] == "X" and event["dur"] <= 0:
            yield f"no time: {event}"
        elif event["ph"] == "i" and event["s"] not in ("g", "p", "t"):
            yield f"scope: {event}"
        elif event["ph"] == "C" and not all(isinstance(value, NUMBER) for value in event["args"].values()):
            yield f"counter: {event}"


def _named(trace):
    named = {event["pid"] for event in of_kind(trace, "M") if event["name"] == "process_name"}
    threads = set(names_of_threads(trace))
    for event in trace["traceEvents"]:
        if event["pid"] not in named:
            yield f"process without a name: {event}"
        if event["ph"] in ("X", "s", "t", "f") and (event["pid"], event["tid"]) not in threads:
            yield f"thread without a name: {event}"


def _order(trace):
    last = defaultdict(int)
    for event in trace["traceEvents"]:
        track = event["pid"], event["tid"]
        if event["ts"] < last[track]:
            yield f"goes back in time: {event}"
        last[track] = event["ts"]


def _overlaps(trace):
    end = defaultdict(int)
    for event in of_kind(trace, "X"):
        track, begin = (event["pid"], event["tid"]), ns(event["ts"])
        if begin < end[track]:
            yield f"overlap of {end[track] - begin} ns: {event}"
        end[track] = begin + ns(event["dur"])


def _arrows(trace):
    spans = defaultdict(list)
    for event in of_kind(trace, "X"):
        spans[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
    for number, events in arrows_of(trace).items():
        kinds = "".join(event["ph"] for event in events)
        if kinds != "s" + "t" * (len(kinds) - 2) + "f":
            yield f"arrow {number} is not joined: {kinds}"
        if len({(event["name"], event["cat"]) for event in events}) != 1:
            yield f"arrow {number} has several names"
        if [event["ts"] for event in events] != sorted(event["ts"] for event in events):
            yield f"arrow {number} goes back in time"
        for event in events:
            at = ns(event["ts"])
            if not any(begin <= at < end for begin, end in spans[event["pid"], event["tid"]]):
                yield f"arrow {number} touches no span: {event}"
