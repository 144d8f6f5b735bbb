"""The scenarios of `benchmarks/network.py`, a module each.

A scenario has a function `measure(members)`, which runs it (with its usual number of members for
None), prints its table in the course of the run and returns the figures for the JSON file:
`limit_seconds`, `measured_seconds`, `upload_bytes_max`, `download_bytes_max`, `members`, and any
others. A scenario with a function `add_arguments(parser)` has its own options, which `measure`
receives by name. Modules without `measure` are shared by the scenarios.
"""
