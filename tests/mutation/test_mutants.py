"""Mutants of small texts: what is changed and what is left alone."""

import ast

import pytest
from mutants import defaults_in, of_source


def changes(source, **how):
    """What the only changed line of each mutant says."""
    return [one.after for one in of_source(source, "file.py", **how)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 3", ["x = 0", "x = 4"]),
        ("x = 0", ["x = -1", "x = 1"]),
        ("x = 0.5", ["x = (2 * 0.5)", "x = 0.0"]),
        ("x = 0.0", ["x = -1.0", "x = 1.0"]),
        ("x = True", ["x = False"]),
        ("x = -a", ["x = a"]),
        ("x = not a", ["x = a"]),
        ("x = a + b", ["x = -a + b", "x = a - b"]),
        ("x = a * b - c", ["x = -a * b - c", "x = a / b - c", "x = a * b + c"]),
        ("x = (a) ** (b)", ["x = (a) * (b)"]),
        ("x += b", ["x -= b"]),
        ("x = a < b <= c", ["x = a <= b <= c", "x = a > b <= c", "x = a < b < c", "x = a < b >= c"]),
        ("x = a is not b", ["x = a is b"]),
        ("x = a and b or c", ["x = a or b or c", "x = a and b and c"]),
        ("x = a if b else c", ["x = a if not (b) else c"]),
        ("x = a | b & c", ["x = a & b & c", "x = a | b | c"]),
        ("x = a.sum()", ["x = a.mean()"]),
        ("x = np.minimum(a, b)", ["x = np.maximum(a, b)"]),
        ("x = a.detach() + b", ["x = -a.detach() + b", "x = a + b", "x = a.detach() - b"]),
        ("x = np.abs(a)", ["x = (a)"]),
        ("x = a.clamp(max=b)", ["x = a", "x = a.clamp(min=b)"]),
        ("x = a.clamp(b, c)", ["x = a", "x = a.clamp(None, c)", "x = a.clamp(b, None)"]),
        ("x = np.clip(a, b, c)", ["x = np.clip(a, None, c)", "x = np.clip(a, b, None)"]),
        ("f(a, s.b, c)", ["f(s.b, a, c)", "f(a, c, s.b)"]),
        ("f(a, k=b)", ["f(a)"]),
        ("f(k=b)", ["f()"]),
    ],
)
def test_each_place_is_changed_alone(source, expected):
    assert changes(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""One of 3, not 4."""',
        "import a, b",
        "def f(x: int | None) -> Literal[1, 2]: pass",
        'raise ValueError(f"{a + 1} of 2")',
        "x = f'{a + b}'",
        "x = zip([], y, strict=True)",
        "if TYPE_CHECKING:\n    x = 1",
        "x: Annotated[int, 1]",
        'x: float = Field(a, ge=0, description="1 and not 2.")',
    ],
)
def test_what_is_no_behaviour_is_left_alone(source):
    assert changes(source) == []


def test_the_default_of_a_field_is_changed_and_its_bounds_are_not():
    assert changes("x: int = Field(3, ge=1)") == ["x: int = Field(0, ge=1)", "x: int = Field(4, ge=1)"]


def test_arguments_are_not_handed_on_only_where_they_have_a_default(tmp_path):
    (tmp_path / "one.py").write_text("class A:\n    def f(self, a, b=1, *, c=2, d): pass\n")
    known = defaults_in(tmp_path)
    assert known["f"] == {"b", "1", "c"}
    found = changes("f([], [], c=[], d=[])", defaults=known)
    assert found == ["f([], c=[], d=[])", "f([], [], d=[])"]
    assert changes("f([])", defaults=known) == []


def test_a_mutant_says_where_it_is_and_differs_from_the_file_in_this_line_alone():
    source = "class A:\n    def f(self, é, x=None):\n        'é 1'\n        return (\n  é +\n  x)  # keep\n"
    (first, second) = of_source(source, "file.py")
    assert (first.file, first.line, first.scope, first.kind) == ("file.py", 5, "A.f", "sign")
    assert (first.before, first.after) == ("é +", "-é +")
    assert second.source == source.replace("é +", "é -")
    assert ast.parse(second.source)


def test_what_lies_in_a_nested_function_belongs_to_the_outer_one():
    scopes = {one.scope for one in of_source("N = 1\ndef f(a=2):\n    def g(): return 3\n    return 4\n", "x")}
    assert scopes == {"", "f"}
