"""The manifest holds what twins were derived from: an edit of any file that an algorithm imports is noticed."""

import ast
import contextlib
import importlib
import shutil
import subprocess
import sys
import threading

import made_rows
import proof
import pytest

from mlxe_async.algorithms import REGISTRY, Clock, load_algorithm
from mlxe_async.fast import TWINS, manifest

PACKAGE = manifest.PACKAGE
EDITS = {
    "a sign in a loss": ("algorithms/ppo.py", "return -(ratio * advantage)", "return (ratio * advantage)", "ppo"),
    "a bound": ("algorithms/ppo.py", "ratio.clamp(1 - clip", "ratio.clamp(1 - 2 * clip", "ppo"),
    "the update": ("algorithms/dqn.py", "loss.backward()", "loss.neg().backward()", "dqn"),
    "what is before it": ("algorithms/parts/value_based.py", ".target_every == 0", ".target_every == 1", "dqn"),
    "what an update calls": ("maths/returns.py", "    return advantage", "    return 2 * advantage", "ppo"),
    "a constant": ("maths/normaliser.py", "LIMIT = 10.0", "LIMIT = 9.0", "mlxe"),
    "a default": ("maths/vtrace.py", "c_clip: float = 1.0", "c_clip: float = 0.9", "mlxe"),
    "the network": ("networks/heads.py", "value + advantage - ", "value + 2 * advantage - ", "dqn"),
    "what three share": ("algorithms/parts/continuous.py", "s.discount * (1 - batch", "(1 - batch", "td3"),
    "noise on a target": ("algorithms/td3.py", "(deviation * normal).clamp", "(2 * deviation * normal).clamp", "td3"),
    "a temperature": ("algorithms/sac.py", "entropy.detach() - target", "entropy.detach() + target", "sac"),
    "an actor's loss": ("algorithms/ddpg.py", "return -q.mean()", "return -q.median()", "ddpg"),
    "a step": ("optimisers.py", "weight_decay=0.0", "weight_decay=0.1", "dqn"),
    "what a subclass asks of its base": (
        "algorithms/parts/continuous.py",
        "critic(torch.cat([obs, action]",
        "critic(torch.cat([-obs, action]",
        "sac",
    ),
    "how weights begin": ("networks/dense.py", "layers[-1] else 1.0)", "layers[-1] else 2.0)", "ppo"),
    "what a network is made of": (
        "networks/noisy.py",
        "self.weight + self.weight_sigma",
        "self.weight - self.weight_sigma",
        "dqn",
    ),
    "what nothing calls": (
        "algorithms/state/modules.py",
        "class ModulesOf:",
        "class Other:\n    pass\n\n\nclass ModulesOf:",
        "sac",
    ),
}


TELLER = """
import os, sys
import gymnasium, numpy, pydantic, torch  # once: what is edited is imported anew by each child
print("ready", flush=True)
for line in sys.stdin:
    if os.fork() == 0:
        name, place, text = eval(line)
        from mlxe_async.algorithms import load_algorithm
        from mlxe_async.fast.manifest import Watch
        import mlxe_async.networks.heads  # as whoever has made an object
        watch = Watch(load_algorithm(name), name)
        if place:
            open(place, "w").write(text)
        print(watch.difference(), flush=True)
        os._exit(0)
    os.wait()
"""


