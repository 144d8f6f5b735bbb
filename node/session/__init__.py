"""One node in one swarm: joining, the effects of the state machine, updates, sync, seeding."""
