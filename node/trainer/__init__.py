"""The trainer process, which runs torch: `python -m distro_node.node.trainer`.

The node process imports nothing from here; its client of the trainer is in `node.training`, which
needs no torch.
"""
