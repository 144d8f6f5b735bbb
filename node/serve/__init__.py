"""An endpoint that speaks OpenAI's interface for a state of the swarm's model."""
