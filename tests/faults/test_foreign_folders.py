"""Folders as a stranger might prepare them run none of their code, and end no command by an exception of ours."""

import foreign_folders
import pytest


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    foreign_folders.preload()
    return foreign_folders.make_run(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def usual(source, tmp_path_factory):
    """`usual(command, ...)`: bytes of each command with the run as it was made, measured once."""
    known = {}

    def told(*commands):
        new = [command for command in commands if command not in known]
        known.update(foreign_folders.usual_bytes(source, new, tmp_path_factory.mktemp("usual")) if new else {})
        return {command: known[command] for command in commands}

    return told


def test_there_are_sixty_of_them():
    assert len(foreign_folders.FOLDERS) >= 60


@pytest.mark.parametrize("name", [*foreign_folders.FOLDERS][::4])
def test_a_foreign_folder_is_refused_or_harmless(name, source, usual, tmp_path):
    assert foreign_folders.faults_of(name, source, usual("play"), tmp_path) == []


@pytest.mark.parametrize("name", ["layers of a GB", "secrets of others"])
def test_a_run_that_is_to_go_on_is_refused_before_memory_is_taken_or_a_device_is_read(name, source, usual, tmp_path):
    assert foreign_folders.faults_of(name, source, usual("--resume --check"), tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", foreign_folders.FOLDERS)
def test_a_foreign_folder_is_harmless_to_every_command(name, source, usual, tmp_path):
    assert foreign_folders.faults_of(name, source, usual(*foreign_folders.COMMANDS), tmp_path) == []
