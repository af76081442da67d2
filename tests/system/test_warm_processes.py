"""The processes of tests that start warm."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading

import pytest

from tests.support.warm_process import warm_commands, warm_python

ORDER = json.dumps([["-c", "print(1)"], "/", {}]).encode()


@pytest.mark.parametrize("sent", [0, 3, 8, 20])
def test_a_command_that_ends_before_it_is_sent_whole_starts_nothing(sent: int) -> None:
    address = str(warm_commands() / "socket")
    whole = len(ORDER).to_bytes(8, "big") + ORDER
    before = set(threading.enumerate())
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
        if sent:
            socket.send_fds(client, [whole[:sent]], [0, 1, 2])
        client.shutdown(socket.SHUT_WR)
        answer = client.recv(20)
    for thread in set(threading.enumerate()) - before:
        thread.join()  # an exception of a thread fails this test

    done = subprocess.run([warm_python(), "-c", "print('runs')"], stdout=subprocess.PIPE, env=os.environ, check=True)

    assert (answer, done.stdout) == (b"", b"runs\n")
