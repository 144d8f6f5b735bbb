"""What a node tells of itself: status, events and history, metrics, logs, plots."""
