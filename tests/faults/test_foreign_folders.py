"""Folders as a stranger might prepare them run none of their code, and end no command by an exception of ours."""

import foreign_folders
import pytest


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    foreign_folders.preload()
    return foreign_folders.make_run(tmp_path_factory.mktemp("own"))


def test_there_are_sixty_of_them():
    assert len(foreign_folders.FOLDERS) >= 60


@pytest.mark.parametrize("name", [*foreign_folders.FOLDERS][::4])
def test_a_foreign_folder_is_refused_or_harmless(name, source, tmp_path):
    assert foreign_folders.faults_of(name, source, ["play"], tmp_path) == []


@pytest.mark.parametrize("name", ["layers of a GB", "secrets of others"])
def test_a_run_that_is_to_go_on_is_refused_before_memory_is_taken_or_a_device_is_read(name, source, tmp_path):
    assert foreign_folders.faults_of(name, source, ["--resume --check"], tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", foreign_folders.FOLDERS)
def test_a_foreign_folder_is_harmless_to_every_command(name, source, tmp_path):
    assert foreign_folders.faults_of(name, source, list(foreign_folders.COMMANDS), tmp_path) == []
