"""The trainer: the process that runs torch, and the node process's client for it.

Only `client`, `errors` and `frames` may be imported outside the trainer process; they need no torch.
Everything else runs under `python -m distro_node.node.trainer`.
"""
