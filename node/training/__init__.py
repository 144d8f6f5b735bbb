"""The node process's side of training: the trainer's client, supervisor, plans and sandbox."""
