"""Try every order in which a few processes can meet in shared memory, machines that reorder included.

A process is a generator that yields what it does to memory and is sent what it loads::

    ("load", place)                    the value is sent back
    ("store", place, value[, fact])    `fact` = (key, value) becomes true at this very moment, for the judge only
    ("fence",)                         a fence of the protocol
    ("sync",)                          the kernel's: one process died before another was started
    ("judge", question)                the case's own check; it may end the search by raising `Bad`

and returns the program it goes on with. The explorer walks over all states, depth first, each once. An adversary
chooses who goes next, what a load returns, when a buffered store lands, and when a process is killed.

Two machines:

- `Ordered` is x86: each process has a first-in-first-out buffer of stores; loads are in order and fresh.
- `Weak` is weaker than ARM: a store stays in its place's history for ever, and a load may return any entry that is not
  older than what this process knows of the place already. Knowledge travels only through fences: what a process knew at
  its last fence goes with its later stores, and whoever loads one of these knows it too after its own next fence.
  (Stores that depend on loads are not moved before them; no machine with control dependencies does that.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

Op = tuple[Any, ...]
Program = tuple[Any, ...]  # (name, *state)
Facts = tuple[tuple[Any, Any], ...]


class Bad(Exception):
    """The protocol did something it must never do."""


@dataclass(frozen=True)
class Case:
    """One question for the explorer.

    Args:
        places: names of the words of shared memory, with what they hold at first.
        programs: by name, what a process does; takes the rest of the program's tuple.
        start: the programs that run at first.
        kill: what takes the place of a killed program, or None if this one is not to be killed now.
        zombies: a killed process goes on, beside the one that takes its place.
        judge: looks at a question, the facts so far; raises `Bad`.
        finished: whether these programs have done all their work.
        fences: names of the programs whose fences work.
    """

    places: Mapping[Any, Any]
    programs: Mapping[str, Callable[..., Generator[Op, Any, Program]]]
    start: tuple[Program, ...]
    kill: Callable[[Program], Program | None]
    judge: Callable[[Any, Facts], None]
    finished: Callable[[tuple[Program, ...]], bool]
    zombies: bool = False
    fences: frozenset[str] = frozenset()


class Process(NamedTuple):
    """A process in a state: its program, what it has loaded since that began, and the machine's part of it."""

    program: Program
    loaded: tuple[Any, ...]
    own: Any


class State(NamedTuple):
    memory: tuple[Any, ...]
    processes: tuple[Process, ...]
    facts: Facts


