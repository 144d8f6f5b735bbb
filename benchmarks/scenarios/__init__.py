"""What `benchmarks/network.py` can show, a module each.

A scenario has a function `measure(members)`, which runs it (with its usual number of members for None),
prints its table as it goes and returns the figures for the JSON file: `limit_seconds`,
`measured_seconds`, `upload_bytes_max`, `download_bytes_max`, `members`, and what else it shows. With a
function `add_arguments(parser)` it has options of its own, which `measure` gets by name. Modules
without `measure` are what scenarios share.
"""
