"""What a node fetches and keeps: manifest, snapshots, tokenizer, the chunks of its training data."""