class Copied:
    """A copy of the package, and what differs in it."""

    def __init__(self, tree):
        self.package = tree / "mlxe_async"
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        # No bytecode is kept: it is told from its source by whole seconds.
        self.teller = subprocess.Popen(
            [sys.executable, "-B", "-c", TELLER], cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        # Until its environment can be read, the process passes for one that the first test has begun.
        assert self.teller.stdout.readline() == "ready\n"

    def said(self, name, place="", text=""):
        """What differs, by a process of its own; a file may change once it has begun."""
        print((name, str(place), text), file=self.teller.stdin, flush=True)
        line = self.teller.stdout.readline()
        assert line.endswith("\n"), "the process ended without a word"
        return line.strip()

    @contextlib.contextmanager
    def edited(self, place, text):
        """Another text of a file, for a while."""
        path = self.package / place
        before = path.read_text()
        path.write_text(text)
        try:
            yield
        finally:
            path.write_text(before)


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    made = Copied(tmp_path_factory.mktemp("copied"))
    with made.teller:
        yield made
        made.teller.stdin.close()


@pytest.mark.parametrize(
    "edit", [pytest.param(edit, marks=pytest.mark.slow if number % 3 else ()) for number, edit in enumerate(EDITS)]
)
def test_a_file_that_is_edited_in_place_is_noticed(copied, edit):
    place, before, after, name = EDITS[edit]
    text = (copied.package / place).read_text()
    assert before in text
    with copied.edited(place, text.replace(before, after, 1)):
        assert place.removesuffix(".py").replace("/", ".") in copied.said(name)


def test_comments_docstrings_and_layout_may_change(copied):
    place = "algorithms/ppo.py"
    text = (copied.package / place).read_text()
    told = ast.get_docstring(ast.parse(text)).splitlines()[0]
    other = text.replace(told, "Another sentence.", 1).replace("\n\n\ndef ", "\n\n\n\n# A remark.\ndef ").rstrip()
    assert other.count("# A remark.") > 1
    with copied.edited(place, other):
        assert copied.said("ppo") == ""


@pytest.mark.long
def test_a_file_that_no_algorithm_imports_may_change(copied):
    with copied.edited("tasks/cartpole.py", "1 / 0\n"):
        assert [copied.said(name) for name in ("ppo", "dqn")] == ["", ""]


@pytest.mark.long
def test_another_algorithms_file_may_change(copied):
    place = "algorithms/sac.py"
    with copied.edited(place, f"{(copied.package / place).read_text()}\n\nMORE = 1\n"):
        assert [copied.said(name) for name in ("ppo", "sac")] == ["", "mlxe_async.algorithms.sac:MORE"]


def test_a_file_that_changes_under_a_running_program_counts_as_changed(copied):
    place = copied.package / "algorithms" / "ppo.py"
    before = place.read_text()
    try:
        said = copied.said("ppo", place, before.replace("return -(ratio", "return (ratio"))
        assert said == "mlxe_async.algorithms.ppo:policy_loss"
    finally:
        place.write_text(before)


def test_a_file_that_cannot_be_read_is_a_difference(copied):
    place = copied.package / "maths" / "returns.py"
    with copied.edited("maths/returns.py", place.read_text()):
        place.chmod(0)
        try:
            assert copied.said("ppo", place, "def broken(:\n").startswith("mlxe_async.maths.returns, whose file")
        finally:
            place.chmod(0o644)


@pytest.mark.parametrize("name", sorted(TWINS))
def test_what_an_update_runs_lies_in_what_is_compared(name):
    """The update as it is written, its acting, its state and what was learned: each function's file is compared."""
    algorithm = made_rows.agent(name, spaces=proof.BOX if name in ("sac", "td3", "ddpg") else made_rows.SPACES)
    rows, ran = made_rows.batch(algorithm), set()

    def note(frame, event, _given):
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            ran.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        for number in range(3):
            algorithm.update(rows, Clock(updates=number))
        algorithm.set_weights(algorithm.weights())
        algorithm.restore(algorithm.state())
    finally:
        sys.setprofile(None)
    compared = {str(manifest.file_of(module)) for module in manifest.kept()["reaches"][name]}
    assert len(ran) > 5
    assert ran <= compared, f"{name}: {sorted(ran - compared)}"


def test_each_module_that_is_reached_has_its_digests():
    kept = manifest.kept()
    for module in kept["modules"]:
        importlib.import_module(module)
    assert kept["reaches"].keys() == {*TWINS}
    for name, modules in kept["reaches"].items():
        assert REGISTRY[name].partition(":")[0] in modules
        assert {*modules} <= kept["modules"].keys()
        assert manifest.Watch(load_algorithm(name), name).difference() == ""


COMPILED = """
import torch._dynamo.mutation_guard as guard
from mlxe_async.algorithms import load_algorithm
from mlxe_async.fast.manifest import Watch
guard.install_generation_tagging_init()  # torch.compile's own change of Module.__init__
assert guard.GenerationTracker.generation >= 0
import torch
print(torch.nn.Module.__init__.__name__, repr(Watch(load_algorithm("ppo"), "ppo").difference()))
torch.nn.Module.__init__ = lambda self, *args, **keys: None
print(repr(Watch(load_algorithm("ppo"), "ppo").difference()))
"""


def test_no_thread_asks_for_syntax_trees_which_python_gives_one_thread_at_a_time(monkeypatch):
    kept = manifest.kept()
    kept["modules"]["mlxe_async.algorithms.ppo"][manifest.TEXT] = "comments were edited"
    asked, real = [], manifest.definitions
    monkeypatch.setattr(manifest, "kept", lambda: kept)
    monkeypatch.setattr(manifest, "definitions", lambda text: asked.append(threading.current_thread()) or real(text))
    watch = manifest.Watch(load_algorithm("ppo"), "ppo")
    watch.begin()
    assert watch.difference() == ""
    assert asked == [threading.main_thread()]


@pytest.mark.long
def test_what_torch_changes_in_itself_to_compile_is_no_difference():
    told = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == ["patched_init ''", "'torch.nn.Module.__init__'"]


TREE = """
import ast, sys, types
source = open(sys.argv[1]).read()
names = {"__name__": "manifest", "__file__": sys.argv[1]}
body = [one for one in ast.parse(source).body if "mlxe_async" not in ast.unparse(one)]
exec(compile(ast.Module(body, []), "manifest", "exec"), names)
for path in sys.argv[2:]:
    print(sorted(names["definitions"](open(path, "rb").read()).items()))
"""


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_digests_are_the_same_under_each_version_of_python(version):
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", "pass"], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no python{version} here")
    paths = [str(manifest.file_of(module)) for module in sorted(manifest.kept()["modules"])]
    told = [
        subprocess.run([one, "-c", TREE, manifest.__file__, *paths], capture_output=True, text=True, check=True).stdout
        for one in (sys.executable, python)
    ]
    assert told[0] == told[1]
    assert told[0].count("\n") == len(paths)
