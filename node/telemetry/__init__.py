"""Reporting of a node's state: status, events and history, metrics, logs, plots."""
