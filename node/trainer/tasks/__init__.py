"""Tasks: samples, batches and losses, and text and images from the model."""
