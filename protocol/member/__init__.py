"""One member of a swarm as a state machine, composed of smaller ones."""
