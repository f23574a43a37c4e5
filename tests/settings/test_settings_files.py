"""Files that are no settings, by mistake or by malice: one line, in little time and memory."""

import os
import subprocess
import sys

import pytest
from settings_tools import problems_of, write

from mlxe_async.settings import load_settings

ENV = '[task]\nenv = "A-v0"\n'


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[task]\nenv = \n", "run.toml:2:7"),
        ("[task\n", "run.toml:1:6"),
        ("a = 1\na = 2\n", "run.toml:2:6"),
        ("[a]\n[a]\n", "run.toml:2:3"),
        ("a = 'x\n", "run.toml:2:1"),
        ('a = """x\n', "run.toml:2:1"),
        (b"a = 1\nb = '\xff'\n", "run.toml:2:6"),
        (b"a = 1\nb = '\x00'\n", "run.toml:2:6"),
        ("a = 1\rb = 2", "run.toml:1:6"),
        (ENV.encode("utf-16"), "run.toml:1:1"),
    ],
)
def test_what_is_not_toml_is_told_with_line_and_column(tmp_path, text, place):
    [line] = problems_of(write(tmp_path, text))
    assert line.startswith(f"{place}: got ")
    assert line.isprintable()


@pytest.mark.parametrize(
    "text", [b"\xef\xbb\xbf" + ENV.encode(), ENV.replace("\n", "\r\n").encode()], ids=["BOM", "CRLF"]
)
def test_what_windows_writes_is_read(tmp_path, text):
    assert load_settings(write(tmp_path, text)).task.env == "A-v0"


HOSTILE = {
    "an integer of 4,000 digits": "a = " + "9" * 4000,
    "an integer of 5,000 digits": "a = " + "9" * 5000,
    "a hexadecimal integer of 5,000 digits": "a = 0x" + "f" * 5000,
    "5,000 nested lists": "a = " + "[" * 5000 + "]" * 5000,
    "5,000 nested tables": "a = " + "{b = " * 5000 + "1" + "}" * 5000,
    "5,000 lists that never end": "a = " + "[" * 5000,
    "a key of 10,000 parts": ".".join(["a"] * 10_000) + " = 1",
    "a table of 10,000 parts": "[" + ".".join(["a"] * 10_000) + "]",
    "100,000 keys": "".join(f"k{i}=1\n" for i in range(100_000)),
    "a string that never ends": 'a = "' + '\\"' * 500_000,
    "a long string that never ends": 'a = """' + '"" ' * 300_000,
    "quotes": '"' * 1_000_000,
    "brackets": "[" * 1_000_000,
    "dots": "a." * 500_000,
    "too many bytes": "# " + "x" * 2**20,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_in_few_lines(tmp_path, name):
    lines = problems_of(write(tmp_path, HOSTILE[name]))
    assert len(lines) <= 51
    assert all(len(line) < 1000 for line in lines)


def test_hostile_files_need_little_time_and_memory(tmp_path):
    paths = [str(write(tmp_path, text, f"{number}.toml")) for number, text in enumerate(HOSTILE.values())]
    code = r"""
import re, sys
from mlxe_async.errors import SettingsError
from mlxe_async.settings import load_settings
for path in sys.argv[1:]:
    try:
        load_settings(path)
    except SettingsError:
        continue
    sys.exit("accepted " + path)
print(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])
"""
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) < 100 * 1024  # KiB


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    for name in ("fifo.toml", "folder.toml", "loop.toml", "zero.toml", "missing.toml"):
        [line] = problems_of(tmp_path / name)
        assert line.startswith(f"{name}:1: ")
        assert "expected a settings file" in line


def test_a_path_that_no_file_can_have_is_told():
    [line] = problems_of("a\x00b.toml")
    assert line.isprintable()


def test_a_link_to_a_file_is_followed(tmp_path):
    write(tmp_path, ENV)
    (tmp_path / "link.toml").symlink_to("run.toml")
    assert load_settings(tmp_path / "link.toml").run.name == "link"
