"""Creation of a swarm: a founder's file, texts and a model become a manifest."""
