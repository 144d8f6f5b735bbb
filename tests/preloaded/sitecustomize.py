"""What every Python process that tests start runs first: a trainer is continued by a copy of the
process that has loaded the libraries (`copies.py`), which takes milliseconds instead of seconds.

This process passes its options, environment and descriptors on, stands for the trainer under its
process id, and ends as the trainer does; when it is killed, the trainer is. Every other process, and
a trainer for several devices, goes on as it is.
"""

import os
import sys

_SOCKET = "PRELOADED_TRAINERS"
_COMMAND = ["-P", "-m", "distro_node.node.trainer"]


def _hand_over(path: str, options: list[str]) -> None:
    import json
    import signal
    import socket

    pipes = [int(word.partition("=")[2]) for word in options if word.startswith(("--req", "--ans"))]
    targets = [0, 1, 2, *pipes]
    order = {
        "options": options,
        "environment": {name: value for name, value in os.environ.items() if name != _SOCKET},
        "folder": os.getcwd(),
        "targets": targets,
    }
    # Ctrl-C reaches every process of the group, and trainers ignore it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
    except OSError:
        # Nobody listens any more: this process loads the libraries itself.
        return
    socket.send_fds(connection, [json.dumps(order).encode()], targets)
    # From now on the trainer alone holds the pipes.
    for descriptor in targets:
        os.close(descriptor)
    code = int(connection.recv(16) or b"1")
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)  # Private here: the interpreter has not started the trainer, and must not


if _SOCKET in os.environ and sys.orig_argv[1:4] == _COMMAND and "--several" not in sys.orig_argv:
    _hand_over(os.environ[_SOCKET], sys.orig_argv[4:])
