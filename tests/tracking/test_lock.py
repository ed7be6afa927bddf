"""One process in a run directory: refused by name, and free again however the holder ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from rlvlm.errors import ConfigError
from rlvlm.tracking.lock import FILE, locked

HOLD = """
import subprocess, sys, time
from pathlib import Path
from rlvlm.tracking.lock import locked
with locked(Path(sys.argv[1])):
    import os
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock, and has a child."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process
    process.kill()
    process.wait()
    os.kill(child, signal.SIGKILL)
    process.stdout.close()


def test_a_second_process_is_refused_with_the_first_ones_number_and_host(tmp_path, holder):
    with pytest.raises(ConfigError) as refused, locked(tmp_path):
        pytest.fail("two processes hold the lock")
    assert f"process {holder.pid} on host '{socket.gethostname()}'" in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_a_killed_holder_leaves_the_lock_free_though_its_child_lives_on(tmp_path, holder):
    holder.kill()
    holder.wait()
    with locked(tmp_path):
        assert json.loads((tmp_path / FILE).read_text())["pid"] == os.getpid()
    with locked(tmp_path):
        pass


def test_the_same_process_does_not_take_it_twice(tmp_path):
    with locked(tmp_path):
        with pytest.raises(ConfigError, match=f"process {os.getpid()} "), locked(tmp_path):
            pass
        with pytest.raises(ConfigError, match=f"process {os.getpid()} "), locked(tmp_path):
            pass  # the refusal has not released it
