"""What every Python process that tests start runs first: a trainer, or a rank of one that torch's
launcher has started, is continued by a copy of the process that has loaded the libraries (`copies.py`),
which takes milliseconds instead of seconds.

This process passes its options, environment and descriptors on, stands for the trainer under its
process id, and ends as the trainer does; when it is killed, the trainer is. Every other process goes on
as it is.
"""

import os
import sys

_SOCKET = "PRELOADED_TRAINERS"
_TRAINER = "distro_node.node.trainer"
_RANK = f"{_TRAINER}.ranks.elastic_rank"


def _hand_over(path: str, module: str, options: list[str]) -> None:
    import itertools
    import json
    import signal
    import socket

    words = [word for option in options for word in option.split("=", 1)]
    named = itertools.pairwise(words)
    pipes = [int(word) for name, word in named if name in ("--requests", "--answers", "--tell")]
    targets = [0, 1, 2, *pipes]
    order = {
        "module": module,
        "options": options,
        "environment": {name: value for name, value in os.environ.items() if name != _SOCKET},
        "folder": os.getcwd(),
        "targets": targets,
    }
    # Ctrl-C reaches every process of the group, and trainers ignore it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if module == _RANK:
        # The rank itself would end with its parent; the copy has another one.
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
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


if _SOCKET in os.environ and sys.orig_argv[1:3] == ["-P", "-m"]:
    _module, _options = sys.orig_argv[3], sys.orig_argv[4:]
    # A rank's outer process only starts one for each generation, and loads nothing.
    if _module == _TRAINER or (_module == _RANK and "--tell" in _options):
        _hand_over(os.environ[_SOCKET], _module, _options)
