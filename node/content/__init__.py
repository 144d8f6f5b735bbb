"""Content that a node fetches and keeps: manifest, snapshots, tokenizer, chunks of training data."""