class Ordered:
    """x86: own = the buffer, a tuple of (place, value)."""

    eager = ("end", "judge")  # nobody else can see these: they need no second order

    def memory(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return values

    def newcomer(self, memory: tuple[Any, ...]) -> Any:
        return ()

    def loads(self, memory: tuple[Any, ...], own: Any, place: int) -> Iterator[tuple[Any, Any]]:
        for where, value in reversed(own):
            if where == place:
                yield value, own
                return
        yield memory[place], own

    def store(self, memory: tuple[Any, ...], own: Any, place: int, value: Any) -> tuple[tuple[Any, ...], Any]:
        return memory, (*own, (place, value))

    def fence(self, own: Any) -> Any:
        return own

    def land(self, memory: tuple[Any, ...], own: Any) -> tuple[tuple[Any, ...], Any] | None:
        """The oldest buffered store reaches memory."""
        if not own:
            return None
        (place, value), *rest = own
        return (*memory[:place], value, *memory[place + 1 :]), tuple(rest)

    def latest(self, memory: tuple[Any, ...]) -> list[Any]:
        return list(memory)


class Weak:
    """Weaker than ARM: memory = a history of (value, knowledge) per place; own = (known, heard, published)."""

    # A process that only stores may run ahead as well: whoever loads can still choose everything older.
    eager = ("end", "judge", "store", "fence", "sync")

    def memory(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(((value, (0,) * len(values)),) for value in values)

    def newcomer(self, memory: tuple[Any, ...]) -> Any:
        return ((0,) * len(memory),) * 3

    def loads(self, memory: tuple[Any, ...], own: Any, place: int) -> Iterator[tuple[Any, Any]]:
        known, heard, published = own
        history = memory[place]
        for age in range(known[place], len(history)):
            value, knowledge = history[age]
            yield value, (_put(known, place, age), _join(heard, knowledge), published)

    def store(self, memory: tuple[Any, ...], own: Any, place: int, value: Any) -> tuple[tuple[Any, ...], Any]:
        known, heard, published = own
        age = len(memory[place])
        history = (*memory[place], (value, _put(published, place, age)))
        return (*memory[:place], history, *memory[place + 1 :]), (_put(known, place, age), heard, published)

    def fence(self, own: Any) -> Any:
        known, heard, _ = own
        known = _join(known, heard)
        return known, known, known

    def land(self, memory: tuple[Any, ...], own: Any) -> None:
        return None

    def latest(self, memory: tuple[Any, ...]) -> list[Any]:
        return [history[-1][0] for history in memory]


def _put(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _join(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return left if left == right else tuple(map(max, left, right))


class Explorer:
    """Walks over all states of a case on a machine.

    Args:
        case: what runs.
        machine: `Ordered()` or `Weak()`.
    """

    def __init__(self, case: Case, machine: Ordered | Weak) -> None:
        self.case, self.machine = case, machine
        self.names = {name: number for number, name in enumerate(case.places)}
        self.states = 0
        self._next = lru_cache(maxsize=None)(self._peek)
        self._hopeful: set[Any] = set()

    def explore(self, most: int = 3_000_000) -> int:
        """Visit every state; the number of them.

        Raises:
            Bad: a state breaks the protocol's promise, or none of its futures keeps it.
            RuntimeError: there are more than `most` states.
        """
        memory = self.machine.memory(tuple(self.case.places.values()))
        first = tuple(Process(program, (), self.machine.newcomer(memory)) for program in self.case.start)
        stack = [State(memory, first, ())]
        seen = set(stack)
        while stack:
            state = stack.pop()
            if all(not process.loaded and not self._buffered(process) for process in state.processes):
                self._must_be_able_to_finish(state)
            for after in self._steps(state):
                if after not in seen:
                    seen.add(after)
                    stack.append(after)
            if len(seen) > most:
                raise RuntimeError(f"more than {most} states")
        self.states = len(seen)
        return self.states

    def _buffered(self, process: Process) -> bool:
        return isinstance(self.machine, Ordered) and bool(process.own)

    def _peek(self, program: Program, loaded: tuple[Any, ...]) -> Op:
        """What a program does after these answers; ("end", program) when it returned."""
        running = self.case.programs[program[0]](*program[1:])
        answers = iter(loaded)
        try:
            op = next(running)
            for answer in answers:
                op = running.send(answer)
        except StopIteration as end:
            return ("end", end.value)
        return op

    def _steps(self, state: State) -> Iterator[State]:
        for number, process in enumerate(state.processes):
            op = self._next(process.program, process.loaded)
            idle = op == ("end", process.program) and not process.loaded
            if not idle and op[0] in self.machine.eager:
                yield from self._killed(state, number)
                yield from self._done(state, number, op)
                return
        for number, process in enumerate(state.processes):
            yield from self._killed(state, number)
            landed = self.machine.land(state.memory, process.own)
            if landed is not None:
                yield self._with(state, number, process._replace(own=landed[1]), landed[0])
            yield from self._done(state, number, self._next(process.program, process.loaded))

    def _done(self, state: State, number: int, op: Op) -> Iterator[State]:
        process = state.processes[number]
        kind = op[0]
        if kind == "end":
            if op[1] != process.program or process.loaded:
                yield self._with(state, number, Process(op[1], (), process.own))
        elif kind == "load":
            for value, own in self.machine.loads(state.memory, process.own, self.names[op[1]]):
                yield self._with(state, number, process._replace(loaded=(*process.loaded, value), own=own))
        elif kind == "store":
            memory, own = self.machine.store(state.memory, process.own, self.names[op[1]], op[2])
            after = self._with(state, number, process._replace(loaded=(*process.loaded, None), own=own), memory)
            yield after._replace(facts=_with_fact(state.facts, op[3])) if len(op) > 3 else after
        elif kind == "judge":
            self.case.judge(op[1], state.facts)
            yield self._with(state, number, process._replace(loaded=(*process.loaded, None)))
        else:
            works = kind == "sync" or process.program[0] in self.case.fences
            own = self.machine.fence(process.own) if works else process.own
            yield self._with(state, number, process._replace(loaded=(*process.loaded, None), own=own))

    def _killed(self, state: State, number: int) -> Iterator[State]:
        process = state.processes[number]
        heir = self.case.kill(process.program)
        if heir is None:
            return
        memory, own = state.memory, process.own
        if self.case.zombies:
            after = self._with(state, number, Process(("zombie", *process.program[1:]), process.loaded, own))
            yield after._replace(processes=(*after.processes, Process(heir, (), own)))
            return
        # What a dead process stored is there for whoever was told of its death.
        while (landed := self.machine.land(memory, own)) is not None:
            memory, own = landed
        yield self._with(state, number, Process(heir, (), own), memory)

    def _with(self, state: State, number: int, process: Process, memory: Any = None) -> State:
        processes = (*state.processes[:number], process, *state.processes[number + 1 :])
        return State(state.memory if memory is None else memory, processes, state.facts)

    def _must_be_able_to_finish(self, state: State) -> None:
        """From here, with everything fresh and nobody killed, all the work gets done: nothing is lost or stuck."""
        memory = self.machine.latest(state.memory)
        programs = [process.program for process in state.processes]
        key = (tuple(memory), tuple(programs), state.facts)
        if key in self._hopeful:
            return
        self._hopeful.add(key)
        facts = state.facts
        while not self.case.finished(tuple(programs)):
            before = (list(programs), list(memory))
            for number, program in enumerate(programs):
                running = self.case.programs[program[0]](*program[1:])
                answer: Any = None
                while True:
                    try:
                        op = running.send(answer)
                    except StopIteration as end:
                        programs[number] = end.value
                        break
                    answer = None
                    if op[0] == "load":
                        answer = memory[self.names[op[1]]]
                    elif op[0] == "store":
                        memory[self.names[op[1]]] = op[2]
                        facts = _with_fact(facts, op[3]) if len(op) > 3 else facts
                    elif op[0] == "judge":
                        self.case.judge(op[1], facts)
            if before == (programs, memory):
                raise Bad(f"nobody can go on: {programs} with {dict(zip(self.names, memory, strict=True))}")


def _with_fact(facts: Facts, fact: tuple[Any, Any]) -> Facts:
    return tuple(sorted({**dict(facts), fact[0]: fact[1]}.items(), key=repr))
