"""Folders as a stranger might prepare them run none of their code, and end no command by an exception of ours."""

import foreign_folders
import leaks
import pytest


@pytest.fixture(scope="module")
def commands():
    """The process that commands are forked of."""
    with foreign_folders.Commands() as commands:
        leaks.KEPT.add(commands.process.pid)
        yield commands
    leaks.KEPT.remove(commands.process.pid)


@pytest.fixture(scope="module")
def faults_of(commands, tmp_path_factory):
    """`faults_of(name, where, commands)`; what a command takes with the run as it was made is measured once."""
    source, usual = foreign_folders.make_run(tmp_path_factory.mktemp("own")), {}

    def told(name, where, *asked):
        if new := [one for one in asked if one not in usual]:
            usual.update(foreign_folders.usual_bytes(commands, source, new, tmp_path_factory.mktemp("usual")))
        return foreign_folders.faults_of(commands, name, source, {one: usual[one] for one in asked}, where)

    return told


def test_there_are_sixty_of_them():
    assert len(foreign_folders.FOLDERS) >= 60


NAMES = [
    pytest.param(name, marks=pytest.mark.slow if number % 2 else ())
    for number, name in enumerate([*foreign_folders.FOLDERS][::4])
]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_folder_is_refused_or_harmless(name, faults_of, tmp_path):
    assert faults_of(name, tmp_path, "play") == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["layers of a GB", "secrets of others"])
def test_a_run_that_is_to_go_on_is_refused_before_memory_is_taken_or_a_device_is_read(name, faults_of, tmp_path):
    assert faults_of(name, tmp_path, "--resume --check") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", foreign_folders.FOLDERS)
def test_a_foreign_folder_is_harmless_to_every_command(name, faults_of, tmp_path):
    assert faults_of(name, tmp_path, *foreign_folders.COMMANDS) == []
