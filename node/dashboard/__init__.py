"""The dashboard, a node's page in a browser: its state, its contributions and the swarm's progress."""
