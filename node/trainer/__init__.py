"""The trainer: the process that runs torch, and the client through which the node process uses it.

Only `client`, `errors` and `frames` may be imported outside the trainer process; they need no
torch. Everything else is run by `python -m distro_node.node.trainer`.
"""
