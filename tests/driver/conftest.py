"""Fixtures of the driver's tests."""

import pytest

from mlirstitch.driver.cli import main


@pytest.fixture
def call(capsys):
    """Calls the command line: exit code, stdout and stderr. No call may show a traceback."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return run
